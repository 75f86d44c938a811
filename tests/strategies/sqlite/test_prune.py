"""What the file of an SQLite saver may be like."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.strategies import SqliteStrategy


def test_a_thread_whose_ids_the_file_orders_otherwise_is_left_whole(tmp_path):
    """In UTF-16 SQLite compares ids by their bytes, of which the lower ones come first."""
    where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with closing(sqlite3.connect(tmp_path / "utf16.db", check_same_thread=False)) as conn:
        conn.execute("PRAGMA encoding = 'UTF-16le'")
        saver = SqliteSaver(conn)
        for name in ("a", "y", "z", "\u0100"):
            saver.put(where, {**empty_checkpoint(), "id": name}, {"step": 1, "parents": {}}, {})
        head = saver.get_tuple(where)
        assert head.config["configurable"]["checkpoint_id"] == "z"
        outcome = SqliteStrategy(saver).prune_threads(["t"], 3, dry_run=False)["t"]
        assert "orders its checkpoint ids" in outcome.left_whole
        assert saver.get_tuple(where) == head
        assert len(list(saver.list(where))) == 4
