"""Orphans in the tables of the Postgres savers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.langgraph_names import TASKS
from langgraph_ephemeral_checkpointer.strategies.orphans import (
    Orphan,
    OrphanKind,
    OrphanPage,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.find import ODD, no_uuid6

T = TypeVar("T")
SqlPlan: TypeAlias = Plan[Statement, T]
Cursor: TypeAlias = tuple[OrphanKind, str | None, str | None, str | None]
"""The kind that is being looked at, and the key behind which to go on; no key at its beginning."""

_PARENTLESS = f"""
    NOT EXISTS (
        SELECT 1 FROM checkpoints AS c WHERE c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)
    AND NOT (w.channel = '{TASKS}' AND EXISTS (
        SELECT 1 FROM checkpoints AS c WHERE c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.parent_checkpoint_id = w.checkpoint_id))
"""

# A page follows the primary key; each key is one look-up by key in the checkpoints. The last
# row tells where the page ends.
_WRITES = f"""
    WITH page AS MATERIALIZED (
        SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoint_writes
        WHERE %(thread)s::text IS NULL
           OR (thread_id, checkpoint_ns, checkpoint_id) > (%(thread)s, %(ns)s, %(name)s)
        GROUP BY thread_id, checkpoint_ns, checkpoint_id
        ORDER BY thread_id, checkpoint_ns, checkpoint_id LIMIT %(limit)s
    ), old AS MATERIALIZED (
        SELECT * FROM page AS p
        WHERE checkpoint_id < %(cutoff)s AND NOT {ODD}
          AND NOT EXISTS (
            SELECT 1 FROM checkpoints AS c WHERE c.thread_id = p.thread_id
            AND c.checkpoint_ns = p.checkpoint_ns AND c.checkpoint_id = p.checkpoint_id)
    )
    SELECT o.thread_id, o.checkpoint_ns, o.checkpoint_id, rows.count FROM old AS o
    CROSS JOIN LATERAL (
        SELECT count(*) FROM checkpoint_writes AS w
        WHERE w.thread_id = o.thread_id AND w.checkpoint_ns = o.checkpoint_ns
          AND w.checkpoint_id = o.checkpoint_id AND {_PARENTLESS}
    ) AS rows
    WHERE rows.count > 0
    UNION ALL
    (SELECT thread_id, checkpoint_ns, checkpoint_id, -(SELECT count(*) FROM page) FROM page
     ORDER BY thread_id DESC, checkpoint_ns DESC, checkpoint_id DESC LIMIT 1)
"""

# Only in threads where every id is old: a blob's age is not known otherwise. EXCEPT hashes
# both sides, whereas a join is planned from estimates that are worst for the huge threads.
_BLOBS = f"""
    WITH page AS MATERIALIZED (
        SELECT thread_id, checkpoint_ns FROM checkpoint_blobs
        WHERE %(thread)s::text IS NULL OR (thread_id, checkpoint_ns) > (%(thread)s, %(ns)s)
        GROUP BY thread_id, checkpoint_ns ORDER BY thread_id, checkpoint_ns LIMIT %(limit)s
    ), old AS MATERIALIZED (
        SELECT * FROM page AS p WHERE NOT EXISTS (
            SELECT 1 FROM checkpoints AS c WHERE c.thread_id = p.thread_id
            AND (c.checkpoint_id >= %(cutoff)s OR {no_uuid6("c.checkpoint_id")}))
        AND NOT EXISTS (
            SELECT 1 FROM checkpoint_writes AS w WHERE w.thread_id = p.thread_id
            AND (w.checkpoint_id >= %(cutoff)s OR {no_uuid6("w.checkpoint_id")}))
    )
    SELECT o.thread_id, o.checkpoint_ns, loose.channel, loose.version, 1 FROM old AS o
    CROSS JOIN LATERAL (
        SELECT b.channel, b.version FROM checkpoint_blobs AS b
        WHERE b.thread_id = o.thread_id AND b.checkpoint_ns = o.checkpoint_ns
        EXCEPT
        SELECT v.key, v.value FROM checkpoints AS c
        CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') AS v
        WHERE c.thread_id = o.thread_id AND c.checkpoint_ns = o.checkpoint_ns
    ) AS loose
    UNION ALL
    (SELECT thread_id, checkpoint_ns, '', '', -(SELECT count(*) FROM page) FROM page
     ORDER BY thread_id DESC, checkpoint_ns DESC LIMIT 1)
"""

_DELETE_WRITES = f"""
    DELETE FROM checkpoint_writes AS w
    USING unnest(%(thread)s::text[], %(ns)s::text[], %(name)s::text[])
        AS o (thread_id, checkpoint_ns, checkpoint_id)
    WHERE w.thread_id = o.thread_id AND w.checkpoint_ns = o.checkpoint_ns
      AND w.checkpoint_id = o.checkpoint_id AND {_PARENTLESS}
"""
_DELETE_BLOBS = """
    DELETE FROM checkpoint_blobs AS b
    USING unnest(%(thread)s::text[], %(ns)s::text[], %(name)s::text[], %(version)s::text[])
        AS o (thread_id, checkpoint_ns, channel, version)
    WHERE b.thread_id = o.thread_id AND b.checkpoint_ns = o.checkpoint_ns
      AND b.channel = o.channel AND b.version = o.version
      AND NOT EXISTS (
        SELECT 1 FROM checkpoints AS c
        WHERE c.thread_id = b.thread_id AND c.checkpoint_ns = b.checkpoint_ns
          AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version)
"""


def find(before: float, after: Cursor | None, limit: int) -> SqlPlan[OrphanPage]:
    """Look at the next ``limit`` keys: first those of writes, then those of blobs.

    Args:
        before: Ids of this moment and later are young, in seconds since the epoch.
        after: None, or where the page before ended.
        limit: Keys to look at.
    """
    start: Cursor = ("writes", None, None, None)
    kind, thread, ns, name = after or start
    params = {
        "thread": thread,
        "ns": ns,
        "name": name,
        "limit": limit,
        "cutoff": first_id_at(before),
    }
    rows = yield Statement(_WRITES if kind == "writes" else _BLOBS, params)
    found = [Orphan(kind, *_key(kind, row), row[-1]) for row in rows if row[-1] > 0]
    end = next((row for row in rows if row[-1] <= 0), None)
    if end is not None and -end[-1] == limit:
        return OrphanPage(found, (kind, *end[:2], end[2]))
    return OrphanPage(found, ("blobs", None, None, None) if kind == "writes" else None)


def delete(orphans: Sequence[Orphan]) -> SqlPlan[int]:
    """Delete what is still an orphan, and count the rows."""
    removed = 0
    for kind, statement in (("writes", _DELETE_WRITES), ("blobs", _DELETE_BLOBS)):
        some = [orphan for orphan in orphans if orphan.kind == kind]
        if some:
            removed += yield Statement(
                statement,
                {
                    "thread": [o.thread_id for o in some],
                    "ns": [o.checkpoint_ns for o in some],
                    "name": [o.name for o in some],
                    "version": [o.version for o in some],
                },
                fetch=False,
            )
    return removed


def _key(kind: OrphanKind, row: Sequence[Any]) -> tuple[str, str, str, str]:
    thread_id, namespace, name = row[:3]
    return thread_id, namespace, name, row[3] if kind == "blobs" else ""
