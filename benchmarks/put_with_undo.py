"""What the triggers of the trash add to a save.

    python benchmarks/put_with_undo.py --backend postgres --dsn ... [--trash 10000]

Saves, each a checkpoint with its blob and its writes, are timed in two sets of tables, with and
without the triggers. They take turns, so that the machine's moods hit both alike. What counts is
the CPU time of client and server together: waiting for a turn on a core is in the wall time of
both, and hides the difference in noise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from benchmarks.data import checkpoint_id
from benchmarks.harness import cpu_seconds
from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper


@dataclass(frozen=True)
class Turn:
    """What a save took in a turn of some, in seconds: by the wall, and of CPU on both ends."""

    wall: float
    cpu: float


Turns = dict[bool, list[Turn]]
"""Without (False) and with (True) the triggers."""


def ratio(turns: Turns, measure: str = "cpu") -> float:
    """Compare the saves with and without, by CPU or wall time: the median of the pairs."""
    return statistics.median(
        getattr(with_, measure) / getattr(without, measure)
        for with_, without in zip(turns[True], turns[False], strict=True)
    )


def save(saver: Any, thread_id: str, count: int, idle: float = 0.0) -> None:
    """Make the saves of one thread, whose ids say that it is ``idle`` seconds old."""
    where: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    for number in range(count):
        checkpoint = empty_checkpoint()
        if idle:
            checkpoint["id"] = checkpoint_id(time.time() - idle, number)
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


def compare(
    backend: str, where: str, *, rounds: int, saves: int, trash: int = 0, control: bool = False
) -> Turns:
    """Time saves without and with the triggers.

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
        policy = TTLPolicy(idle_ttl_seconds=1800)
        sweeper = TTLSweeper(hooked, policy, grace_seconds=10**6)
        sweeper.setup()
        # The other side deletes as many, so that both tables are left in the same state.
        for saver, sweep in ((hooked, sweeper.sweep), (bare, TTLSweeper(bare, policy).sweep)):
            for number in range(trash):
                save(saver, f"trash-{number}", 1, idle=3600)
            assert len(sweep().deleted_thread_ids) == trash
        if control:
            sweeper.teardown(force=True)
        turns: Turns = {True: [], False: []}
        for round_ in range(rounds + 1):
            pair = [(False, bare), (True, hooked)]
            for triggers, saver in pair if round_ % 2 else reversed(pair):
                turn = _turn(saver, f"round-{round_}", saves)
                if round_:  # the first warms up
                    turns[triggers].append(turn)
    return turns


def _turn(saver: Any, thread_id: str, saves: int) -> Turn:
    backend = getattr(getattr(saver.conn, "info", None), "backend_pid", None)
    wall, cpu = time.perf_counter(), cpu_seconds(backend)
    save(saver, thread_id, saves)
    return Turn((time.perf_counter() - wall) / saves, (cpu_seconds(backend) - cpu) / saves)


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
    turns = compare(
        options.backend,
        options.dsn,
        rounds=options.rounds,
        saves=options.saves,
        trash=options.trash,
        control=options.control,
    )
    print(f"{options.backend}, {options.trash} threads in the trash, each save, in us:")
    for measure in ("cpu", "wall"):
        without, with_ = (
            [getattr(turn, measure) * 1e6 for turn in turns[triggers]] for triggers in (False, True)
        )
        print(
            f"  {measure}: {statistics.median(without):.0f} without, "
            f"{statistics.median(with_):.0f} with, {ratio(turns, measure):.3f} times; fastest "
            f"{min(without):.0f} and {min(with_):.0f}"
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
