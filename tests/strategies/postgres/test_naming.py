"""Statements get the schema that the search path found; what only looks like a table does not."""

from __future__ import annotations

import psycopg
import pytest

from langgraph_ephemeral_checkpointer.strategies.postgres.naming import qualified


@pytest.mark.parametrize(
    ("bare", "full"),
    [
        ("DELETE FROM checkpoints c USING s", "DELETE FROM x.checkpoints c USING s"),
        ("FROM\n    checkpoint_blobs\nWHERE", "FROM\n    x.checkpoint_blobs\nWHERE"),
        ("UPDATE checkpoint_writes w SET", "UPDATE x.checkpoint_writes w SET"),
        (
            "LOCK TABLE checkpoints, checkpoint_blobs,\ncheckpoint_writes IN",
            "LOCK TABLE x.checkpoints, x.checkpoint_blobs,\nx.checkpoint_writes IN",
        ),
        ("'checkpoints'::regclass", "'x.checkpoints'::regclass"),
        ("count(*) AS checkpoints, checkpoints.id", "count(*) AS checkpoints, checkpoints.id"),
        ("FROM checkpoints_old", "FROM checkpoints_old"),
        ("FROM page, checkpoints_of", "FROM page, checkpoints_of"),
    ],
)
def test_tables_are_named_in_full(bare: str, full: str) -> None:
    assert qualified(bare, "x") == full


def test_a_schema_of_any_name_is_named(pg_dsn: str) -> None:
    odd = '"o\'dd "" %s %(x)s"'
    text = qualified("SELECT count(*) FROM checkpoints WHERE %s <> 'checkpoints'::regclass", odd)
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {odd}")
        try:
            conn.execute(f"CREATE TABLE {odd}.checkpoints ()")
            assert conn.execute(text, (0,)).fetchone() == (0,)
        finally:
            conn.execute(f"DROP SCHEMA {odd} CASCADE")
