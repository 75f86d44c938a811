"""How much threads take in the tables of the Postgres savers."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.drivers.text_arrays import Ids
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.strategies.base import Size
from langgraph_ephemeral_checkpointer.strategies.postgres.access import SqlPlan
from langgraph_ephemeral_checkpointer.strategies.rows import sizes_of

# The size as stored, compressed or not: what is kept out of line is not read for it.
_SIZES_OF = {
    table: f"""
        SELECT thread_id, count(*), sum({size}) FROM {table}
        WHERE thread_id = ANY(%s::text[]) GROUP BY thread_id
    """
    for table, size in (
        ("checkpoints", "pg_column_size(checkpoint) + pg_column_size(metadata)"),
        ("checkpoint_blobs", "coalesce(pg_column_size(blob), 0)"),
        ("checkpoint_writes", "pg_column_size(blob)"),
    )
}


def measure(ids: Ids) -> SqlPlan[dict[str, Size]]:
    """Add up the sizes of what is stored."""
    found = {}
    for table, sql in _SIZES_OF.items():
        found[table] = yield Statement(sql, (ids.array,))
    return sizes_of(found)
