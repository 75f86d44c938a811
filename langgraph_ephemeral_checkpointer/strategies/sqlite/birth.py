"""The birth time of a trimmed thread: a row in ``writes`` in a namespace that no graph has."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement

SQLITE_NAMESPACE = "__lgec_birth__"
"""The ``checkpoint_ns``, and the ``channel``, of a marker in ``writes``.

Whoever looks for writes without a checkpoint has to leave these rows alone.
"""


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
