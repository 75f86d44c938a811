"""The birth time of a trimmed thread, kept where LangGraph neither reads nor writes.

A thread's age is that of its first checkpoint, and trimming takes that one away. So the
trim leaves a marker with the oldest root checkpoint it keeps: the id of the first checkpoint,
which carries its time (or the time itself where the id carries none). An earlier marker is
carried over. A marker counts only while the checkpoint it was left with is stored, and it
goes when the thread is deleted, by whatever means.

* Postgres: the column ``checkpoints.type`` of that row, which no saver reads or writes.
* SQLite: a row in ``writes`` under a namespace that no graph has.
* InMemorySaver: an attribute of ours on the saver.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_id, time_of_saved
from langgraph_ephemeral_checkpointer.drivers.text_arrays import text_array
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement

POSTGRES_PREFIX = "born:"
"""What a marker in ``checkpoints.type`` begins with."""

SQLITE_NAMESPACE = "__lgec_birth__"
"""The ``checkpoint_ns``, and the ``channel``, of a marker in ``writes``.

Whoever looks for writes without a checkpoint has to leave these rows alone.
"""

_MEMORY_ATTRIBUTE = "_lgec_births"


def has_time(checkpoint_id: str) -> bool:
    """Whether a checkpoint id carries its time (a UUID of version 6 or 7)."""
    return time_of_id(checkpoint_id) is not None


def time_of_birth(marker: str | None) -> float | None:
    """Return the time a marker tells, in seconds since the epoch; None where there is none."""
    if marker is None:
        return None
    return time_of_saved(marker, marker)


def birth_of(first_id: str, ts: str | None) -> str:
    """Return what a marker says: an id that carries its time, else the checkpoint's ``ts``.

    Args:
        first_id: The id of the thread's first checkpoint.
        ts: Its ``ts`` (ISO 8601), if known.
    """
    return first_id if has_time(first_id) or not ts else ts


# --- Postgres ---------------------------------------------------------------------------


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


# --- SQLite -----------------------------------------------------------------------------


def sqlite_birth_of(thread_id: str) -> str:
    """Return a SQL scalar subquery: the birth of a thread, or NULL where it has no marker.

    Args:
        thread_id: A SQL expression for the thread's id.
    """
    return (
        f"(SELECT lgec_b.task_id FROM writes lgec_b WHERE lgec_b.thread_id = {thread_id} "
        f"AND lgec_b.checkpoint_ns = '{SQLITE_NAMESPACE}' AND EXISTS ("
        "SELECT 1 FROM checkpoints lgec_c WHERE lgec_c.thread_id = lgec_b.thread_id "
        "AND lgec_c.checkpoint_ns = '' AND lgec_c.checkpoint_id = lgec_b.checkpoint_id) "
        "ORDER BY lgec_b.checkpoint_id LIMIT 1)"
    )


def mark_sqlite(thread_id: str, oldest_root_id: str, birth: str) -> Plan[Statement, None]:
    """Leave the marker of a thread, in place of an earlier one.

    Args:
        thread_id: The thread.
        oldest_root_id: The id of its oldest root checkpoint that stays.
        birth: What the marker says.
    """
    yield Statement(
        "DELETE FROM writes WHERE thread_id = ? AND checkpoint_ns = ?",
        (thread_id, SQLITE_NAMESPACE),
        fetch=False,
    )
    yield Statement(
        "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, "
        "type, value) VALUES (?, ?, ?, ?, 0, ?, 'null', x'')",
        (thread_id, SQLITE_NAMESPACE, oldest_root_id, birth, SQLITE_NAMESPACE),
        fetch=False,
    )


# --- InMemorySaver ----------------------------------------------------------------------


def memory_birth_of(saver: Any, thread_id: Hashable) -> str | None:
    """Return the birth of a thread, or None where it has no marker that counts.

    Args:
        saver: The InMemorySaver.
        thread_id: The thread, as the saver's own key.
    """
    marker = getattr(saver, _MEMORY_ATTRIBUTE, {}).get(thread_id)
    # Looked up without subscripts: the saver's dictionaries make what they lack.
    if marker is None or marker[0] not in saver.storage.get(thread_id, {}).get("", {}):
        return None
    birth: str = marker[1]
    return birth


def forget_memory(saver: Any, thread_id: Hashable) -> None:
    """Drop the marker of a thread that was deleted."""
    getattr(saver, _MEMORY_ATTRIBUTE, {}).pop(thread_id, None)


def mark_memory(saver: Any, thread_id: Hashable, oldest_root_id: str, birth: str) -> None:
    """Leave the marker of a thread, in place of an earlier one; as :func:`mark_sqlite`."""
    births = getattr(saver, _MEMORY_ATTRIBUTE, None)
    if births is None:
        births = {}
        setattr(saver, _MEMORY_ATTRIBUTE, births)
    births[thread_id] = (oldest_root_id, birth)
