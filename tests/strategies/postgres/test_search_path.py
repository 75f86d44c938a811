"""Functions, operators and types that somebody planted where the sweeper's search path looks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.types import Command
from psycopg import sql

from langgraph_ephemeral_checkpointer import AuditLog, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.retention import purge_messages
from langgraph_ephemeral_checkpointer.strategies.tenant.migrate import migrate_from_postgres
from langgraph_ephemeral_checkpointer.testing import save_thread
from tests.support.planted import path_of, plant
from tests.support.tenant_graphs import config, everything_graph, say

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
DAY = 86_400.0
NOW = 1_750_000_000.0
IDLE = TTLPolicy(idle_ttl_seconds=DAY)
FULL = TTLPolicy(
    idle_ttl_seconds=10 * DAY, interrupted_ttl_seconds=30 * DAY, max_checkpoints_per_thread=1
)


@pytest.fixture(scope="module")
def planted(postgres_database: str) -> Iterator[str]:
    schema = "planted_for_sweeps"
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        plant(conn, schema)
        for table in TABLES:
            conn.execute(f"CREATE TABLE {schema}.{table} (LIKE public.{table} INCLUDING ALL)")
        yield schema
        conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


@pytest.fixture(params=["first", "behind", "with the tables"])
def place(request: pytest.FixtureRequest, planted: str, pg_dsn: str) -> Iterator[tuple[str, str]]:
    """The DSN of the sweeper, and the schema of the tables."""
    path, schema = {
        "first": (f"{planted},pg_catalog", planted),
        "behind": (f"public,{planted}", "public"),
        "with the tables": (planted, planted),
    }[request.param]
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        yield path_of(pg_dsn, path), schema
        for trash in ("lgec_trash", "lgec_restored"):
            found = conn.execute("SELECT to_regclass(%s)", [f"{schema}.{trash}"]).fetchone()
            assert found == (None,), "the trash was not torn down"


@pytest.fixture
def fill(pg_dsn: str, place: tuple[str, str]) -> Any:
    """Gives a function that stores threads: idle, waiting, living, and long ones."""
    schema = place[1]

    def fill() -> None:
        with PostgresSaver.from_conn_string(pg_dsn) as saver:
            for table in TABLES:
                saver.conn.execute(f"TRUNCATE {table}, {schema}.{table}")
            for thread in ("idle", "idle too"):
                save_thread(saver, thread, [NOW - 3 * DAY])
            save_thread(saver, "waits", [NOW - 3 * DAY], waiting=True)
            save_thread(saver, "lives", [NOW])
            save_thread(saver, "long", [NOW - n for n in range(5, 0, -1)])
            saver.conn.execute(
                "INSERT INTO checkpoint_writes (thread_id, checkpoint_id, task_id, idx, channel, "
                "blob) SELECT 'orphan', checkpoint_id, 't', 0, 'c', '' FROM checkpoints "
                "WHERE thread_id = 'idle'"
            )
            _move(saver.conn, schema)

    fill()
    return fill


def _move(conn: Any, schema: str) -> None:
    if schema != "public":
        for table in TABLES:
            conn.execute(f"INSERT INTO {schema}.{table} SELECT * FROM {table}")
            conn.execute(f"TRUNCATE {table}")


def test_a_sweep_calls_none(place: tuple[str, str], fill: Any, tmp_path: Path) -> None:
    """With and without reading what it deletes; trims, orphans, sizes and the lock."""
    log = AuditLog(tmp_path / "audit.jsonl")
    options: Any = {"clock": lambda: NOW, "enable_coordination": True}
    with PostgresSaver.from_conn_string(place[0]) as saver:
        for dry_run in (True, False):
            result = TTLSweeper(saver, FULL, audit_log=log, **options).sweep(dry_run=dry_run)
            assert result.errors == {}
            assert result.pruned_checkpoint_count == 4
            assert result.orphan_count == 1
        result = TTLSweeper(saver, IDLE, on_before_delete=lambda *_: None, **options).sweep()
        assert result.errors == {}
        assert sorted(result.deleted_thread_ids) == ["idle", "idle too"]
        fill()
        result = TTLSweeper(saver, IDLE, **options).sweep()
        assert result.errors == {}
        assert sorted(result.deleted_thread_ids) == ["idle", "idle too"]
        young = TTLPolicy(hard_age_ttl_seconds=2 * DAY)
        result = TTLSweeper(saver, young, **options).sweep()
        assert (result.errors, result.deleted_thread_ids) == ({}, ["waits"])


async def test_an_asynchronous_sweep_calls_none(place: tuple[str, str], fill: Any) -> None:
    async with AsyncPostgresSaver.from_conn_string(place[0]) as saver:
        result = await TTLSweeper(saver, FULL, clock=lambda: NOW, enable_coordination=True).asweep()
        assert (result.errors, result.pruned_checkpoint_count) == ({}, 4)
        result = await TTLSweeper(saver, IDLE, clock=lambda: NOW).asweep()
        assert sorted(result.deleted_thread_ids) == ["idle", "idle too"]


def test_the_trash_calls_none(place: tuple[str, str], fill: Any, pg_dsn: str) -> None:
    """Nor do its triggers, on the path of whoever saves."""
    dsn, schema = place
    with psycopg.connect(pg_dsn) as conn:
        ids = f"SELECT thread_id, checkpoint_id FROM {schema}.checkpoints"
        parents = dict(conn.execute(ids).fetchall())
    with PostgresSaver.from_conn_string(dsn) as saver:
        sweeper = TTLSweeper(saver, IDLE, grace_seconds=DAY, clock=lambda: NOW)
        sweeper.setup()
        sweeper.setup()
        try:
            result = sweeper.sweep()
            assert result.errors == {}
            assert sorted(result.deleted_thread_ids) == ["idle", "idle too"]
            assert len(sweeper.trash()) == 2
            # As a save would: of threads that are in the trash, and of one that is not.
            for n, level in enumerate(("READ COMMITTED", "REPEATABLE READ")):
                thread = ["idle", "idle too"][n]
                with saver.conn.transaction():
                    saver.conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
                    _save(saver.conn, schema, thread, parents[thread])
                    _save(saver.conn, schema, f"new {n}", "1")
            assert sweeper.trash() == []
            late = TTLSweeper(saver, IDLE, grace_seconds=DAY, clock=lambda: NOW + 9 * DAY)
            assert sorted(late.sweep().deleted_thread_ids) == ["lives", "long"]
            assert late.restore("lives").thread_id == "lives"
            assert late.empty_trash() == 1
        finally:
            sweeper.teardown(force=True)


def _save(conn: Any, schema: str, thread: str, parent: str) -> None:
    conn.execute(
        f"INSERT INTO {schema}.checkpoints (thread_id, checkpoint_id, parent_checkpoint_id, "
        f"checkpoint, metadata) VALUES ('{thread}', '1', '{parent}', '{{}}', '{{}}')"
    )
    conn.execute(
        f"INSERT INTO {schema}.checkpoint_writes (thread_id, checkpoint_id, task_id, idx, channel, "
        f"blob) VALUES ('{thread}', '1', 'task', 0, 'c', '')"
    )


def test_orphans_and_purges_call_none(place: tuple[str, str], pg_dsn: str, fill: Any) -> None:
    dsn, schema = place
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        graph = everything_graph(saver, note="no NUL")
        graph.invoke(say("hello"), config("talk"))
        graph.invoke(Command(resume="yes"), config("talk"))
        _move(saver.conn, schema)
    with PostgresSaver.from_conn_string(dsn) as saver:
        sweeper = TTLSweeper(saver, IDLE, clock=lambda: NOW)
        assert [one.thread_id for one in sweeper.orphans()] == ["orphan"]
        assert sweeper.delete_orphans() == 1
        result = purge_messages(
            saver, older_than=timedelta(seconds=1), clock=lambda: 4_000_000_000.0
        )
        assert (result.errors, result.purged_thread_ids) == ({}, ["talk"])


def test_a_migration_reads_past_them(place: tuple[str, str], fill: Any, make_saver: Any) -> None:
    with (
        PostgresSaver.from_conn_string(place[0]) as source,
        make_saver() as target,
    ):
        result = migrate_from_postgres(source, target, tenant="acme")
        assert result.errors == {}
        assert {"idle", "waits", "lives", "long"} <= {*result.copied}


def test_a_trigger_of_the_users_that_relies_on_the_path_is_told_how_not_to(
    pg_dsn: str,
) -> None:
    """Nothing is deleted then."""
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        save_thread(saver, "idle", [NOW - 3 * DAY])
        saver.conn.execute("CREATE TABLE noted (thread_id text)")
        saver.conn.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN INSERT INTO noted VALUES (OLD.thread_id); RETURN OLD; END$$"
        )
        saver.conn.execute(
            "CREATE TRIGGER note BEFORE DELETE ON checkpoints FOR EACH ROW EXECUTE FUNCTION note()"
        )
        try:
            sweeper = TTLSweeper(saver, IDLE, clock=lambda: NOW)
            result = sweeper.sweep()
            assert result.deleted_thread_ids == []
            assert "SET search_path" in " ".join(result.errors.values())
            saver.conn.execute("ALTER FUNCTION note() SET search_path = public")
            assert sweeper.sweep().deleted_thread_ids == ["idle"]
            assert saver.conn.execute("TABLE noted").fetchall() == [{"thread_id": "idle"}]
        finally:
            saver.conn.execute("DROP FUNCTION note() CASCADE")
            saver.conn.execute("DROP TABLE noted")
