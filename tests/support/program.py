"""Threads of real graphs, made old, in real files and databases; and the program run on them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at

ROOT = Path(__file__).parents[2]
HOUR = 3600.0


class State(TypedDict):
    text: str


def _ask(state: State) -> State:
    return {"text": interrupt("go on?")} if state["text"] == "ask" else state


def graph(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("ask", _ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def older(checkpoint_id: str, seconds: float) -> str:
    """Move a UUID version 6 into the past."""
    bits = uuid.UUID(checkpoint_id).int
    ticks = (bits >> 80 << 12 | bits >> 64 & 0xFFF) - int(seconds * 10_000_000)
    low = bits & ((1 << 64) - 1)
    return str(uuid.UUID(int=ticks >> 12 << 80 | 6 << 76 | (ticks & 0xFFF) << 64 | low))


def run_threads(saver: Any, *thread_ids: str, text: str = "hello") -> None:
    for thread_id in thread_ids:
        graph(saver).invoke({"text": text}, {"configurable": {"thread_id": thread_id}})


def age(connection: Any, thread_id: str, seconds: float, *, writes: str = "writes") -> None:
    """Rewrite the ids of a thread in SQLite or Postgres as if it was run that long ago."""
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    for table, column in (
        ("checkpoints", "checkpoint_id"),
        ("checkpoints", "parent_checkpoint_id"),
        (writes, "checkpoint_id"),
    ):
        found = connection.execute(
            f"SELECT DISTINCT {column} FROM {table} WHERE thread_id = {mark}", (thread_id,)
        ).fetchall()
        for (old,) in [row for row in found if row[0]]:
            connection.execute(
                f"UPDATE {table} SET {column} = {mark} "
                f"WHERE thread_id = {mark} AND {column} = {mark}",
                (older(old, seconds), thread_id, old),
            )
    connection.commit()


def put(saver: Any, thread_ids: Iterable[str], *, age_seconds: float = 0.0) -> None:
    """Save one bare checkpoint for each thread, at some time ago."""
    for thread_id in thread_ids:
        checkpoint = empty_checkpoint()
        checkpoint["id"] = first_id_at(time.time() - age_seconds)
        saver.put(
            {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}, checkpoint, {}, {}
        )


def sqlite_file(path: Path) -> Path:
    """Make a file of four threads: idle, fresh, waiting for a human, and of unknown age."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        run_threads(saver, "idle", "fresh")
        run_threads(saver, "waiting", text="ask")
        age(saver.conn, "idle", 3 * HOUR)
        age(saver.conn, "waiting", 2 * HOUR)
        put(saver, ["ageless"])
        saver.conn.execute(
            "UPDATE checkpoints SET checkpoint_id = 'x', type = 'other' WHERE thread_id = 'ageless'"
        )
        saver.conn.commit()
    return path


def threads_in(path: Path) -> set[str]:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return {row[0] for row in connection.execute("SELECT thread_id FROM checkpoints")}
    finally:
        connection.close()


def environment(**changes: str) -> dict[str, str]:
    """Give the environment of a child process, free of what would change its output."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LGEC_DSN", "NO_COLOR") and not name.startswith("PYTHON")
    }
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", **changes}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "langgraph_ephemeral_checkpointer", *words]


def run(*words: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a process of its own."""
    return subprocess.run(
        command(*words),
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def dump(path):
    """Everything in an SQLite file, as text."""
    with closing(sqlite3.connect(path)) as conn:
        return list(conn.iterdump())
