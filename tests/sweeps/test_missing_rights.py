"""Rights that a role lacks are one error of the sweep; a locked row is a busy thread."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from psycopg.conninfo import make_conninfo

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from tests.support.program import HOUR, put, run

IDLE = TTLPolicy(idle_ttl_seconds=60)
MANY = 30


@pytest.fixture
def reader(pg_dsn):
    """A role that may only read the checkpoints of many idle threads."""
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        put(saver, [f"t{number}" for number in range(MANY)], age_seconds=HOUR)
        put(saver, [f"t{number}" for number in range(MANY)], age_seconds=HOUR - 1)
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        schema = owner.execute("SELECT current_schema()").fetchone()[0]
        role = f"reader_of_{schema}"
        owner.execute(f"CREATE ROLE {role} LOGIN")
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        try:
            yield make_conninfo(pg_dsn, user=role)
        finally:
            owner.execute(f"DROP OWNED BY {role}")
            owner.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "policy", [IDLE, TTLPolicy(max_checkpoints_per_thread=1)], ids=["delete", "prune"]
)
def test_a_role_that_only_reads_fails_the_sweep_once(reader, policy, caplog):
    with PostgresSaver.from_conn_string(reader) as saver:
        result = TTLSweeper(saver, policy, batch_size=10).sweep()
    assert "permission denied" in result.errors[""]
    assert "a sweep needs SELECT, DELETE" in result.errors[""]
    assert len(caplog.messages) <= 1
    assert len(result.errors) <= 11  # the sweep, and the batch it was in


def test_run_once_of_such_a_role_ends_with_1_and_a_handful_of_lines(reader, tmp_path):
    words = ("run", "--once", "--backend", "postgres", "--idle-ttl", "1s")
    answer = run(*words, cwd=tmp_path, LGEC_DSN=reader)
    assert answer.returncode == 1
    assert "permission denied" in answer.stderr
    assert len(answer.stderr.splitlines()) < 5


def refuse_deletes(path):
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(
            "CREATE TRIGGER no BEFORE DELETE ON checkpoints BEGIN SELECT raise(ABORT, 'no'); END"
        )


def test_run_once_ends_with_1_where_every_delete_fails_and_does_not_flood_the_log(tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, [f"t{number:02}" for number in range(MANY)], age_seconds=HOUR)
    refuse_deletes(path)
    words = ("run", "--once", "--backend", "sqlite", "--idle-ttl", "1s", "--dsn", str(path))
    answer = run(*words, cwd=tmp_path)
    assert answer.returncode == 1
    lines = answer.stderr.splitlines()
    assert len(lines) < 30
    assert f"and {MANY - 10} more" in answer.stderr


def test_a_locked_row_that_is_not_the_first_makes_its_thread_busy(pg_dsn):
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        for _ in range(3):
            put(saver, ["a", "b"], age_seconds=HOUR)
    with psycopg.connect(pg_dsn) as rival, PostgresSaver.from_conn_string(pg_dsn) as saver:
        rival.execute(
            "SELECT FROM checkpoints WHERE ctid = (SELECT ctid FROM checkpoints "
            "WHERE thread_id = 'a' ORDER BY checkpoint_id DESC LIMIT 1) FOR UPDATE"
        )
        result = TTLSweeper(saver, IDLE).sweep()
        assert result.deleted_thread_ids == ["b"]
        assert (result.kept, result.errors) == ({"a": "busy"}, {})


def test_a_locked_row_only_puts_a_prune_off(pg_dsn):
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        for age in (HOUR, HOUR - 1, HOUR - 2):
            put(saver, ["a", "b"], age_seconds=age)
    with psycopg.connect(pg_dsn) as rival, PostgresSaver.from_conn_string(pg_dsn) as saver:
        rival.execute(
            "SELECT FROM checkpoints WHERE ctid = (SELECT ctid FROM checkpoints "
            "WHERE thread_id = 'a' ORDER BY checkpoint_id OFFSET 1 LIMIT 1) FOR UPDATE"
        )
        result = TTLSweeper(saver, TTLPolicy(max_checkpoints_per_thread=1)).sweep()
        assert result.pruned_checkpoint_count == 2
        assert result.errors == {}
