"""Trimming long threads in an SQLite file, plain ones and such with delta channels."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from benchmarks import rivals
from benchmarks.data import fill_sqlite
from benchmarks.harness import Goal, Options, Row, clock, describe, main, ratio, take_turns

try:
    from langgraph.channels.delta import DeltaChannel
except ImportError:  # an older LangGraph
    DeltaChannel = None  # type: ignore[assignment,misc]

_CHECKPOINTS, _KEEP = 200, 10

_DELETE = """
    DELETE FROM {table} WHERE checkpoint_ns = '' AND thread_id = ? AND checkpoint_id < (
        SELECT checkpoint_id FROM checkpoints WHERE checkpoint_ns = '' AND thread_id = ?
        ORDER BY checkpoint_id DESC LIMIT 1 OFFSET ?)
"""


def _extend(base: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return base + [item for write in writes for item in write]


def fill_delta(path: str, threads: int) -> None:
    """Let a graph with a delta channel make one thread, and copy its rows to the others."""

    class State(TypedDict):
        messages: Annotated[list[str], DeltaChannel(_extend, list, snapshot_frequency=50)]

    builder = StateGraph(State)
    builder.add_node(
        "answer", lambda state: {"messages": [f"{len(state['messages'])}" + "x" * 200]}
    )
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        graph = builder.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "thread-00000000"}}
        while True:
            (count,) = saver.conn.execute("SELECT count(*) FROM checkpoints").fetchone()
            if count >= _CHECKPOINTS:
                break
            graph.invoke({"messages": ["q" * 200]}, config)
        for table in ("checkpoints", "writes"):
            columns = [row[1] for row in saver.conn.execute(f"PRAGMA table_info({table})")][1:]
            saver.conn.executemany(
                f"INSERT INTO {table} (thread_id, {', '.join(columns)}) SELECT ?, "
                f"{', '.join(columns)} FROM {table} WHERE thread_id = 'thread-00000000'",
                ((f"thread-{number:08d}",) for number in range(1, threads)),
            )
        saver.conn.commit()
        saver.conn.execute("ANALYZE")
        saver.conn.commit()


def measure(options: Options) -> Row:
    threads = options.threads(2_000)
    with tempfile.TemporaryDirectory(prefix="lgec-bench-") as folder:
        copy = Path(folder, "copy.db")
        filled = {"plain": Path(folder, "plain.db")}
        fill_sqlite(str(filled["plain"]), threads, _CHECKPOINTS, 0.0)
        if DeltaChannel is not None:
            filled["delta"] = Path(folder, "delta.db")
            fill_delta(str(filled["delta"]), threads)

        def fresh(kind: str) -> None:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{copy}{suffix}").unlink(missing_ok=True)
            shutil.copy(filled[kind], copy)

        def delete(kind: str) -> float:
            fresh(kind)
            conn = sqlite3.connect(copy, isolation_level=None)

            def run() -> None:
                conn.execute("BEGIN IMMEDIATE")
                for number in range(threads):
                    id_ = f"thread-{number:08d}"
                    for table in ("writes", "checkpoints"):
                        conn.execute(_DELETE.format(table=table), (id_, id_, _KEEP - 1))
                conn.execute("COMMIT")

            took = clock(run)
            (left,) = conn.execute("SELECT count(*) FROM checkpoints").fetchone()
            conn.close()
            assert left == threads * _KEEP, left
            return took

        def ours(kind: str) -> float:
            fresh(kind)
            done = rivals.sweep(backend="sqlite", where=str(copy), max_checkpoints_per_thread=_KEEP)
            if kind == "plain":
                assert done["pruned"] == threads * (_CHECKPOINTS - _KEEP), done
            # Of a delta thread more stays: what its newest checkpoints are rebuilt from.
            assert done["pruned"] > threads * _CHECKPOINTS / 3, done
            return float(done["seconds"])

        contenders = {
            "plain_deletes": lambda: delete("plain"),
            "ours": lambda: ours("plain"),
        }
        if "delta" in filled:
            contenders["ours_delta_threads"] = lambda: ours("delta")
        times = take_turns(options.rounds, **contenders)
    return Row(
        "prune to 10, SQLite",
        f"SQLite file, {threads:,} threads x {_CHECKPOINTS} checkpoints",
        [Goal("plain DELETEs (plain threads)", ratio(times["ours"], times["plain_deletes"]), 2)],
        describe(times),
        why="what its newest checkpoints need to load and replay is read for each thread, where "
        "plain DELETEs go by the order of the ids",
    )


if __name__ == "__main__":
    main(measure)
