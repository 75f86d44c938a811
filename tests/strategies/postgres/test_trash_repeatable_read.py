"""Postgres: a save whose snapshot is older than a move fails and stores nothing, or brings back."""

from __future__ import annotations

import time

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure
from psycopg.rows import dict_row

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from tests.support.storages import PostgresStorage
from tests.support.trash_graphs import config, plain_graph


@pytest.fixture
def backend(trash_dsn):
    return PostgresStorage(trash_dsn)


def next_id(checkpoint_id):
    head, *rest = checkpoint_id.split("-")
    return "-".join([f"{int(head, 16) + 1:08x}", *rest])


def child(saver, history):
    head = history[0]
    saver.put(head.config, head.checkpoint | {"id": next_id(head.checkpoint["id"])}, {}, {})


def write(saver, history):
    saver.put_writes(history[0].config, [("turns", [9])], "task")


def first_of_a_subgraph(saver, history):
    root = history[0].checkpoint["id"]
    inner = {"thread_id": "t", "checkpoint_ns": "inner", "checkpoint_id": None}
    fresh = history[0].checkpoint | {"id": next_id(root), "channel_versions": {}}
    saver.put({"configurable": inner}, fresh, {"parents": {"": root}}, {})


def fork_of_a_first_checkpoint(saver, history):
    """It has no parent: that it needs the thread is seen from the values alone."""
    some = next(one for one in history if one.checkpoint["channel_values"].get("first"))
    copy = some.checkpoint | {"id": next_id(history[0].checkpoint["id"])}
    saver.put(config("t", checkpoint_ns=""), copy, {"source": "fork", "step": 0}, {})


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("save", [child, write, first_of_a_subgraph, fork_of_a_first_checkpoint])
def test_no_save_is_stored_without_what_it_needs(backend, level, save):
    with backend.open() as saver, psycopg.connect(backend.where, row_factory=dict_row) as conn:
        conn.isolation_level = level
        policy = TTLPolicy(idle_ttl_seconds=60)
        sweeper = TTLSweeper(saver, policy, grace_seconds=600, clock=lambda: time.time() + 3600)
        sweeper.setup()
        plain_graph(saver).invoke({"turns": []}, config("t"))
        before = backend.rows("t")
        history = list(saver.list(config("t")))
        conn.execute("SELECT 1 FROM checkpoints")  # takes the snapshot
        assert sweeper.sweep().deleted_thread_ids == ["t"]
        with pytest.raises(SerializationFailure):
            save(PostgresSaver(conn), history)
        conn.rollback()
        assert backend.count("t") == 0
        save(PostgresSaver(conn), history)
        conn.commit()
        after = backend.rows("t")
        for table, rows in before.items():
            assert set(rows) <= set(after[table])
        assert sweeper.trash() == []
