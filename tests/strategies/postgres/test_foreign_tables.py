"""Tables of another program that have the names of the saver's are refused, and left alone."""

from __future__ import annotations

import time

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row

from langgraph_ephemeral_checkpointer import (
    StorageUnusableError,
    TTLPolicy,
    TTLSweeper,
    forecast,
    thread_statuses,
)
from langgraph_ephemeral_checkpointer.retention import purge_messages
from langgraph_ephemeral_checkpointer.strategies.tenant.migrate import migrate_from_postgres
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support.trash_graphs import config, plain_graph

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
POLICY = TTLPolicy(idle_ttl_seconds=60)


@pytest.fixture
def conn(pg_dsn):
    """A session that finds a copy of the saver's tables in a schema of its own."""
    options = {"autocommit": True, "row_factory": dict_row}
    with psycopg.connect(pg_dsn, options="-c search_path=other", **options) as conn:
        conn.execute("CREATE SCHEMA other")
        for table in TABLES:
            conn.execute(f"CREATE TABLE {table} (LIKE public.{table} INCLUDING ALL)")
        yield conn
        conn.execute("DROP SCHEMA other CASCADE")


def sweeper(conn, **options):
    return TTLSweeper(PostgresSaver(conn), POLICY, clock=lambda: time.time() + 3600, **options)


def in_the_schema(conn):
    return conn.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'other'::regnamespace "
        "UNION ALL SELECT tgname FROM pg_trigger WHERE tgrelid = 'other.checkpoints'::regclass "
        "ORDER BY 1"
    ).fetchall()


DOES = {
    "setup": lambda conn: sweeper(conn, grace_seconds=60).setup(),
    "ddl": lambda conn: sweeper(conn, grace_seconds=60).ddl(),
    "sweep": lambda conn: sweeper(conn).sweep(),
    "trim": lambda conn: TTLSweeper(
        PostgresSaver(conn), TTLPolicy(max_checkpoints_per_thread=1)
    ).sweep(),
    "orphans": lambda conn: sweeper(conn).orphans(),
    "status": lambda conn: list(thread_statuses(PostgresSaver(conn), POLICY)),
    "forecast": lambda conn: forecast(PostgresSaver(conn), [60]),
    "migrate": lambda conn: migrate_from_postgres(
        PostgresSaver(conn), TenantPostgresSaver(conn, schema="other", tenant="a")
    ),
    "purge": lambda conn: purge_messages(PostgresSaver(conn), 60),
}
UUID = "USING '00000000-0000-0000-0000-000000000000'::uuid"


@pytest.mark.parametrize("does", DOES.values(), ids=DOES)
def test_whatever_is_done_on_keys_of_uuids_tells_table_and_column(conn, does):
    for table in TABLES:
        conn.execute(f"ALTER TABLE {table} ALTER thread_id TYPE uuid {UUID}")
    before = in_the_schema(conn)
    with pytest.raises(StorageUnusableError, match=r"other\.checkpoints .*'thread_id'.* uuid"):
        does(conn)
    assert in_the_schema(conn) == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            f"ALTER TABLE checkpoints ALTER checkpoint_id TYPE uuid {UUID}",
            r"other\.checkpoints .*'checkpoint_id'",
        ),
        (
            (
                "ALTER TABLE checkpoint_blobs ALTER checkpoint_ns DROP DEFAULT, "
                "ALTER checkpoint_ns TYPE integer USING 0"
            ),
            r"other\.checkpoint_blobs .*'checkpoint_ns'",
        ),
        (
            "ALTER TABLE checkpoint_writes ALTER idx TYPE text",
            r"other\.checkpoint_writes .*'idx'",
        ),
        ("ALTER TABLE checkpoints DROP metadata", r"other\.checkpoints .*'metadata'"),
        (
            "ALTER TABLE checkpoint_writes RENAME channel TO name",
            r"other\.checkpoint_writes .*'channel'",
        ),
        (
            "ALTER TABLE checkpoints DROP CONSTRAINT checkpoints_pkey",
            r"other\.checkpoints .*key",
        ),
        (
            (
                "ALTER TABLE checkpoints DROP CONSTRAINT checkpoints_pkey, ADD tenant text, "
                "ADD PRIMARY KEY (tenant, thread_id, checkpoint_ns, checkpoint_id)"
            ),
            r"other\.checkpoints .*key",
        ),
    ],
)
def test_what_is_not_the_savers_is_named(conn, change, told):
    conn.execute(change)
    before = in_the_schema(conn)
    for does in (DOES["setup"], DOES["sweep"]):
        with pytest.raises(StorageUnusableError, match=told):
            does(conn)
    assert in_the_schema(conn) == before


@pytest.mark.parametrize(
    "changes",
    [
        ["ALTER TABLE checkpoint_writes DROP task_path"],  # as LangGraph.js makes them
        [f"ALTER TABLE {table} ALTER thread_id TYPE varchar(255)" for table in TABLES],
        [f"ALTER TABLE {table} ADD customer text" for table in TABLES],
        [
            (
                "ALTER TABLE checkpoints DROP CONSTRAINT checkpoints_pkey, "
                "ADD UNIQUE (checkpoint_id, thread_id, checkpoint_ns)"
            )
        ],
        [
            "CREATE DOMAIN thread AS text CHECK (VALUE <> '')",
            "ALTER TABLE checkpoints ALTER thread_id TYPE thread",
        ],
    ],
    ids=["js", "varchar", "more columns", "another order of the key", "domain"],
)
def test_what_differs_and_is_the_savers_nevertheless_is_swept(conn, changes):
    plain_graph(PostgresSaver(conn)).invoke({"turns": []}, config("t"))
    for change in changes:
        conn.execute(change)
    assert sweeper(conn).sweep().deleted_thread_ids == ["t"]
    sweeper(conn, grace_seconds=60).setup()
