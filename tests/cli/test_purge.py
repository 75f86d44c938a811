"""purge-messages on the command line."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from langgraph_ephemeral_checkpointer.cli.purge import purge, tenants_of
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support.aging import shift_postgres, shift_sqlite

DAY = 86400.0


def _answer(state: MessagesState) -> Any:
    word = str(state["messages"][-1].content)
    return {"messages": [AIMessage(interrupt("?") if "WAIT" in word else f"re {word}")]}


def _say(saver: Any, thread_id: str, word: str) -> None:
    builder = StateGraph(MessagesState).add_node("answer", _answer).add_edge(START, "answer")
    graph: Any = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [("user", word)]}, {"configurable": {"thread_id": thread_id}})


def _fill(saver: Any) -> None:
    _say(saver, "old", "OLDWORD")
    _say(saver, "waits", "WAIT OLDWAIT")
    _say(saver, "new", "NEWWORD")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        _fill(saver)
    for thread_id in ("old", "waits"):
        shift_sqlite(str(path), JsonPlusSerializer(), thread_id, -40 * DAY)
    return path


@pytest.fixture
def on(call, path):
    def on(*words):
        return call("purge-messages", "--backend", "sqlite", "--dsn", str(path), *words)

    return on


def _holds(path: Any, text: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as conn, conn:
        rows = [*conn.execute("SELECT * FROM checkpoints"), *conn.execute("SELECT * FROM writes")]
    return [row for row in rows if any(text.encode() in v for v in row if isinstance(v, bytes))]


def test_old_exchanges_go_and_the_threads_stay(on, path):
    answer = on("--older-than", "30d")
    assert answer.status == 0
    lines = answer.out.splitlines()
    assert lines[1].split() == ["purged", "old"]
    assert lines[2].startswith("kept          waits  (an interrupt waits")
    assert lines[3].startswith("purged 2 messages from 1 of 3 threads, ")
    assert answer.err == ""
    assert _holds(path, "OLDWORD") == []
    assert _holds(path, "OLDWAIT")
    assert _holds(path, "NEWWORD")
    assert on("--older-than", "30d").out.splitlines()[-1].startswith("purged 0 messages")


def test_a_dry_run_says_the_same_and_writes_nothing(on, path):
    before = path.read_bytes()
    dry = json.loads(on("--older-than", "30d", "--dry-run", "--json").out)
    assert path.read_bytes() == before
    table = on("--older-than", "30d", "--dry-run")
    assert "would purge   old" in table.out
    assert table.err == "dry run: nothing was written\n"
    live = json.loads(on("--older-than", "30d", "--json").out)
    assert live.pop("dry_run") is False
    assert dry.pop("dry_run") is True
    assert live.pop("duration_seconds") >= 0
    assert dry.pop("duration_seconds") >= 0
    assert dry == live
    assert live["purged_thread_ids"] == ["old"]


def test_a_thread_that_cannot_be_read_is_told_by_the_exit_status(on, path):
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'new'")
    conn.close()
    answer = on("--older-than", "30d")
    assert answer.status == 1
    assert "failed        new  (" in answer.out
    assert "not for all" in answer.err
    assert _holds(path, "OLDWORD") == []


@pytest.mark.parametrize("words", [(), ("--older-than", "0"), ("--older-than", "old")])
def test_wrong_usage_touches_nothing(on, path, words):
    before = path.read_bytes()
    answer = on(*words)
    assert (answer.status, answer.out) == (2, "")
    assert "--older-than" in answer.err
    assert path.read_bytes() == before


def test_a_word_after_dry_run_is_never_a_live_purge(on, path):
    before = path.read_bytes()
    for words in (("--", "help"), ("help",), ("--dry-run",)):
        assert on("--older-than", "30d", "--dry-run", *words).status == 2
    assert path.read_bytes() == before


def test_a_file_that_does_not_exist_is_not_made(call, tmp_path):
    typo = tmp_path / "typo.db"
    answer = call(
        "purge-messages", "--backend", "sqlite", "--dsn", str(typo), "--older-than", "30d"
    )
    assert answer.status == 1
    assert not typo.exists()


def test_postgres(call, pg_dsn):
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        _fill(saver)
    for thread_id in ("old", "waits"):
        shift_postgres(pg_dsn, thread_id, -40 * DAY)
    answer = call("purge-messages", "--backend", "postgres", "--dsn", pg_dsn, "--older-than", "30d")
    assert (answer.status, answer.err) == (0, "")
    with psycopg.connect(pg_dsn) as conn:
        blobs = conn.execute("SELECT blob FROM checkpoint_blobs WHERE blob IS NOT NULL").fetchall()
        blobs += conn.execute("SELECT blob FROM checkpoint_writes").fetchall()
    assert not [blob for (blob,) in blobs if b"OLDWORD" in blob]
    assert [blob for (blob,) in blobs if b"NEWWORD" in blob]
    assert [blob for (blob,) in blobs if b"OLDWAIT" in blob]


@pytest.fixture
def tenant_schema(pg_dsn: str) -> Iterator[str]:
    yield "purged"
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA IF EXISTS purged CASCADE")


def test_a_saver_of_every_tenant_is_gone_through_tenant_by_tenant(pg_dsn, tenant_schema):
    """One thread id in two tenants: each tenant has its own result."""
    now = [1_704_067_200.0]
    options: Any = {"schema": tenant_schema, "tenant": None, "clock": lambda: now[0]}
    with TenantPostgresSaver.from_conn_string(pg_dsn, **options) as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                _say(saver, "t", f"OLDWORD {tenant}")
        now[0] += 40 * DAY
        with saver.tenant_scope("b"):
            _say(saver, "young", "NEWWORD")
        month = timedelta(days=30)
        assert tenants_of(saver) == ["a", "b"]
        done = {tenant: purge(saver, tenant, month, dry_run=False) for tenant in tenants_of(saver)}
        assert {tenant: one.thread_count for tenant, one in done.items()} == {"a": 1, "b": 2}
        assert all(one.purged_thread_ids == ["t"] for one in done.values())
        with saver.tenant_scope("b"):
            assert tenants_of(saver) == [None]
            assert purge(saver, None, month, dry_run=False).purged_thread_ids == []
