"""How much one tenant's threads take."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_ephemeral_checkpointer.strategies.base import Size
from langgraph_ephemeral_checkpointer.strategies.rows import sizes_of
from langgraph_ephemeral_checkpointer.strategies.tenant.access import Batches, TenantTables
from langgraph_ephemeral_checkpointer.tenancy.arrays import Texts

_SIZES_OF = tuple(
    f"""
    SELECT thread_id, count(*), sum(pg_column_size({column})) FROM {table}
    WHERE tenant = %(tenant)s::text AND thread_id = ANY (%(threads)s::text[]) GROUP BY thread_id
    """
    for table, column in (("{checkpoints}", "state"), ("{blobs}", "blob"), ("{writes}", "blob"))
)


def measure(tables: TenantTables, ids: Sequence[str]) -> Batches[dict[str, Size]]:
    """Add up rows and bytes; what is kept out of line is not read for it."""
    threads = Texts(ids)
    *_, checkpoints, blobs, writes = yield [
        *tables.begin(),
        *(tables.statement(template, threads=threads) for template in _SIZES_OF),
    ]
    found = (checkpoints, blobs, writes)
    return sizes_of(dict(zip(tables.names.tables, found, strict=True)))
