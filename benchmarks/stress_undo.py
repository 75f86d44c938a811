"""Real graphs against a sweeper in a tight loop: does any run end with half a thread?

    python benchmarks/stress_undo.py --backend postgres --dsn ... --seconds 120 [--no-trigger]

Workers invoke graphs on a few threads that expire after a second, while a sweeper deletes what
has expired as fast as it can. After it, everything that is stored is checked. The suite runs
the same code for some seconds (tests/strategies/trash/test_stress.py).
"""

from __future__ import annotations

import argparse
import operator
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper

try:
    from langgraph.channels.delta import DeltaChannel
except ImportError:  # an older LangGraph
    DeltaChannel = None  # type: ignore[assignment,misc]

DURABILITIES = ("sync", "async", "exit")


@dataclass
class Tally:
    """What happened.

    Attributes:
        runs: Runs that ended.
        swept: Threads that the sweeper took away.
        half: Runs of plain graphs that saw, or stored, half a thread.
        dangling: Stored checkpoints whose parent is not.
        missing_blobs: Stored checkpoints whose values are not all there (Postgres).
        short: Delta threads that are stored with less than their runs wrote.
        orphans: Writes and blobs that belong to no checkpoint.
        errors: Runs that failed, by error.
    """

    runs: int = 0
    swept: int = 0
    half: int = 0
    dangling: int = 0
    missing_blobs: int = 0
    short: int = 0
    orphans: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def torn(self) -> int:
        """Everything that must not happen."""
        return self.half + self.dangling + self.missing_blobs + self.short + self.orphans

    def add(self, other: Tally) -> None:
        """Add up."""
        for name in ("runs", "swept", "half", "dangling", "missing_blobs", "short", "orphans"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.errors.update(other.errors)


class _State(TypedDict, total=False):
    turns: Annotated[list, operator.add]
    first: dict  # set by the first turn, never again
    count: int


def _extend(state: list, writes: list) -> list:
    return [*state, *(item for write in writes for item in write)]


def _is_whole(state: dict[str, Any]) -> bool:
    turns = state.get("turns", [])
    if not turns:
        return not state.get("first") and not state.get("count")
    return bool(state.get("first")) and len(turns) == state.get("count", 0)


def plain_graph(saver: Any, think: float, seen: Callable[[dict[str, Any]], None]) -> Any:
    """Make a graph whose state tells whether it is whole."""

    def work(state: _State) -> _State:
        seen(dict(state))
        time.sleep(random.uniform(0, think))
        update: _State = {
            "turns": [len(state.get("turns", []))],
            "count": state.get("count", 0) + 1,
        }
        return update if state.get("first") else {**update, "first": {"name": "Ada"}}

    def rest(state: _State) -> _State:
        time.sleep(random.uniform(0, think))
        return {}

    graph = StateGraph(_State)
    graph.add_node("work", work)
    graph.add_node("rest", rest)
    graph.add_edge(START, "work")
    graph.add_edge("work", "rest")
    graph.add_edge("rest", END)
    return graph.compile(checkpointer=saver)


def delta_graph(saver: Any, think: float) -> Any:
    """Make a graph with a log that is stored as changes only, and a count beside it."""

    class State(TypedDict, total=False):
        log: Annotated[list, DeltaChannel(_extend, snapshot_frequency=1000)]
        first: dict
        count: int

    def work(state: State) -> State:
        time.sleep(random.uniform(0, think))
        count = state.get("count", 0)
        return {"log": [count], "count": count + 1, "first": state.get("first") or {"a": 1}}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    return graph.compile(checkpointer=saver)


def stress(
    saver: Any,
    sql: Callable[[str], list[Any]],
    *,
    seconds: float,
    durability: str,
    threads: int = 60,
    workers: int = 8,
    trigger: bool = True,
    unhook: Callable[[], None] = lambda: None,
    ttl: float = 1.0,
    think: float = 0.02,
) -> Tally:
    """Run graphs against a sweeper, then check what is stored.

    Args:
        saver: A set-up saver that threads may share.
        sql: Runs a query on the same database by another connection.
        seconds: How long.
        durability: Of the runs.
        threads: How many thread ids; half of them delta threads where there is such a thing.
        workers: Threads that run graphs.
        trigger: Whether runs bring their threads back.
        unhook: Removes the triggers.
        ttl: After how many seconds a thread is idle.
        think: The longest pause in a node.
    """
    tally, lock = Tally(), threading.Lock()
    with_delta = DeltaChannel is not None
    sweeper = TTLSweeper(
        saver,
        TTLPolicy(idle_ttl_seconds=ttl),
        grace_seconds=3600 if trigger else None,
        orphan_age_seconds=None,
    )
    sweeper.setup()
    if not trigger:
        unhook()
    until = time.monotonic() + seconds
    stop = threading.Event()
    # Two runs of one thread at once fork it, sweeper or not; that is not what is looked for.
    in_use = [threading.Lock() for _ in range(threads)]

    def sweep() -> None:
        while not stop.is_set():
            try:
                gone = sweeper.sweep().deleted_thread_ids
            except Exception as error:  # noqa: BLE001 - counted
                with lock:
                    tally.errors[f"sweep: {type(error).__name__}: {error}"] += 1
            else:
                tally.swept += len(gone)

    def work(seed: int) -> None:
        pick = random.Random(seed)
        halves: list[dict[str, Any]] = []

        def seen(state: dict[str, Any]) -> None:
            if not _is_whole(state):
                halves.append(state)

        plain = plain_graph(saver, think, seen)
        delta = delta_graph(saver, think) if with_delta else None
        while time.monotonic() < until:
            number = pick.randrange(threads)
            if not in_use[number].acquire(blocking=False):
                continue
            is_delta = with_delta and number % 2 == 1
            config = {"configurable": {"thread_id": f"t{number}"}}
            try:
                graph = delta if is_delta else plain
                given: Any = {"log": []} if is_delta else {"turns": []}
                graph.invoke(given, config, durability=durability)
            except Exception as error:  # noqa: BLE001 - counted
                with lock:
                    tally.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            finally:
                in_use[number].release()
            with lock:
                tally.runs += 1
                tally.half += bool(halves)
            halves.clear()

    sweeping = threading.Thread(target=sweep)
    working = [threading.Thread(target=work, args=(seed,)) for seed in range(workers)]
    sweeping.start()
    for worker in working:
        worker.start()
    for worker in working:
        worker.join()
    stop.set()
    sweeping.join()
    _check(saver, sql, tally, threads, with_delta)
    return tally


def _check(
    saver: Any, sql: Callable[[str], list[Any]], tally: Tally, threads: int, with_delta: bool
) -> None:
    plain = plain_graph(saver, 0, lambda _: None)
    delta = delta_graph(saver, 0) if with_delta else None
    for number in range(threads):
        config = {"configurable": {"thread_id": f"t{number}"}}
        if with_delta and number % 2 == 1:
            values = delta.get_state(config).values
            tally.short += len(values.get("log", [])) != values.get("count", 0)
        else:
            tally.half += not _is_whole(plain.get_state(config).values)
    postgres = "Postgres" in type(saver).__name__
    writes = "checkpoint_writes" if postgres else "writes"
    tally.orphans += sql(
        f"SELECT count(*) FROM (SELECT DISTINCT thread_id, checkpoint_ns, checkpoint_id "
        f"FROM {writes} AS w WHERE NOT EXISTS (SELECT 1 FROM checkpoints AS c "
        "WHERE c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns "
        "AND c.checkpoint_id = w.checkpoint_id)) AS loose"
    )[0][0]
    tally.dangling += sql(
        "SELECT count(*) FROM checkpoints AS c WHERE c.parent_checkpoint_id IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM checkpoints AS p WHERE p.thread_id = c.thread_id "
        "AND p.checkpoint_ns = c.checkpoint_ns AND p.checkpoint_id = c.parent_checkpoint_id)"
    )[0][0]
    if postgres:
        # Once "first" is written it never changes, so its blob is the first to be lost.
        tally.missing_blobs += sql(
            "SELECT count(*) FROM checkpoints AS c WHERE c.checkpoint -> 'channel_versions' "
            "->> 'first' IS NOT NULL AND NOT EXISTS (SELECT 1 FROM checkpoint_blobs AS b "
            "WHERE b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns "
            "AND b.channel = 'first' "
            "AND b.version = c.checkpoint -> 'channel_versions' ->> 'first')"
        )[0][0]
        tally.orphans += sql(
            "SELECT count(*) FROM checkpoint_blobs AS b WHERE NOT EXISTS ("
            "SELECT 1 FROM checkpoints AS c WHERE c.thread_id = b.thread_id "
            "AND c.checkpoint_ns = b.checkpoint_ns "
            "AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version)"
        )[0][0]


@contextmanager
def _open(backend: str, where: str) -> Iterator[tuple[Any, Callable[[str], list[Any]]]]:
    if backend == "sqlite":
        import sqlite3

        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(where) as saver:
            saver.setup()
            other = sqlite3.connect(where, isolation_level=None, check_same_thread=False)
            yield saver, lambda text: other.execute(text).fetchall()
            other.close()
        return
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg_pool import ConnectionPool

    with (
        ConnectionPool(where, min_size=10, max_size=10, kwargs={"autocommit": True}) as pool,
        psycopg.connect(where, autocommit=True) as other,
    ):
        saver = PostgresSaver(pool)
        saver.setup()
        other.execute("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes")

        def sql(text: str) -> list[Any]:
            found = other.execute(text)
            return found.fetchall() if found.description else []

        yield saver, sql


def main() -> int:
    """Run the long version; the exit status is 1 where something is torn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=("postgres", "sqlite"), required=True)
    parser.add_argument("--dsn", required=True, help="a database, or a file, of its own")
    parser.add_argument("--seconds", type=float, default=60, help="for each durability")
    parser.add_argument("--no-trigger", action="store_true")
    options = parser.parse_args()
    total = Tally()
    if options.backend == "sqlite" and Path(options.dsn).exists():
        parser.error("the file is there already")
    for durability in DURABILITIES:
        with _open(options.backend, options.dsn) as (saver, sql):

            def unhook(sql: Callable[[str], list[Any]] = sql) -> None:
                tables = ("checkpoints", "checkpoint_writes")
                if options.backend == "sqlite":
                    for table in ("checkpoints", "writes"):
                        sql(f"DROP TRIGGER lgec_undo_{table}")
                else:
                    for table in tables:
                        sql(f"DROP TRIGGER lgec_undo ON {table}")

            tally = stress(
                saver,
                sql,
                seconds=options.seconds,
                durability=durability,
                trigger=not options.no_trigger,
                unhook=unhook,
            )
            print(f"{durability:6} {tally}")
            total.add(tally)
            for table in (
                "checkpoints",
                *(
                    ("checkpoint_blobs", "checkpoint_writes")
                    if options.backend == "postgres"
                    else ("writes",)
                ),
            ):
                sql(f"DELETE FROM {table}")
            TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=1)).teardown(force=True)
    print(f"all    {total}")
    return 1 if total.torn else 0


if __name__ == "__main__":
    sys.exit(main())
