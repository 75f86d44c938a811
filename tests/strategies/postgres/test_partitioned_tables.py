"""Postgres tables that somebody has partitioned: what is at the same place elsewhere stays."""

from __future__ import annotations

import time

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.strategies.postgres.trash import PostgresUndo
from tests.support.aging import uuid6_at

NOW = 1_750_000_000.0
DAY = 86400.0
TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


@pytest.fixture
def conn(pg_dsn):
    """A session that finds tables with a partition for each thread, so that places coincide."""
    options = {"autocommit": True, "row_factory": dict_row}
    with psycopg.connect(pg_dsn, options="-c search_path=parted", **options) as conn:
        conn.execute("CREATE SCHEMA parted")
        for table in TABLES:
            conn.execute(
                f"CREATE TABLE {table} (LIKE public.{table} INCLUDING ALL) "
                "PARTITION BY LIST (thread_id)"
            )
            for thread_id in "abc":
                conn.execute(
                    f"CREATE TABLE {table}_{thread_id} PARTITION OF {table} "
                    f"FOR VALUES IN ('{thread_id}')"
                )
        yield conn
        conn.execute("DROP SCHEMA parted CASCADE")


@pytest.fixture
def saver(conn):
    return PostgresSaver(conn)


def save(saver, thread_id, at):
    version = f"{round(at):032}.5"
    checkpoint = empty_checkpoint() | {
        "id": uuid6_at(at),
        "channel_values": {"messages": ["hello"]},
        "channel_versions": {"messages": version},
    }
    where = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    head = saver.put(where, checkpoint, {}, {"messages": version})
    saver.put_writes(head, [("messages", ["more"])], "task")


def count(conn, thread_id):
    return [
        conn.execute(
            f"SELECT count(*) AS n FROM {table} WHERE thread_id = %s", (thread_id,)
        ).fetchone()["n"]
        for table in TABLES
    ]


def test_a_prune_takes_nothing_of_other_threads(conn, saver):
    for thread_id, checkpoints in (("a", 12), ("b", 3), ("c", 5)):
        for second in range(checkpoints):
            save(saver, thread_id, NOW + second)
    result = TTLSweeper(saver, TTLPolicy(max_checkpoints_per_thread=5)).sweep()
    assert result.pruned_checkpoint_count == 7
    assert count(conn, "a") == [5, 5, 5]
    assert count(conn, "b") == [3, 3, 3]
    assert count(conn, "c") == [5, 5, 5]


@pytest.mark.parametrize("asked", [False, True], ids=["unread", "read"])
def test_a_thread_that_another_session_owns_is_not_taken_for_owned(conn, saver, pg_dsn, asked):
    """Its second row by key is where the first of another thread is in that one's partition."""
    for seconds in (2, 1):
        save(saver, "a", NOW + seconds)
    save(saver, "b", NOW)
    told = []
    sweeper = TTLSweeper(
        saver,
        TTLPolicy(idle_ttl_seconds=DAY),
        clock=lambda: NOW + 2 * DAY,
        orphan_age_seconds=None,
        on_after_delete=lambda *told_of: told.append(told_of[0]),
        on_before_delete=(lambda *_: True) if asked else None,
    )
    with psycopg.connect(pg_dsn, options="-c search_path=parted") as other:
        other.execute(
            "SELECT 1 FROM checkpoints WHERE checkpoint_id = %s FOR UPDATE", (uuid6_at(NOW + 1),)
        )
        began = time.monotonic()
        result = sweeper.sweep()
        assert time.monotonic() - began < 0.4  # nobody waited for the lock
    assert result.deleted_thread_ids == told == ["b"]
    assert result.kept == {"a": KeepReason.BUSY}
    assert count(conn, "a") == [2, 2, 2]
    assert sweeper.sweep().deleted_thread_ids == ["a"]


def test_undo_works_on_partitions(conn, saver):
    save(saver, "a", NOW)
    save(saver, "b", NOW + 5 * DAY)
    sweeper = TTLSweeper(
        saver, TTLPolicy(idle_ttl_seconds=DAY), grace_seconds=60, clock=lambda: NOW + 4 * DAY
    )
    sweeper.setup()
    try:
        loaded = saver.get_tuple({"configurable": {"thread_id": "a"}})
        assert sweeper.sweep().deleted_thread_ids == ["a"]
        assert count(conn, "a") == [0, 0, 0]
        saver.put_writes(loaded.config, [("messages", ["late"])], "late")
        assert count(conn, "a") == [1, 1, 2]
    finally:
        sweeper.strategy.transact(PostgresUndo().teardown(force=True))
