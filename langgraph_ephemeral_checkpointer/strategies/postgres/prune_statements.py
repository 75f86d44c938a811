"""The statements that trim threads in the tables of the Postgres savers.

Rows are looked up by primary key (``LATERAL``, ``EXISTS``) wherever a join would be planned
from per-thread estimates, which are worst for the few huge threads that need trimming most.
"""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.langgraph_names import (
    DELTA_COUNTERS,
    DELTA_MARK,
    ONE_STEP_CHANNELS,
    ONE_STEP_PREFIXES,
    PARENTS,
    SOURCE,
    TASKS,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.birth import postgres_birth
from langgraph_ephemeral_checkpointer.strategies.postgres.places import at

SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"

# For all statements: what they read of a table is found in an index. A planner that takes all rows
# to be of one thread, as where statistics are older than most of them, else reads the whole table
# for every thread.
BY_INDEX = """
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_indexscan', 'on', true), set_config('enable_sort', 'off', true)
"""

# For the deletes that join rows of one namespace: by hash or merge only, because a nested
# loop, planned for a small thread, is quadratic in a huge one. What is looked up with LATERAL is
# looked up as before. Bitmaps let the server read a cold table ahead, and cost a tenth more: tables
# that the buffers have room for are looked up without. (A partitioned table has its rows in parts.)
HASHED = """
SELECT set_config('enable_nestloop', 'off', true), set_config('enable_sort', 'on', true),
    set_config('enable_bitmapscan', CASE
        WHEN (
            SELECT sum(pg_relation_size(part))
            FROM unnest(ARRAY[
                'checkpoints'::regclass, 'checkpoint_blobs'::regclass, 'checkpoint_writes'::regclass
            ]) AS t (t)
            CROSS JOIN LATERAL (
                SELECT t AS part UNION SELECT relid FROM pg_partition_tree(t)
            ) AS parts
        ) < pg_size_bytes(current_setting('shared_buffers'))
        THEN 'off' ELSE current_setting('enable_bitmapscan') END, true)
"""

# For the deletes from threads with subgraphs, by hash or merge too. Each namespace is read in the
# order of its keys, and sorts are off, so the index that is used is the primary key's. A planner of
# old statistics likes the one of the thread ids as well, and then reads all of a thread for each of
# its namespaces.
IN_ORDER = """
SELECT set_config('enable_nestloop', 'off', true), set_config('enable_sort', 'off', true)
"""

# For the delete that joins its table with nothing but the threads: each is looked up in an
# index. Not by a bitmap, which reads a cold table ahead: the rows have been read to find the
# blobs. So their pages cost nothing more, and told that, a planner prefers these look-ups to
# comparing every row of the table with every thread, however many rows it takes a thread to have.
KEYS_ALONE = """
SELECT set_config('enable_nestloop', 'on', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('random_page_cost', '0', true), set_config('seq_page_cost', '0', true)
"""

# How many checkpoints each namespace has; read from the index of the primary key alone.
SIZES = """
SELECT t.thread_id, s.checkpoint_ns, s.size
FROM unnest(%s::text[]) AS t (thread_id)
CROSS JOIN LATERAL (
    SELECT checkpoint_ns, count(*) AS size FROM checkpoints
    WHERE thread_id = t.thread_id
    GROUP BY checkpoint_ns
) AS s
"""

_ONE_STEP = " OR ".join(
    [f"version.key = '{channel}'" for channel in sorted(ONE_STEP_CHANNELS)]
    + [f"starts_with(version.key, '{prefix}')" for prefix in ONE_STEP_PREFIXES]
)

# Threads without subgraphs: nothing but the newest ids matters, and whether all of those can
# be loaded without an ancestor, as nearly all can: then what is inside need not be read. That
# is so where may_be_rebuilt() would deny it, and the format is none that has `sends_parent`. What
# cannot be made out here may belong to the one row too many: nothing fails of it.
NEWEST = f"""
SELECT t.thread_id, c.ids, c.alone
FROM unnest(%s::text[]) AS t (thread_id)
CROSS JOIN LATERAL (
    SELECT array_agg(checkpoint_id) AS ids, bool_and(
        coalesce(jsonb_typeof(checkpoint -> 'v') = 'number' AND checkpoint -> 'v' >= '4', false)
        AND coalesce(jsonb_typeof(checkpoint -> 'channel_versions'), 'object') = 'object'
        AND NOT EXISTS (
            SELECT 1 FROM jsonb_each_text(
                CASE jsonb_typeof(checkpoint -> 'channel_versions') WHEN 'object'
                THEN checkpoint -> 'channel_versions' END
            ) AS version
            WHERE (
                NOT ({_ONE_STEP})
                OR coalesce(metadata -> '{DELTA_COUNTERS}' ? version.key, false)
            )
            AND coalesce(checkpoint -> 'channel_values' -> version.key, 'null') = 'null'
            AND NOT EXISTS (
                SELECT 1 FROM checkpoint_blobs b
                WHERE b.thread_id = t.thread_id AND b.checkpoint_ns = ''
                AND b.channel = version.key AND b.version = version.value
                AND b.type <> 'empty'
                OFFSET 0
            )
            OFFSET 0
        )
    ) AS alone
    FROM (
        SELECT checkpoint_id, checkpoint, metadata FROM checkpoints
        WHERE thread_id = t.thread_id AND checkpoint_ns = ''
        ORDER BY checkpoint_id DESC LIMIT %s
    ) AS newest
) AS c
WHERE c.ids IS NOT NULL
"""

# Threads with subgraphs, in the order of ids that the savers' own queries use.
ROWS = f"""
SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id,
    metadata ->> '{SOURCE}', metadata -> '{PARENTS}'
FROM checkpoints WHERE thread_id = ANY(%s::text[])
ORDER BY checkpoint_id
"""

# A value is stored in a blob that is not marked empty, or inline if it is a plain scalar. An
# inline null is read back as nothing. A snapshot of a delta channel is a blob with an
# inline `true` beside it, which no other value has. (`OFFSET 0` in an EXISTS keeps it a look-up
# by key; the planner else prefers to hash all of the thread's blobs, for every row.)
_CONTENTS = f"""
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id,
    held.stored, held.unstored, held.snapshots,
    c.metadata -> '{DELTA_COUNTERS}', c.metadata ? '{DELTA_MARK}',
    CASE WHEN coalesce((c.checkpoint ->> 'v')::numeric, 0) < 4 AND EXISTS (
        SELECT 1 FROM checkpoint_writes w
        WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
        AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = '{TASKS}'
        OFFSET 0
    ) AND EXISTS (
        SELECT 1 FROM checkpoints p
        WHERE p.thread_id = c.thread_id AND p.checkpoint_ns = c.checkpoint_ns
        AND p.checkpoint_id = c.parent_checkpoint_id
        OFFSET 0
    ) THEN c.parent_checkpoint_id END
FROM {{wanted}}
CROSS JOIN LATERAL (
    SELECT
        array_agg(v.channel) FILTER (WHERE v.blob OR v.inline) AS stored,
        array_agg(v.channel) FILTER (WHERE NOT v.blob AND NOT v.inline) AS unstored,
        array_agg(v.channel) FILTER (WHERE v.blob AND v.value = 'true'::jsonb) AS snapshots
    FROM (
        SELECT version.key AS channel, value.value,
            coalesce(value.value <> 'null'::jsonb, false) AS inline,
            EXISTS (
                SELECT 1 FROM (
                    SELECT b.version, b.type FROM checkpoint_blobs b
                    WHERE b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
                    AND b.channel = version.key AND b.version >= version.value
                    ORDER BY b.version LIMIT 1
                ) AS b
                WHERE b.version = version.value AND b.type <> 'empty'
                OFFSET 0
            ) AS blob
        FROM jsonb_each_text(c.checkpoint -> 'channel_versions') AS version
        CROSS JOIN LATERAL (
            SELECT c.checkpoint -> 'channel_values' -> version.key AS value
        ) AS value
        OFFSET 0  -- looked up once per channel, not once per aggregate
    ) AS v
) AS held
"""

CONTENTS_OF_ROWS = _CONTENTS.format(
    wanted="""unnest(%s::text[], %s::text[], %s::text[]) AS k (thread_id, checkpoint_ns, id)
JOIN LATERAL (
    SELECT * FROM checkpoints
    WHERE thread_id = k.thread_id AND checkpoint_ns = k.checkpoint_ns AND checkpoint_id >= k.id
    ORDER BY checkpoint_id LIMIT 1
) AS c ON c.checkpoint_id = k.id"""
)

CONTENTS_OF_NAMESPACES = _CONTENTS.format(
    wanted="""unnest(%s::text[], %s::text[]) AS k (thread_id, checkpoint_ns)
CROSS JOIN LATERAL (
    SELECT * FROM checkpoints
    WHERE thread_id = k.thread_id AND checkpoint_ns = k.checkpoint_ns
    OFFSET 0
) AS c"""
)

FIRST = f"""
SELECT t.thread_id, c.checkpoint_id, c.checkpoint ->> 'ts', {postgres_birth("c.type")}
FROM unnest(%s::text[]) AS t (thread_id)
CROSS JOIN LATERAL (
    SELECT * FROM checkpoints
    WHERE thread_id = t.thread_id AND checkpoint_ns = ''
    ORDER BY checkpoint_id LIMIT 1
) AS c
"""

# The oldest of some root checkpoints, in the order of ids that decides which one a birth is read
# from.
OLDEST = """
SELECT DISTINCT ON (c.thread_id) c.thread_id, c.checkpoint_id
FROM unnest(%s::text[], %s::text[]) AS k (thread_id, id)
CROSS JOIN LATERAL (
    SELECT thread_id, checkpoint_id FROM checkpoints
    WHERE thread_id = k.thread_id AND checkpoint_ns = '' AND checkpoint_id = k.id
    LIMIT 1
) AS c
ORDER BY c.thread_id, c.checkpoint_id
"""

# In the statements that delete, `s` is a namespace with `below`, from which on everything
# stays, and `kept`, an object with the ids below that as its keys, or NULL where there are none,
# as nearly always: to look into an empty one for every row is not free. A row that another
# transaction has changed since the snapshot ends this one in a serialization failure. Where
# rows are found by a join they are deleted by their ctid, which in one snapshot is exact. (In a
# partitioned table each partition has a row at that place: see at().)
_SPACES = """
WITH spaces AS MATERIALIZED (
    SELECT thread_id, checkpoint_ns, below, nullif(kept, '{}')::jsonb AS kept
    FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[])
        AS s (thread_id, checkpoint_ns, below, kept)
)
"""


# The rows of a namespace are asked for in the order of their keys (see IN_ORDER), or, where the
# thread has but one and any index will do, in any: sorted, they would be joined by merging, at
# twice the cost. (`OFFSET 0` and `ORDER BY` both keep the planner from taking such a query apart.)
def _by(key: str, in_order: bool) -> str:
    return f"ORDER BY {key}" if in_order else "OFFSET 0"


def _gone(columns: str, in_order: bool) -> str:
    return f"""
    SELECT {columns} FROM checkpoints
    WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
    AND checkpoint_id < s.below AND (s.kept IS NULL OR NOT s.kept ? checkpoint_id)
    {_by("checkpoint_id", in_order)}
"""


_VERSIONS = "checkpoint -> 'channel_versions' AS versions"


def _stays(in_order: bool) -> str:
    # Without an order the two stay open to the planner, which looks into their columns.
    order = _by("checkpoint_id", in_order) if in_order else ""
    return f"""
    (SELECT {_VERSIONS} FROM checkpoints
    WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
    AND checkpoint_id >= s.below {order})
    UNION ALL
    (SELECT {_VERSIONS} FROM checkpoints
    WHERE s.kept IS NOT NULL AND thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
    AND checkpoint_id < s.below AND s.kept ? checkpoint_id {order})
"""


# Asking each checkpoint for the channels that have blobs at all is half the work of
# unfolding all it names.
_NAMED = """
    SELECT n.channel, c.versions ->> n.channel AS version
    FROM ({rows}) AS c CROSS JOIN unnest(s.channels) AS n (channel)
"""

# Those channels, from one to the next along the key: few stand for many blobs.
_CHANNELS = """
    ARRAY (
        WITH RECURSIVE found AS (
            (SELECT channel FROM checkpoint_blobs
             WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
             ORDER BY channel LIMIT 1)
            UNION ALL
            SELECT (SELECT b.channel FROM checkpoint_blobs b
                    WHERE b.thread_id = s.thread_id AND b.checkpoint_ns = s.checkpoint_ns
                    AND b.channel > found.channel ORDER BY b.channel LIMIT 1)
            FROM found WHERE found.channel IS NOT NULL
        )
        SELECT channel FROM found WHERE channel IS NOT NULL
    )
"""


# The blobs that a row that goes refers to and no row that stays does. One that nothing
# refers to is left alone: a run may be about to save the checkpoint that does.
def freed_blobs(in_order: bool) -> str:
    """Write the query for the channel and version of each blob that goes."""
    gone = _NAMED.format(rows=_gone(_VERSIONS, in_order))
    return f"({gone}EXCEPT {_NAMED.format(rows=_stays(in_order))})"


def delete_blobs(freed: str, in_order: bool) -> str:
    """Write the delete of what :func:`freed_blobs` gives."""
    places = f"""
    SELECT b.part, b.tid FROM named s
    CROSS JOIN LATERAL (
        SELECT stored.part, stored.tid FROM {freed} AS freed
        JOIN (
            SELECT tableoid AS part, ctid AS tid, channel, version FROM checkpoint_blobs
            WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
            {_by("channel, version", in_order)}
        ) AS stored USING (channel, version)
    ) AS b
"""
    return f"""{_SPACES}, named AS MATERIALIZED (
    SELECT s.*, {_CHANNELS} AS channels FROM spaces s
)
DELETE FROM checkpoint_blobs WHERE {at("checkpoint_blobs", places)}
"""


# A run saves writes in the background, and they can be there before their checkpoint, so
# only those of rows that go do.
def _delete_writes(in_order: bool) -> str:
    places = f"""
    SELECT w.part, w.tid FROM spaces s
    CROSS JOIN LATERAL (
        SELECT stored.part, stored.tid FROM ({_gone("checkpoint_id", in_order)}) AS gone
        JOIN (
            SELECT tableoid AS part, ctid AS tid, checkpoint_id FROM checkpoint_writes
            WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
            AND checkpoint_id < s.below
            {_by("checkpoint_id, task_id, idx", in_order)}
        ) AS stored USING (checkpoint_id)
    ) AS w
"""
    return f"""{_SPACES}
DELETE FROM checkpoint_writes WHERE {at("checkpoint_writes", places)}
"""


DELETE_WRITES = _delete_writes(in_order=True)
DELETE_FLAT_WRITES = _delete_writes(in_order=False)

# Only counted: to return something of each row would read all of them once more.
_PLACES_OF_CHECKPOINTS = f"""
    SELECT c.part, c.tid FROM spaces s
    CROSS JOIN LATERAL ({_gone("tableoid AS part, ctid AS tid", in_order=True)}) AS c
"""
DELETE_CHECKPOINTS = f"""{_SPACES}
DELETE FROM checkpoints WHERE {at("checkpoints", _PLACES_OF_CHECKPOINTS)}
"""

# The same for threads without subgraphs, in one visit to each row. A planner that expects few
# rows of a thread may look through all of them for each namespace: here there is but one.
DELETE_FLAT_CHECKPOINTS = f"""{_SPACES}
DELETE FROM checkpoints c USING spaces s
WHERE c.thread_id = s.thread_id AND c.checkpoint_ns = s.checkpoint_ns
AND c.checkpoint_id < s.below AND (s.kept IS NULL OR NOT s.kept ? c.checkpoint_id)
"""
