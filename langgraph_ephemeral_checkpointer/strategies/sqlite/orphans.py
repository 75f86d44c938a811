"""Orphans in the tables of the SQLite savers, whose channel values live in their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at, is_uuid6
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.langgraph_names import TASKS
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import SqlPlan, in_parts
from langgraph_ephemeral_checkpointer.strategies.sqlite.birth import SQLITE_NAMESPACE

_HAS_TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'writes'"

# A note of a thread's birth, which a prune leaves among the writes, belongs to a root checkpoint.
_PARENT = f"""
    SELECT 1 FROM checkpoints AS c WHERE c.thread_id = w.thread_id AND c.checkpoint_ns =
        CASE w.checkpoint_ns WHEN '{SQLITE_NAMESPACE}' THEN '' ELSE w.checkpoint_ns END
    AND c.checkpoint_id = w.checkpoint_id
"""

# The index of either primary key answers all of it.
_GROUPS = f"""
    SELECT w.*, EXISTS ({_PARENT}) FROM (
        SELECT thread_id, checkpoint_ns, checkpoint_id FROM writes {{after}}
        GROUP BY thread_id, checkpoint_ns, checkpoint_id
        ORDER BY thread_id, checkpoint_ns, checkpoint_id LIMIT ?
    ) AS w
"""
_AFTER = "WHERE (thread_id, checkpoint_ns, checkpoint_id) > (?, ?, ?)"

# Joined, since SQLite finds no index for "(a, b, c) IN (VALUES ...)" and reads the whole table.
_ORPHANED = f"""
    FROM (VALUES {{marks}}) AS k CROSS JOIN writes AS w
    WHERE w.thread_id = k.column1 AND w.checkpoint_ns = k.column2 AND w.checkpoint_id = k.column3
    AND NOT EXISTS ({_PARENT})
    AND NOT (w.channel = '{TASKS}' AND EXISTS (
        SELECT 1 FROM checkpoints AS c WHERE c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.parent_checkpoint_id = w.checkpoint_id))
"""


def find(before: float, after: tuple[str, str, str] | None, limit: int) -> SqlPlan[OrphanPage]:
    """Look at the writes of the next ``limit`` checkpoints.

    Args:
        before: Ids of this moment and later are young, in seconds since the epoch.
        after: None, or the key behind which to begin.
        limit: Keys to look at.
    """
    if (yield Statement(_HAS_TABLES))[0][0] == 0:
        return OrphanPage(())
    where, params = (_AFTER, after) if after else ("", ())
    groups = yield Statement(_GROUPS.format(after=where), (*params, limit))
    cutoff = first_id_at(before)
    missing = [
        (thread_id, namespace, checkpoint_id)
        for thread_id, namespace, checkpoint_id, has_parent in groups
        if not has_parent and is_uuid6(checkpoint_id) and checkpoint_id < cutoff
    ]
    found: list[Orphan] = []
    for part, marks in in_parts(chain.from_iterable(missing), "(?, ?, ?)"):
        rows = yield Statement(
            "SELECT w.thread_id, w.checkpoint_ns, w.checkpoint_id, count(*) "
            f"{_ORPHANED.format(marks=marks)} "
            "GROUP BY w.thread_id, w.checkpoint_ns, w.checkpoint_id",
            part,
        )
        found += (
            Orphan("writes", thread_id, namespace, checkpoint_id, "", count)
            for thread_id, namespace, checkpoint_id, count in rows
        )
    return OrphanPage(found, tuple(groups[-1][:3]) if len(groups) == limit else None)


def delete(orphans: Sequence[Orphan]) -> SqlPlan[int]:
    """Delete what is still an orphan, and count the rows."""
    removed = 0
    keys = chain.from_iterable((o.thread_id, o.checkpoint_ns, o.name) for o in orphans)
    for part, marks in in_parts(keys, "(?, ?, ?)"):
        removed += yield Statement(
            f"DELETE FROM writes WHERE rowid IN (SELECT w.rowid {_ORPHANED.format(marks=marks)})",
            part,
            fetch=False,
        )
    return removed
