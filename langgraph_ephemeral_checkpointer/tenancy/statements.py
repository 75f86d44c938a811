"""The SQL of saving and loading. ``{checkpoints}``, ``{blobs}`` and ``{writes}`` are the tables.

Every statement filters on the tenant, though Row-Level Security would: the filter picks
the index, and the policy is the guard for the day when a filter is forgotten.
"""

# Rows are looked up by their whole key with `LATERAL ... LIMIT 1`: left to a join, the
# planner reads all blobs of the thread where its statistics are stale.

from __future__ import annotations

from collections.abc import Iterable

# Nothing is stored unless everything the checkpoint names is there. A run relies on the
# channels it did not change being stored with the checkpoint it went on from: as long as
# that one exists they are, since a thread is deleted whole and a prune keeps what is named.
# So one look at the parent tells both what is `missing` (the thread was deleted under the
# run, or the caller never stored it) and what is `orphaned` (a channel can only be rebuilt
# from ancestors). The thread's birth is carried from row to row, so that it survives the
# pruning of the first.
SAVE = """
WITH verdict AS MATERIALIZED (
    SELECT cardinality(%(relied_on)s::text[]) > 0 AND NOT coalesce(
               p.held @> %(relied_on)s::text[] AND p.versions @> %(relied_on_versions)s::text[],
               false) AS missing,
           %(rebuilt)s::bool AND %(parent)s::text IS NOT NULL AND p.checkpoint_id IS NULL
               AS orphaned,
           coalesce(p.born_at, (
               SELECT f.born_at FROM {checkpoints} f
               WHERE f.tenant = %(tenant)s::text AND f.thread_id = %(thread_id)s::text
               ORDER BY f.tenant, f.thread_id, f.checkpoint_ns, f.checkpoint_id LIMIT 1)
           ) AS born_at
    FROM (VALUES (1)) one (row) LEFT JOIN LATERAL (
        SELECT c.checkpoint_id, c.held, c.versions, c.born_at FROM {checkpoints} c
        WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
          AND c.checkpoint_ns = %(ns)s::text AND c.checkpoint_id = %(parent)s::text
        LIMIT 1) p ON true
), stored_blobs AS (
    INSERT INTO {blobs} (tenant, thread_id, checkpoint_ns, channel, version, type, blob)
    SELECT %(tenant)s::text, %(thread_id)s::text, %(ns)s::text,
           u.channel, u.version, u.type, u.blob
    FROM verdict v, unnest(%(written)s::text[], %(written_versions)s::text[],
        %(written_types)s::text[], %(written_blobs)s::bytea[]) AS u (channel, version, type, blob)
    WHERE NOT v.missing AND NOT v.orphaned
    ON CONFLICT DO NOTHING
), stored AS (
    INSERT INTO {checkpoints} AS c (tenant, thread_id, checkpoint_ns, checkpoint_id,
        parent_id, callers, source, step, run_id, format, channels, versions, held, delta,
        made_at, born_at, type, state)
    SELECT %(tenant)s::text, %(thread_id)s::text, %(ns)s::text, %(id)s::text,
        %(parent)s::text, %(callers)s::text[], %(source)s::text, %(step)s::bigint,
        %(run_id)s::text, %(format)s::integer, %(channels)s::text[], %(versions)s::text[],
        %(held)s::text[], %(delta)s::text[], %(made_at)s::timestamptz,
        least(%(made_at)s::timestamptz, v.born_at),
        %(type)s::text, %(state)s::bytea
    FROM verdict v
    WHERE NOT v.missing AND NOT v.orphaned
    ON CONFLICT (tenant, thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
        parent_id = EXCLUDED.parent_id, callers = EXCLUDED.callers,
        source = EXCLUDED.source, step = EXCLUDED.step, run_id = EXCLUDED.run_id,
        format = EXCLUDED.format, channels = EXCLUDED.channels,
        versions = EXCLUDED.versions, held = EXCLUDED.held, delta = EXCLUDED.delta,
        made_at = EXCLUDED.made_at, type = EXCLUDED.type, state = EXCLUDED.state
)
SELECT missing, orphaned FROM verdict
"""

# Pruning of a thread whose survivors are simply its newest checkpoints: no subgraph rows,
# nothing that is rebuilt from ancestors. A statement of its own: rows that SAVE inserts are
# invisible to a DELETE beside them. Rows are deleted by their address: under the thread's
# lock nobody else moves them.
#
# Of any other thread it deletes nothing and gives the facts that the rule of pruning asks
# for, where something may have to go. Where nothing but delta channels is special, that is
# when a stored value of one comes to the edge of the newest checkpoints: only then does
# what lies before it cease to be needed.
TRIM = """
WITH thread AS MATERIALIZED (
    SELECT c.ctid AS address, c.checkpoint_ns, c.checkpoint_id, c.parent_id, c.callers, c.source,
           c.run_id, c.channels, c.versions, c.held, c.delta,
           c.checkpoint_ns <> '' OR cardinality(c.delta) > 0 AS special,
           row_number() OVER (
               PARTITION BY c.checkpoint_ns <> '' ORDER BY c.checkpoint_id DESC) AS place
    FROM {checkpoints} c
    WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
), doomed AS MATERIALIZED (
    SELECT t.address, t.checkpoint_id, t.channels, t.versions FROM thread t
    WHERE t.place > %(keep)s::bigint AND NOT EXISTS (SELECT FROM thread s WHERE s.special)
), garbage AS MATERIALIZED (
    SELECT u.channel, u.version FROM doomed d, unnest(d.channels, d.versions) u (channel, version)
    EXCEPT
    SELECT u.channel, u.version FROM thread t, unnest(t.channels, t.versions) u (channel, version)
    WHERE t.place <= %(keep)s::bigint
), cleared_writes AS (
    DELETE FROM {writes} w
    WHERE w.tenant = %(tenant)s::text AND w.thread_id = %(thread_id)s::text
      AND w.checkpoint_ns = '' AND w.checkpoint_id = ANY (ARRAY(SELECT checkpoint_id FROM doomed))
), cleared_blobs AS (
    DELETE FROM {blobs} b
    WHERE b.tenant = %(tenant)s::text AND b.ctid = ANY (ARRAY(
        SELECT x.address FROM garbage g CROSS JOIN LATERAL (
            SELECT y.ctid AS address FROM {blobs} y
            WHERE y.tenant = %(tenant)s::text AND y.thread_id = %(thread_id)s::text
              AND y.checkpoint_ns = '' AND y.channel = g.channel AND y.version = g.version
            LIMIT 1) x))
), cleared AS (
    DELETE FROM {checkpoints} c
    WHERE c.tenant = %(tenant)s::text AND c.ctid = ANY (ARRAY(SELECT address FROM doomed))
)
SELECT t.checkpoint_ns, t.checkpoint_id, t.parent_id, t.callers, t.source, t.run_id,
       t.channels, t.versions, t.held, t.delta
FROM thread t
WHERE EXISTS (SELECT FROM thread r WHERE r.checkpoint_ns = '' AND r.place > %(keep)s::bigint)
  AND (EXISTS (SELECT FROM thread s WHERE s.checkpoint_ns <> '')
       OR EXISTS (SELECT FROM thread s CROSS JOIN unnest(s.delta) AS u (channel)
                  WHERE u.channel = '' OR EXISTS (
                      SELECT FROM thread e
                      WHERE e.place BETWEEN %(keep)s::bigint AND %(keep)s::bigint + 1
                        AND u.channel = ANY (e.held))))
"""

_WRITE = """
INSERT INTO {writes} AS w (tenant, thread_id, checkpoint_ns, checkpoint_id, task_id, task_path,
    idx, channel, type, blob, written_at)
SELECT %(tenant)s::text, %(thread_id)s::text, %(ns)s::text, %(id)s::text, %(task_id)s::text,
    %(task_path)s::text, u.idx, u.channel, u.type, u.blob, %(now)s::timestamptz
FROM unnest(%(idx)s::integer[], %(channels)s::text[], %(types)s::text[], %(blobs)s::bytea[])
    AS u (idx, channel, type, blob)
ON CONFLICT (tenant, thread_id, checkpoint_ns, checkpoint_id, task_id, idx) """
WRITE_ONCE = _WRITE + "DO NOTHING"
WRITE_OVER = (
    _WRITE
    + """DO UPDATE SET channel = EXCLUDED.channel, type = EXCLUDED.type,
    blob = EXCLUDED.blob, task_path = EXCLUDED.task_path, written_at = EXCLUDED.written_at"""
)

_LOADED = """c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_id, c.type, c.state,
    v.channels, v.types, v.blobs, p.tasks, p.channels, p.types, p.blobs"""
_LOAD_JOINS = """
CROSS JOIN LATERAL (
    SELECT array_agg(b.channel) AS channels, array_agg(b.type) AS types,
           array_agg(b.blob) AS blobs
    FROM unnest(c.channels, c.versions) AS u (channel, version)
    CROSS JOIN LATERAL (
        SELECT x.channel, x.type, x.blob FROM {blobs} x
        WHERE x.tenant = %(tenant)s::text AND x.thread_id = c.thread_id
          AND x.checkpoint_ns = c.checkpoint_ns
          AND x.channel = u.channel AND x.version = u.version LIMIT 1) b
) v
CROSS JOIN LATERAL (
    SELECT array_agg(o.task_id) AS tasks, array_agg(o.channel) AS channels,
           array_agg(o.type) AS types, array_agg(o.blob) AS blobs
    FROM (
        SELECT w.task_id, w.channel, w.type, w.blob FROM {writes} w
        WHERE w.tenant = %(tenant)s::text AND w.thread_id = c.thread_id
          AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id
        ORDER BY w.task_path, w.task_id, w.idx
    ) o
) p
"""
LOAD_NEWEST = f"""
SELECT {_LOADED} FROM (
    SELECT * FROM {{checkpoints}} c
    WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
      AND c.checkpoint_ns = %(ns)s::text
    ORDER BY c.checkpoint_id DESC LIMIT 1
) c {_LOAD_JOINS}"""
LOAD_ONE = f"""
SELECT {_LOADED} FROM (
    SELECT * FROM {{checkpoints}} c
    WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
      AND c.checkpoint_ns = %(ns)s::text AND c.checkpoint_id = %(id)s::text
) c {_LOAD_JOINS}"""

# Greatest id first, over all threads and namespaces; the rest of the key breaks ties, so
# that a page can go on exactly where the one before it ended.
LIST_CONDITIONS = {
    "thread_id": "c.thread_id = %(thread_id)s::text",
    "ns": "c.checkpoint_ns = %(ns)s::text",
    "id": "c.checkpoint_id = %(id)s::text",
    "before": "c.checkpoint_id < %(before)s::text",
    "source": "c.source = %(source)s::text",
    "step": "c.step = %(step)s::bigint",
    "run_id": "c.run_id = %(run_id)s::text",
    "after_id": "(c.checkpoint_id, c.thread_id, c.checkpoint_ns)"
    " < (%(after_id)s::text, %(after_thread)s::text, %(after_ns)s::text)",
}


def list_page(conditions: Iterable[str]) -> str:
    """The statement of one page of a listing; only the conditions that are set are in it.

    A condition that is there but switched off would keep the planner from the index.
    """
    tests = "".join(f" AND {LIST_CONDITIONS[name]}" for name in conditions)
    order = "ORDER BY c.checkpoint_id DESC, c.thread_id DESC, c.checkpoint_ns DESC"
    return f"""
SELECT {_LOADED} FROM (
    SELECT * FROM {{checkpoints}} c WHERE c.tenant = %(tenant)s::text{tests}
    {order} LIMIT %(page)s::bigint
) c {_LOAD_JOINS}
{order}"""


# One page of the walk from a checkpoint to its ancestors. A channel is `wanted` until an
# ancestor holds its value; that ancestor's own writes came after the value, so they count.
# The last row tells where the walk stopped: the next page begins there.
HISTORY_PAGE = """
WITH RECURSIVE walk (depth, id, parent, wanted, held, channels, versions) AS (
    SELECT 0, t.checkpoint_id, t.parent_id, %(wanted)s::text[] COLLATE "C",
           ARRAY[]::text[] COLLATE "C", ARRAY[]::text[] COLLATE "C", ARRAY[]::text[] COLLATE "C"
    FROM (SELECT * FROM {checkpoints} c
          WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
            AND c.checkpoint_ns = %(ns)s::text
            AND (%(id)s::text IS NULL OR c.checkpoint_id = %(id)s::text)
          ORDER BY c.checkpoint_id DESC LIMIT 1) t
    UNION ALL
    SELECT w.depth + 1, c.checkpoint_id, c.parent_id,
        ARRAY(SELECT x FROM unnest(w.wanted) AS u (x) WHERE x <> ALL (w.held)),
        c.held, c.channels, c.versions
    FROM walk w JOIN {checkpoints} c
      ON c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
     AND c.checkpoint_ns = %(ns)s::text AND c.checkpoint_id = w.parent
    WHERE NOT w.wanted <@ w.held AND w.depth < %(page)s::integer
)
SELECT 'write' AS kind, a.depth, r.channel, r.type, r.blob, r.task_id, r.task_path, r.idx
FROM walk a JOIN {writes} r
  ON r.tenant = %(tenant)s::text AND r.thread_id = %(thread_id)s::text
 AND r.checkpoint_ns = %(ns)s::text AND r.checkpoint_id = a.id AND r.channel = ANY (a.wanted)
WHERE a.depth > 0
UNION ALL
SELECT 'value', a.depth, b.channel, b.type, b.blob, NULL, NULL, NULL
FROM walk a
CROSS JOIN unnest(a.channels, a.versions) AS u (channel, version)
CROSS JOIN LATERAL (
    SELECT x.channel, x.type, x.blob FROM {blobs} x
    WHERE x.tenant = %(tenant)s::text AND x.thread_id = %(thread_id)s::text
      AND x.checkpoint_ns = %(ns)s::text
      AND x.channel = u.channel AND x.version = u.version LIMIT 1) b
WHERE a.depth > 0 AND u.channel = ANY (a.wanted) AND u.channel = ANY (a.held)
UNION ALL
SELECT 'end', depth, id, NULL, NULL, NULL, NULL, NULL FROM walk
WHERE depth = (SELECT max(depth) FROM walk)
"""
