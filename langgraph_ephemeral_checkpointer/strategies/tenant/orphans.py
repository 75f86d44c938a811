"""Orphans in the tables of the tenant savers, of one tenant.

The same two kinds as on Postgres, with two differences. A write has its time in a column, so
its age is known whatever its checkpoint's id is; the writes of one checkpoint go together, once
the youngest of them is old. And checkpoints of the oldest formats do not read their pending
sends from their parent's writes here, so a lost parent's are left-overs like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanKind, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.postgres.access import LOCKED_THREADS
from langgraph_ephemeral_checkpointer.strategies.tenant.access import Batches, TenantTables
from langgraph_ephemeral_checkpointer.tenancy.arrays import Texts

Cursor: TypeAlias = tuple[OrphanKind, str, str, str]
"""Which rows are being looked at, and the key behind which to go on."""

_START = ("", "", "")
"""Before every key: no thread id is empty."""

# A page follows the primary key; each key is one look-up by key in the checkpoints. The last
# row tells where the page ends.
_WRITES = """
    WITH page AS MATERIALIZED (
        SELECT thread_id, checkpoint_ns, checkpoint_id, count(*) AS rows,
               max(written_at) AS newest
        FROM {writes}
        WHERE tenant = %(tenant)s::text AND (thread_id, checkpoint_ns, checkpoint_id)
              > (%(thread)s::text, %(ns)s::text, %(name)s::text)
        GROUP BY thread_id, checkpoint_ns, checkpoint_id
        ORDER BY thread_id, checkpoint_ns, checkpoint_id LIMIT %(limit)s::bigint
    )
    (SELECT p.thread_id, p.checkpoint_ns, p.checkpoint_id, '', p.rows FROM page p
     LEFT JOIN LATERAL (
         SELECT c.checkpoint_id FROM {checkpoints} c
         WHERE c.tenant = %(tenant)s::text AND c.thread_id = p.thread_id
           AND c.checkpoint_ns = p.checkpoint_ns AND c.checkpoint_id = p.checkpoint_id LIMIT 1
     ) AS parent ON true
     WHERE p.newest < %(cutoff)s::timestamptz AND parent.checkpoint_id IS NULL
     ORDER BY p.thread_id, p.checkpoint_ns, p.checkpoint_id)
    UNION ALL
    (SELECT thread_id, checkpoint_ns, checkpoint_id, '', -(SELECT count(*) FROM page) FROM page
     ORDER BY thread_id DESC, checkpoint_ns DESC, checkpoint_id DESC LIMIT 1)
"""

# Only in threads where everything is old, as a blob's own age is not known. EXCEPT hashes both
# sides, whereas a join is planned from estimates that are worst for the huge threads.
_BLOBS = """
    WITH page AS MATERIALIZED (
        SELECT thread_id, checkpoint_ns FROM {blobs}
        WHERE tenant = %(tenant)s::text
          AND (thread_id, checkpoint_ns) > (%(thread)s::text, %(ns)s::text)
        GROUP BY thread_id, checkpoint_ns
        ORDER BY thread_id, checkpoint_ns LIMIT %(limit)s::bigint
    ), old AS MATERIALIZED (
        SELECT p.thread_id, p.checkpoint_ns FROM page p
        LEFT JOIN LATERAL (
            SELECT c.thread_id FROM {checkpoints} c
            WHERE c.tenant = %(tenant)s::text AND c.thread_id = p.thread_id
              AND (c.made_at IS NULL OR c.made_at >= %(cutoff)s::timestamptz) LIMIT 1
        ) AS young ON true
        LEFT JOIN LATERAL (
            SELECT w.thread_id FROM {writes} w
            WHERE w.tenant = %(tenant)s::text AND w.thread_id = p.thread_id
              AND w.written_at >= %(cutoff)s::timestamptz LIMIT 1
        ) AS written ON true
        WHERE young.thread_id IS NULL AND written.thread_id IS NULL
    )
    (SELECT o.thread_id, o.checkpoint_ns, loose.channel, loose.version, 1::bigint FROM old o
     CROSS JOIN LATERAL (
         SELECT b.channel, b.version FROM {blobs} b
         WHERE b.tenant = %(tenant)s::text AND b.thread_id = o.thread_id
           AND b.checkpoint_ns = o.checkpoint_ns
         EXCEPT
         SELECT u.channel, u.version FROM {checkpoints} c
         CROSS JOIN LATERAL unnest(c.channels, c.versions) AS u (channel, version)
         WHERE c.tenant = %(tenant)s::text AND c.thread_id = o.thread_id
           AND c.checkpoint_ns = o.checkpoint_ns
     ) AS loose
     ORDER BY o.thread_id, o.checkpoint_ns)
    UNION ALL
    (SELECT thread_id, checkpoint_ns, '', '', -(SELECT count(*) FROM page) FROM page
     ORDER BY thread_id DESC, checkpoint_ns DESC LIMIT 1)
"""

_DELETE_WRITES = """
    DELETE FROM {writes} w
    USING unnest(%(thread)s::text[], %(ns)s::text[], %(name)s::text[])
        AS o (thread_id, checkpoint_ns, checkpoint_id)
    WHERE w.tenant = %(tenant)s::text AND w.thread_id = o.thread_id
      AND w.checkpoint_ns = o.checkpoint_ns AND w.checkpoint_id = o.checkpoint_id
      AND NOT EXISTS (
        SELECT FROM {checkpoints} c
        WHERE c.tenant = %(tenant)s::text AND c.thread_id = w.thread_id
          AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)
      AND NOT EXISTS (
        SELECT FROM {writes} y
        WHERE y.tenant = %(tenant)s::text AND y.thread_id = w.thread_id
          AND y.checkpoint_ns = w.checkpoint_ns AND y.checkpoint_id = w.checkpoint_id
          AND y.written_at >= %(cutoff)s::timestamptz)
"""
_DELETE_BLOBS = """
    WITH loose AS MATERIALIZED (
        SELECT * FROM unnest(%(thread)s::text[], %(ns)s::text[], %(name)s::text[],
            %(version)s::text[]) AS o (thread_id, checkpoint_ns, channel, version)
        EXCEPT
        SELECT c.thread_id, c.checkpoint_ns, u.channel, u.version FROM {checkpoints} c
        CROSS JOIN LATERAL unnest(c.channels, c.versions) AS u (channel, version)
        WHERE c.tenant = %(tenant)s::text AND c.thread_id = ANY (%(thread)s::text[])
    )
    DELETE FROM {blobs} b USING loose o
    WHERE b.tenant = %(tenant)s::text AND b.thread_id = o.thread_id
      AND b.checkpoint_ns = o.checkpoint_ns AND b.channel = o.channel AND b.version = o.version
"""


def find(
    tables: TenantTables, before: float, after: Cursor | None, limit: int
) -> Batches[OrphanPage]:
    """Look at the next ``limit`` keys: first those of writes, then those of blobs.

    Args:
        tables: Whose rows.
        before: Rows of this moment and later are young, in seconds since the epoch.
        after: None, or where the page before ended.
        limit: Keys to look at.

    Returns:
        The orphans, of at most so many threads as one delete locks.
    """
    kind, thread, ns, name = after or ("writes", *_START)
    statement = tables.statement(
        _WRITES if kind == "writes" else _BLOBS,
        thread=thread,
        ns=ns,
        name=name,
        limit=limit,
        cutoff=_moment(before),
    )
    *_, rows = yield [*tables.begin(), statement]
    return _page(rows, tables.tenant, kind, limit)


def delete(tables: TenantTables, orphans: Sequence[Orphan], before: float) -> Batches[int]:
    """Delete what is still an orphan, but of threads that nobody else has locked; count the rows.

    No save then comes to rely on a value that is going.
    """
    own = [one for one in orphans if one.tenant == tables.tenant]
    mine = set((yield from tables.own(sorted({one.thread_id for one in own}))))
    statements = []
    for kind, template in (("writes", _DELETE_WRITES), ("blobs", _DELETE_BLOBS)):
        some = [one for one in own if one.kind == kind and one.thread_id in mine]
        if some:
            params = {
                "tenant": tables.tenant,
                "thread": Texts(o.thread_id for o in some),
                "ns": Texts(o.checkpoint_ns for o in some),
                "name": Texts(o.name for o in some),
                "version": Texts(o.version for o in some),
                "cutoff": _moment(before),
            }
            statements.append(tables.names.statement(template, params, fetch=False))
    if not statements:
        return 0
    return sum((yield statements))


def _page(rows: Sequence[Sequence[Any]], tenant: str, kind: OrphanKind, limit: int) -> OrphanPage:
    found: list[Orphan] = []
    seen: set[str] = set()
    for thread_id, ns, name, version, count in rows:
        if count <= 0:
            continue
        if thread_id not in seen and len(seen) == LOCKED_THREADS:
            last = found[-1]
            return OrphanPage(found, (kind, last.thread_id, last.checkpoint_ns, last.name))
        seen.add(thread_id)
        found.append(Orphan(kind, thread_id, ns, name, version, count, tenant))
    end = next((row for row in rows if row[4] <= 0), None)
    if end is not None and -end[4] == limit:
        return OrphanPage(found, (kind, *end[:3]))
    return OrphanPage(found, ("blobs", *_START) if kind == "writes" else None)


def _moment(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # an age beyond any calendar
        return (datetime.min if seconds < 0 else datetime.max).replace(tzinfo=UTC)
