"""The birth time of a trimmed thread: in ``checkpoints.type``, which no saver reads or writes."""

from __future__ import annotations

from collections.abc import Iterable

from langgraph_ephemeral_checkpointer.drivers.text_arrays import text_array
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement

POSTGRES_PREFIX = "born:"
"""What a marker in ``checkpoints.type`` begins with."""


def postgres_birth(type_column: str) -> str:
    """Return a SQL expression: the birth a root checkpoint is marked with, or NULL.

    Args:
        type_column: The ``type`` column of the thread's oldest root checkpoint, qualified.
    """
    return (
        f"CASE WHEN starts_with({type_column}, '{POSTGRES_PREFIX}') "
        f"THEN substr({type_column}, {len(POSTGRES_PREFIX) + 1}) END"
    )


def mark_postgres(births: Iterable[tuple[str, str, str]]) -> Plan[Statement, None]:
    """Leave markers.

    Args:
        births: Thread id, id of its oldest root checkpoint that stays, birth.
    """
    columns = list(zip(*births, strict=True))
    if columns:
        threads, oldest, values = columns
        marks = (POSTGRES_PREFIX + value for value in values)
        yield Statement(
            """
            UPDATE checkpoints c SET type = m.type
            FROM unnest(%s::text[], %s::text[], %s::text[]) AS m (thread_id, checkpoint_id, type)
            WHERE c.thread_id = m.thread_id AND c.checkpoint_ns = ''
            AND c.checkpoint_id = m.checkpoint_id
            """,
            (text_array(threads), text_array(oldest), text_array(marks)),
            fetch=False,
        )
