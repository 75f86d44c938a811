"""A prune on Postgres reads tables ahead, by bitmaps, only where the buffers cannot hold them."""

from __future__ import annotations

import psycopg
import pytest

from langgraph_ephemeral_checkpointer.strategies.postgres.prune_statements import HASHED

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


@pytest.fixture
def conn(pg_dsn):
    """A connection whose tables are empty ones of its own, in a transaction."""
    with psycopg.connect(pg_dsn) as conn:
        for table in TABLES:  # a tenth of a page is used: a row takes a page
            conn.execute(f"CREATE TEMP TABLE {table} (filler text) WITH (fillfactor = 10)")
        yield conn
        conn.rollback()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("bitmaps", ["on", "off"])
def test_large_tables_are_looked_up_as_the_server_is_set(conn, table, bitmaps):
    conn.execute(f"SET LOCAL enable_bitmapscan = {bitmaps}")
    conn.execute(HASHED)
    assert conn.execute("SHOW enable_bitmapscan").fetchone() == ("off",)
    conn.execute(f"SET LOCAL enable_bitmapscan = {bitmaps}")
    conn.execute(
        f"INSERT INTO {table} SELECT repeat('x', 800) FROM generate_series(1, "
        "pg_size_bytes(current_setting('shared_buffers'))"
        " / current_setting('block_size')::bigint)"
    )
    conn.execute(HASHED)
    assert conn.execute("SHOW enable_bitmapscan").fetchone() == (bitmaps,)
