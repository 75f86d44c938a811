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
#
# Most of the time the server spends on a save is spent on starting the plan, node by node:
# every join, sort and function counts, whatever it finds to do.
_STORED_BLOBS = """
    INSERT INTO {blobs} (tenant, thread_id, checkpoint_ns, channel, version, type, blob)
    SELECT %(tenant)s::text, %(thread_id)s::text, %(ns)s::text,
           unnest(%(written)s::text[]), unnest(%(written_versions)s::text[]),
           unnest(%(written_types)s::text[]), unnest(%(written_blobs)s::bytea[])
    FROM verdict v WHERE {stores}
    ON CONFLICT DO NOTHING"""
_STORED_ROW = """
    INSERT INTO {checkpoints} AS c (tenant, thread_id, checkpoint_ns, checkpoint_id,
        parent_id, callers, source, step, run_id, format, channels, versions, held, delta,
        made_at, born_at, type, state)
    SELECT %(tenant)s::text, %(thread_id)s::text, %(ns)s::text, %(id)s::text,
        %(parent)s::text, %(callers)s::text[], %(source)s::text, %(step)s::bigint,
        %(run_id)s::text, %(format)s::bigint, %(channels)s::text[], %(versions)s::text[],
        %(held)s::text[], %(delta)s::text[],
        %(made_at)s::timestamptz, least(%(made_at)s::timestamptz, v.born_at),
        %(type)s::text, %(state)s::bytea
    FROM verdict v WHERE {stores}"""
_STORED = (
    _STORED_ROW
    + """
    ON CONFLICT (tenant, thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
        parent_id = EXCLUDED.parent_id, callers = EXCLUDED.callers,
        source = EXCLUDED.source, step = EXCLUDED.step, run_id = EXCLUDED.run_id,
        format = EXCLUDED.format, channels = EXCLUDED.channels,
        versions = EXCLUDED.versions, held = EXCLUDED.held, delta = EXCLUDED.delta,
        made_at = EXCLUDED.made_at, type = EXCLUDED.type, state = EXCLUDED.state"""
)

_STORES = "NOT v.missing AND NOT v.orphaned"
SAVE = (
    """
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
), stored_blobs AS ("""
    + _STORED_BLOBS.replace("{stores}", _STORES)
    + """
), stored AS ("""
    + _STORED.replace("{stores}", _STORES)
    + """
)
SELECT missing, orphaned, txid_current() FROM verdict
"""
)

# A save of the root that prunes the thread to its newest checkpoints as well. What the
# statement inserts is invisible to what it deletes, so it reckons with the thread's other
# rows and the new one: the `place` is the row that the new one pushes out of the newest, and
# it goes, with all before it. A new row that is itself older than that is not stored.
#
# Nothing is deleted of a `special` thread, one with subgraph rows or delta channels: what
# survives there is for the rule of pruning to say.
#
# Rows are deleted by a range of their key. By any other condition (their ctid), a plan
# that was made while the tables were small goes through everything the tenant has.
_THREAD = """
WITH thread AS MATERIALIZED (
    SELECT c.checkpoint_ns, c.checkpoint_id, c.channels, c.versions, c.held, c.delta,
           c.born_at{facts}
    FROM {checkpoints} c
    WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
), verdict AS MATERIALIZED (
    SELECT cardinality(%(relied_on)s::text[]) > 0 AND NOT EXISTS (
               SELECT FROM thread p
               WHERE p.checkpoint_ns = %(ns)s::text AND p.checkpoint_id = %(parent)s::text
                 AND p.held @> %(relied_on)s::text[]
                 AND p.versions @> %(relied_on_versions)s::text[]) AS missing,
           {orphaned} AS orphaned,
           {marked} EXISTS (
               SELECT FROM thread s WHERE s.checkpoint_ns <> '' OR cardinality(s.delta) > 0
           ) AS special,
           (SELECT min(f.born_at) FROM thread f) AS born_at,
           (SELECT o.checkpoint_id FROM thread o
            WHERE o.checkpoint_ns = '' AND o.checkpoint_id <> %(id)s::text
            ORDER BY o.checkpoint_id DESC OFFSET %(keep)s::bigint - 1 LIMIT 1) AS place
)"""
_FITS = f"{_STORES} AND (v.special OR (v.place < %(id)s::text) IS NOT FALSE)"
_EDGE = f"""(SELECT v.place FROM verdict v
          WHERE v.place < %(id)s::text AND NOT v.special AND {_STORES})"""
_CLEARED = f""", stored_blobs AS ({_STORED_BLOBS.replace("{stores}", _FITS)}
), stored AS ({_STORED.replace("{stores}", _FITS)}
), cleared_writes AS (
    DELETE FROM {{writes}} w
    WHERE w.tenant = %(tenant)s::text AND w.thread_id = %(thread_id)s::text
      AND w.checkpoint_ns = '' AND w.checkpoint_id <= {_EDGE}
), cleared_blobs AS (
    DELETE FROM {{blobs}} b
    WHERE b.tenant = %(tenant)s::text AND b.thread_id = %(thread_id)s::text
      AND b.checkpoint_ns = '' AND {_EDGE} IS NOT NULL
      AND (b.channel, b.version) NOT IN (
          SELECT unnest(%(channels)s::text[]), unnest(%(versions)s::text[])
          UNION ALL
          SELECT unnest(k.channels), unnest(k.versions) FROM thread k
          WHERE k.checkpoint_id > {_EDGE} AND k.checkpoint_id <> %(id)s::text)
), cleared AS (
    DELETE FROM {{checkpoints}} c
    WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
      AND c.checkpoint_ns = '' AND c.checkpoint_id <= {_EDGE}
)
"""

# For a thread that was not special at its last save: whether it is now.
SAVE_AND_TRIM_PLAIN = (
    _THREAD.replace("{facts}", "").replace("{orphaned}", "false").replace("{marked}", "")
    + _CLEARED
    + "SELECT missing, orphaned, special, place FROM verdict"
)

# For a thread that keeps one checkpoint, has the parent alone, and is plain: then what goes
# is the parent, and of what it leaves behind all that the new one does not name. Where it is
# not so, or the parent lacks a value that is relied on, nothing is done. It comes to the same
# rows as the statements above in half their nodes.
SAVE_AND_REPLACE = (
    """
WITH gone AS (
    DELETE FROM {checkpoints} c
    WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
      AND c.checkpoint_ns = '' AND c.checkpoint_id = %(parent)s::text
      AND c.checkpoint_id < %(id)s::text AND cardinality(c.delta) = 0
      AND c.held @> %(relied_on)s::text[] AND c.versions @> %(relied_on_versions)s::text[]
      AND NOT EXISTS (
          SELECT FROM {checkpoints} o
          WHERE o.tenant = %(tenant)s::text AND o.thread_id = %(thread_id)s::text
            AND (o.checkpoint_ns <> '' OR o.checkpoint_id <> %(parent)s::text))
    RETURNING c.born_at
), cleared_writes AS (
    DELETE FROM {writes} w
    WHERE w.tenant = %(tenant)s::text AND w.thread_id = %(thread_id)s::text
      AND w.checkpoint_ns = '' AND w.checkpoint_id <= (SELECT %(parent)s::text FROM gone)
), cleared_blobs AS (
    DELETE FROM {blobs} b
    WHERE b.tenant = %(tenant)s::text AND b.thread_id = %(thread_id)s::text
      AND b.checkpoint_ns = '' AND EXISTS (SELECT FROM gone)
      AND (b.channel, b.version) NOT IN (
          SELECT unnest(%(channels)s::text[]), unnest(%(versions)s::text[]))
), stored_blobs AS ("""
    + _STORED_BLOBS.replace("verdict v WHERE {stores}", "gone")
    + ")"
    + _STORED_ROW.replace("verdict v WHERE {stores}", "gone v")
)

# For any thread. Of a special one it gives the facts that the rule asks for, where something
# may have to go, unless the caller has `seen` the same rows, written by the same
# transactions, before.
SAVE_AND_TRIM = (
    _THREAD.replace("{facts}", ", c.parent_id, c.callers, c.source, c.run_id, c.xmin AS written_by")
    .replace(
        "{orphaned}",
        """%(rebuilt)s::bool AND %(parent)s::text IS NOT NULL AND NOT EXISTS (
               SELECT FROM thread p
               WHERE p.checkpoint_ns = %(ns)s::text AND p.checkpoint_id = %(parent)s::text)""",
    )
    .replace("{marked}", "cardinality(%(delta)s::text[]) > 0 OR")
    + _CLEARED
    + """
SELECT v.missing, v.orphaned, v.special, v.place, txid_current(), t.checkpoint_ns, t.checkpoint_id,
       t.parent_id, t.callers, t.source, t.run_id, t.channels, t.versions, t.held, t.delta,
       t.written_by::text
FROM verdict v LEFT JOIN thread t
  ON v.special AND v.place IS NOT NULL AND %(seen)s::text IS DISTINCT FROM (
      SELECT md5(string_agg(concat_ws(chr(10), o.checkpoint_ns, o.checkpoint_id, o.written_by),
                            chr(10) ORDER BY o.checkpoint_ns, o.checkpoint_id))
      FROM thread o WHERE o.checkpoint_ns <> '' OR o.checkpoint_id <> %(id)s::text)
"""
)

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
