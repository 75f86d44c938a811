"""Postgres on the command line: sweeps, and every way in which a server can fail."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.conninfo import make_conninfo

from tests.support.program import HOUR, age, graph, put, run_threads

RULE = ["--idle-ttl", "1h"]


@pytest.fixture
def database(pg_dsn):
    """A database of three threads: idle, fresh, and waiting for a human."""
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        run_threads(saver, "idle", "fresh")
        run_threads(saver, "waiting", text="ask")
    with psycopg.connect(pg_dsn) as connection:
        age(connection, "idle", 3 * HOUR, writes="checkpoint_writes")
        age(connection, "waiting", 2 * HOUR, writes="checkpoint_writes")
    return pg_dsn


def rows_in(dsn, table="checkpoints"):
    with psycopg.connect(dsn) as connection:
        sql = f"SELECT thread_id, count(*) FROM {table} GROUP BY thread_id"
        return dict(connection.execute(sql).fetchall())


def postgres(name, dsn, *more):
    return [name, "--backend", "postgres", "--dsn", dsn, *RULE, *more]


def test_status_dry_run_sweep_and_status_again(call, database, monkeypatch):
    monkeypatch.setenv("LGEC_DSN", database)

    def told(name, *more):
        answer = call(name, "--backend", "postgres", *RULE, *more)
        assert answer.status == 0, answer.err
        return answer

    lines = told("status", "--json").out.splitlines()
    before = {one["thread_id"]: one for one in map(json.loads, lines)}
    assert before["idle"]["reason"] == "idle_ttl"
    assert before["waiting"]["kept"] == "interrupted"
    assert before["fresh"]["expired"] is False
    rows = rows_in(database)
    dry = json.loads(told("sweep", "--dry-run", "--json").out)
    assert dry["deleted_thread_ids"] == ["idle"]
    assert rows_in(database) == rows
    swept = told("sweep", "--coordinate")
    assert swept.err == "rules: every thread: deleted when idle for 1 hour\n"
    assert "deleted       idle_ttl         idle" in swept.out
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        assert set(rows_in(database, table)) <= {"fresh", "waiting"}
    after = told("status")
    assert "idle\n" not in after.out
    assert after.err == "2 threads: 0 expired, 1 interrupted, 0 of unknown age\n"
    with PostgresSaver.from_conn_string(database) as saver:
        assert graph(saver).get_state({"configurable": {"thread_id": "waiting"}}).interrupts


def test_another_instance_at_work_is_said_and_is_no_failure(call, database):
    key = "SELECT 1279739203::bigint << 32 | 'checkpoints'::regclass::oid::bigint"
    with psycopg.connect(database, autocommit=True) as rival:
        rival.execute(f"SELECT pg_advisory_lock(({key}))")
        answer = call(*postgres("sweep", database, "--coordinate"))
        assert answer.status == 0
        assert "another instance is sweeping" in answer.err
        as_json = call(*postgres("sweep", database, "--coordinate", "--json"))
        assert json.loads(as_json.out)["lock_held_elsewhere"] is True
    assert "idle" in rows_in(database)


@pytest.fixture(params=["status", "sweep"])
def on(request, call):
    """Call one of the commands, and hold it to one line on stderr and status 1."""

    def on(dsn):
        answer = call(*postgres(request.param, dsn))
        assert answer.status == 1
        assert answer.out == ""
        assert answer.err.count("\n") == 1
        return answer.err

    return on


def test_a_server_that_does_not_listen(on):
    assert "Connection refused" in on("host=127.0.0.1 port=1")


def test_a_server_that_never_answers_is_given_up(on):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        assert "timeout" in on(f"host=127.0.0.1 port={port} connect_timeout=2")
    assert time.monotonic() - started < 20


def test_a_server_that_is_none(on):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            peer, _ = server.accept()
            peer.recv(100)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert "cannot connect" in on(f"host=127.0.0.1 port={server.getsockname()[1]}")
        thread.join()


def test_a_host_that_does_not_exist(on):
    assert "cannot connect" in on("postgresql://nowhere.invalid/db")


def test_a_database_or_a_role_that_does_not_exist(on, pg_dsn):
    assert '"nothing_here" does not exist' in on(make_conninfo(pg_dsn, dbname="nothing_here"))
    assert '"nobody_here" does not exist' in on(make_conninfo(pg_dsn, user="nobody_here"))


@pytest.fixture
def schema(pg_dsn):
    """Make an empty schema, and give a DSN that looks nowhere else."""
    name = f"s_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        yield make_conninfo(pg_dsn, options=f"-csearch_path={name}")
        connection.execute(f"DROP SCHEMA {name} CASCADE")


def test_a_database_without_the_tables_is_left_as_it_is(on, schema):
    assert "no tables of PostgresSaver" in on(schema)
    with psycopg.connect(schema) as connection:
        sql = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()"
        assert connection.execute(sql).fetchone() == (0,)


def test_tables_of_another_layout_are_left_as_they_are(on, schema):
    """So does ShallowPostgresSaver, whose checkpoints have no id."""
    with psycopg.connect(schema, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE checkpoints (thread_id text, checkpoint_ns text, checkpoint jsonb)"
        )
    assert "no tables of PostgresSaver" in on(schema)


def test_tables_in_a_schema_of_their_own_are_found_by_the_search_path(call, schema):
    with PostgresSaver.from_conn_string(schema) as saver:
        saver.setup()
        put(saver, ["old"], age_seconds=2 * HOUR)
    answer = call(*postgres("sweep", schema, "--json"))
    assert json.loads(answer.out)["deleted_thread_ids"] == ["old"]


def test_a_role_without_rights_is_told_so(on, pg_dsn):
    role = f"r_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        try:
            assert "permission denied" in on(make_conninfo(pg_dsn, user=role))
        finally:
            connection.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "command", ["status", "sweep", "sweep --dry-run", "orphans", "setup", "trash"]
)
def test_row_security_is_no_empty_database(call, database, command):
    role = f"r_{uuid.uuid4().hex[:8]}"
    before = rows_in(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        try:
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
                connection.execute(f"GRANT ALL ON {table} TO {role}")
                connection.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
            name, *more = command.split()
            rule = RULE if name in {"status", "sweep"} else []
            dsn = make_conninfo(database, user=role)
            answer = call(name, "--backend", "postgres", "--dsn", dsn, *rule, *more)
        finally:
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
                connection.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")
    assert answer.status == 1
    assert answer.out == ""
    assert "row security on public.checkpoints, public.checkpoint_blobs" in answer.err
    assert f"role '{role}'" in answer.err
    assert answer.err.count("\n") == 1
    assert rows_in(database) == before
