"""The tables of LangGraph's Postgres savers, and what they are like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
"""In the order in which rows are stored; they go in the other one.

Where somebody made writes refer to their checkpoint (a foreign key), no other order works.
"""

DIGEST = "coalesce(pg_catalog.sum(pg_catalog.hashtext(checkpoint_id)), 0)::bigint"
"""An aggregate that tells checkpoints apart from as many others, in whatever order they come."""

KEYS = {
    "checkpoints": ("thread_id", "checkpoint_ns", "checkpoint_id"),
    "checkpoint_blobs": ("thread_id", "checkpoint_ns", "channel", "version"),
    "checkpoint_writes": ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx"),
}
"""The columns that tell the rows of each table apart."""

_REST = {
    "checkpoints": ("parent_checkpoint_id", "checkpoint", "metadata"),
    "checkpoint_blobs": ("type", "blob"),
    "checkpoint_writes": ("channel", "type", "blob"),
}
_IS_NUMBER = "idx"

FOUND_COLUMNS = """
    ARRAY(SELECT ARRAY[a.attnum::pg_catalog.text, a.attname::pg_catalog.text,
                       t.typcategory::pg_catalog.text, t.typname::pg_catalog.text]
          FROM pg_catalog.pg_attribute AS a
          JOIN pg_catalog.pg_type AS t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
          WHERE a.attrelid OPERATOR(pg_catalog.=) pg_class.oid
            AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped)
"""
"""The columns of a row of ``pg_class``: number, name, category of the type, and the type."""

FOUND_KEYS = """
    ARRAY(SELECT i.indkey::pg_catalog.text FROM pg_catalog.pg_index AS i
          WHERE i.indrelid OPERATOR(pg_catalog.=) pg_class.oid AND i.indisunique AND i.indisvalid
            AND i.indpred IS NULL AND i.indnkeyatts OPERATOR(pg_catalog.=) i.indnatts)
"""
"""The numbers of the columns of each unique index of a row of ``pg_class``."""


def what_is_foreign(
    table: str, columns: Iterable[Sequence[str]], keys: Iterable[str]
) -> str | None:
    """Say what shows that a table belongs to another program, or None where it is a saver's.

    Columns beside the savers' are no sign: some add their own.

    Args:
        table: One of :data:`TABLES`.
        columns: What :data:`FOUND_COLUMNS` gave.
        keys: What :data:`FOUND_KEYS` gave.
    """
    found = {name: (number, category, kind) for number, name, category, kind in columns}
    for column in (*KEYS[table], *_REST[table]):
        if column not in found:
            return f"it has no column {column!r}"
    for column in KEYS[table]:
        _, category, kind = found[column]
        wanted = "N" if column == _IS_NUMBER else "S"
        if category != wanted:
            needs = "a number" if wanted == "N" else "text"
            return f"its column {column!r} is of type {kind}, which should be {needs}"
    key = {found[column][0] for column in KEYS[table]}
    if not any(set(one.split()) == key for one in keys):
        return f"its columns {', '.join(KEYS[table])} are not its key"
    return None
