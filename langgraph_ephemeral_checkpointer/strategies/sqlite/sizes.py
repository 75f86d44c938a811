"""How much threads take in the tables of the SQLite savers."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_ephemeral_checkpointer.strategies.base import Size
from langgraph_ephemeral_checkpointer.strategies.rows import sizes_of
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import SqlPlan, select

# The length of a BLOB is in the header of its row: the value itself is not read.
_SIZES_OF = {
    "checkpoints": "coalesce(length(checkpoint), 0) + coalesce(length(metadata), 0)",
    "writes": "coalesce(length(value), 0)",
}
_SIZE_OF = """
    SELECT thread_id, count(*), sum({size}) FROM {table}
    WHERE thread_id IN ({{marks}}) GROUP BY thread_id
"""


def measure(ids: Sequence[str]) -> SqlPlan[dict[str, Size]]:
    """Add up the lengths of what is stored."""
    found = {}
    for table, size in _SIZES_OF.items():
        found[table] = yield from select(_SIZE_OF.format(table=table, size=size), ids)
    return sizes_of(found)
