"""What the triggers of the trash add to a save.

    python benchmarks/put_with_undo.py --backend postgres --dsn ... [--trash 10000]

Saves, each a checkpoint with its blob and its writes, are timed in two sets of tables, with and
without the triggers. They take turns, so that the machine's moods hit both alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper


def save(saver: Any, thread_id: str, count: int) -> float:
    """Time the saves of one thread, in seconds for each."""
    where: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    started = time.perf_counter()
    for number in range(count):
        checkpoint = empty_checkpoint()
        version = f"{number + 1:032}.0123456789"
        checkpoint["channel_values"] = {"messages": ["x" * 200] * 10}
        checkpoint["channel_versions"] = {"messages": version}
        where = saver.put(
            where,
            checkpoint,
            {"source": "loop", "step": number, "parents": {}},
            {"messages": version},
        )
        saver.put_writes(where, [("messages", ["x" * 200]), ("branch:to:next", None)], "task")
    return (time.perf_counter() - started) / count


def compare(
    backend: str, where: str, *, rounds: int, saves: int, trash: int = 0, control: bool = False
) -> dict[bool, list[float]]:
    """Time saves without (False) and with (True) the triggers, in seconds for each save.

    Args:
        backend: ``"postgres"`` or ``"sqlite"``.
        where: A DSN, or a directory, for the tables.
        rounds: Turns of both.
        saves: Saves in a turn.
        trash: Threads in the trash meanwhile.
        control: Leave the triggers out on both sides.
    """
    with ExitStack() as stack:
        bare, hooked = (
            stack.enter_context(_saver(backend, where, f"undo_{name}"))
            for name in ("bare", "hooked")
        )
        sweeper = TTLSweeper(
            hooked,
            TTLPolicy(idle_ttl_seconds=60),
            grace_seconds=10**6,
            clock=lambda: time.time() + 3600,
        )
        sweeper.setup()
        for number in range(trash):
            save(hooked, f"trash-{number}", 1)
        sweeper.sweep()
        if control:
            sweeper.teardown(force=True)
        times: dict[bool, list[float]] = {True: [], False: []}
        for round_ in range(rounds + 1):
            pair = [(False, bare), (True, hooked)]
            for triggers, saver in pair if round_ % 2 else reversed(pair):
                took = save(saver, f"round-{round_}", saves)
                if round_:  # the first warms up
                    times[triggers].append(took)
    return times


def main() -> int:
    """Print the median time of a save with and without, and how they compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=("postgres", "sqlite"), required=True)
    parser.add_argument("--dsn", required=True, help="a database, or a directory, for the tables")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--saves", type=int, default=25)
    parser.add_argument("--trash", type=int, default=0, help="threads in the trash meanwhile")
    parser.add_argument("--control", action="store_true", help="compare two sets without triggers")
    options = parser.parse_args()
    times = compare(
        options.backend,
        options.dsn,
        rounds=options.rounds,
        saves=options.saves,
        trash=options.trash,
        control=options.control,
    )
    ratio = statistics.median(
        with_ / without for with_, without in zip(times[True], times[False], strict=True)
    )
    with_, without = (statistics.median(times[key]) for key in (True, False))
    print(
        f"{options.backend}, {options.trash} threads in the trash: {without * 1e6:.0f} us a "
        f"save without, {with_ * 1e6:.0f} us with: {ratio:.3f} times; the fastest rounds "
        f"{min(times[False]) * 1e6:.0f} and {min(times[True]) * 1e6:.0f} us"
    )
    return 0


@contextmanager
def _saver(backend: str, where: str, name: str) -> Iterator[Any]:
    if backend == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(str(Path(where, f"{name}.db"))) as saver:
            saver.setup()
            yield saver
        return
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver

    with psycopg.connect(where, autocommit=True) as conn:
        conn.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        conn.execute(f"CREATE SCHEMA {name}")
    dsn = psycopg.conninfo.make_conninfo(where, options=f"-csearch_path={name}")
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
        yield saver


if __name__ == "__main__":
    sys.exit(main())
