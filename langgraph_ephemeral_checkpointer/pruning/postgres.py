"""Trimming threads in the tables of PostgresSaver and AsyncPostgresSaver.

Many threads go through each statement. All statements of a transaction see one snapshot,
so what a run saves meanwhile is neither seen nor deleted. No state is read: which channels
hold a value is seen from the checkpoint's JSONB and from the keys of the blobs.

Rows are looked up by primary key (``LATERAL``, ``EXISTS``) wherever a join would be planned
from per-thread estimates, which are worst for the few huge threads that need trimming most.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from langgraph_ephemeral_checkpointer import survivors as rule
from langgraph_ephemeral_checkpointer.birth import birth_of, mark_postgres, postgres_birth
from langgraph_ephemeral_checkpointer.places import at
from langgraph_ephemeral_checkpointer.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.pruning.outcome import PruneOutcome
from langgraph_ephemeral_checkpointer.survivors import (
    ROOT,
    Contents,
    Key,
    LeaveWholeError,
    Need,
    Row,
    Survival,
    Survivors,
)

SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"

NO_JIT = "SELECT set_config('jit', 'off', true)"

# For the deletes that join rows of one namespace: by hash or merge only, because a nested
# loop, planned for a small thread, is quadratic in a huge one. What is looked up with LATERAL is
# looked up as before.
NO_NESTED_LOOPS = "SELECT set_config('enable_nestloop', 'off', true)"

# For the delete that joins its table with nothing but the few namespaces: each is looked up in
# an index. (Else all of a table is read that is not much larger than what goes; and a bitmap,
# which reads a cold table ahead, only costs: the rows have been read to find the blobs.)
KEYS_ALONE = """
SELECT set_config('enable_nestloop', 'on', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true)
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
    [f"version.key = '{channel}'" for channel in sorted(rule.STEP_CHANNELS)]
    + [f"starts_with(version.key, '{prefix}')" for prefix in rule.STEP_CHANNEL_PREFIXES]
)

# Threads without subgraphs: nothing but the newest ids matters, and whether all of those can
# be loaded without an ancestor, as nearly all can: then what is inside need not be read. That
# is so where may_be_rebuilt() would deny it, and the format is none that has `sends_parent`.
NEWEST = f"""
SELECT t.thread_id, c.ids, c.alone
FROM unnest(%s::text[]) AS t (thread_id)
CROSS JOIN LATERAL (
    SELECT array_agg(checkpoint_id) AS ids, bool_and(
        coalesce((checkpoint ->> 'v')::numeric, 0) >= 4 AND NOT EXISTS (
            SELECT 1 FROM jsonb_each_text(checkpoint -> 'channel_versions') AS version
            WHERE (
                NOT ({_ONE_STEP})
                OR coalesce(metadata -> 'counters_since_delta_snapshot' ? version.key, false)
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
ROWS = """
SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id,
    metadata ->> 'source', metadata -> 'parents'
FROM checkpoints WHERE thread_id = ANY(%s)
ORDER BY checkpoint_id
"""

# A value is stored in a blob that is not marked empty, or inline if it is a plain scalar. An
# inline null is read back as nothing. A snapshot of a delta channel is a blob with an
# inline `true` beside it, which no other value has. (`OFFSET 0` in an EXISTS keeps it a look-up
# by key; the planner else prefers to hash all of the thread's blobs, for every row.)
_CONTENTS = """
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id,
    held.stored, held.unstored, held.snapshots,
    c.metadata -> 'counters_since_delta_snapshot', c.metadata ? 'delta_writes_versioned',
    CASE WHEN coalesce((c.checkpoint ->> 'v')::numeric, 0) < 4 AND EXISTS (
        SELECT 1 FROM checkpoint_writes w
        WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
        AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = '__pregel_tasks'
        OFFSET 0
    ) THEN c.parent_checkpoint_id END
FROM {wanted}
CROSS JOIN LATERAL (
    SELECT
        array_agg(v.channel) FILTER (WHERE v.blob OR v.inline) AS stored,
        array_agg(v.channel) FILTER (WHERE NOT v.blob AND NOT v.inline) AS unstored,
        array_agg(v.channel) FILTER (WHERE v.blob AND v.value = 'true'::jsonb) AS snapshots
    FROM (
        SELECT version.key AS channel, value.value,
            coalesce(value.value <> 'null'::jsonb, false) AS inline,
            EXISTS (
                SELECT 1 FROM checkpoint_blobs b
                WHERE b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
                AND b.channel = version.key AND b.version = version.value
                AND b.type <> 'empty'
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
CROSS JOIN LATERAL (
    SELECT * FROM checkpoints
    WHERE thread_id = k.thread_id AND checkpoint_ns = k.checkpoint_ns AND checkpoint_id = k.id
    LIMIT 1
) AS c"""
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

# In the statements that delete, `s` is a namespace with `below`, from which on everything
# stays, and `kept`, an object with the ids below that as its keys. A row that another
# transaction has changed since the snapshot ends this one in a serialization failure. Where
# rows are found by a join they are deleted by their ctid, which in one snapshot is exact. (In a
# partitioned table each partition has a row at that place: see at().)
_SPACES = """
WITH spaces AS MATERIALIZED (
    SELECT thread_id, checkpoint_ns, below, kept::jsonb AS kept
    FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[])
        AS s (thread_id, checkpoint_ns, below, kept)
)
"""

_GONE = """
    SELECT {columns} FROM checkpoints
    WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
    AND checkpoint_id < s.below AND NOT s.kept ? checkpoint_id
    OFFSET 0
"""

_VERSIONS = "checkpoint -> 'channel_versions' AS versions"

_STAYS = """
    SELECT checkpoint -> 'channel_versions' AS versions FROM checkpoints
    WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
    AND checkpoint_id >= s.below
    UNION ALL
    SELECT checkpoint -> 'channel_versions' AS versions FROM checkpoints
    WHERE s.kept <> '{}' AND thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
    AND checkpoint_id < s.below AND s.kept ? checkpoint_id
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
FREED_BLOBS = (
    f"({_NAMED.format(rows=_GONE.format(columns=_VERSIONS))}EXCEPT {_NAMED.format(rows=_STAYS)})"
)

_PLACES_OF_BLOBS = """
    SELECT b.part, b.tid FROM named s
    CROSS JOIN LATERAL (
        SELECT stored.part, stored.tid FROM {freed} AS freed
        JOIN (
            SELECT tableoid AS part, ctid AS tid, channel, version FROM checkpoint_blobs
            WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
            OFFSET 0
        ) AS stored USING (channel, version)
    ) AS b
"""
DELETE_BLOBS = f"""{_SPACES}, named AS MATERIALIZED (
    SELECT s.*, {_CHANNELS} AS channels FROM spaces s
)
DELETE FROM checkpoint_blobs WHERE {at("checkpoint_blobs", _PLACES_OF_BLOBS)}
"""

# A run saves writes in the background, and they can be there before their checkpoint, so
# only those of rows that go do.
_PLACES_OF_WRITES = f"""
    SELECT w.part, w.tid FROM spaces s
    CROSS JOIN LATERAL (
        SELECT stored.part, stored.tid FROM ({_GONE.format(columns="checkpoint_id")}) AS gone
        JOIN (
            SELECT tableoid AS part, ctid AS tid, checkpoint_id FROM checkpoint_writes
            WHERE thread_id = s.thread_id AND checkpoint_ns = s.checkpoint_ns
            AND checkpoint_id < s.below
            OFFSET 0
        ) AS stored USING (checkpoint_id)
    ) AS w
"""
DELETE_WRITES = f"""{_SPACES}
DELETE FROM checkpoint_writes WHERE {at("checkpoint_writes", _PLACES_OF_WRITES)}
"""

# Only counted: to return something of each row would read all of them once more.
DELETE_CHECKPOINTS = f"""{_SPACES}
DELETE FROM checkpoints c USING spaces s
WHERE c.thread_id = s.thread_id AND c.checkpoint_ns = s.checkpoint_ns
AND c.checkpoint_id < s.below AND NOT s.kept ? c.checkpoint_id
"""

# The rows of that many threads are deleted at a time.
_THREADS_PER_DELETE = 200


def prune_postgres(
    thread_ids: Sequence[str], keep: int, *, dry_run: bool = False
) -> Plan[Statement, dict[str, PruneOutcome]]:
    """Trim threads to their newest root checkpoints.

    To be run inside a transaction that began with :data:`SNAPSHOT`, with rows answered as
    tuples, and unprepared: a cached generic plan checks ``= ANY(array)`` one element at a
    time. Another transaction that changes the same rows meanwhile (a second sweeper) makes
    this one end in ``psycopg.errors.SerializationFailure``; it may then be tried again.

    Args:
        thread_ids: The threads.
        keep: How many of the newest root checkpoints to keep, at least 1.
        dry_run: Delete nothing, and say what would be removed.

    Yields:
        The statements.

    Returns:
        What was done, for every thread given.
    """
    outcomes = dict.fromkeys(thread_ids, PruneOutcome())
    yield Statement(NO_JIT)
    sizes = yield from _sizes(thread_ids)
    long = [thread_id for thread_id, spaces in sizes.items() if spaces.get(ROOT, 0) > keep]
    if not long:
        return outcomes
    rows, alone, doubts = yield from _rows(long, sizes, keep)
    found, unsure = yield from _decide(rows, alone, keep)
    for thread_id, reason in (doubts | unsure).items():
        outcomes[thread_id] = PruneOutcome(left_whole=reason)
    if not found:
        return outcomes
    going = {
        thread_id: sum(
            sizes[thread_id][space] - len(kept) for space, kept in survivors.kept.items()
        )
        for thread_id, survivors in found.items()
    }
    if dry_run:
        return outcomes | {thread_id: PruneOutcome(count) for thread_id, count in going.items()}

    yield from mark_postgres((yield from _births(found)))
    parts = []
    for start in range(0, len(found), _THREADS_PER_DELETE):
        chunk = list(found)[start : start + _THREADS_PER_DELETE]
        decided = (
            (thread_id, *space)
            for thread_id in chunk
            for space in _decided(rows[thread_id], found[thread_id])
        )
        parts.append((chunk, _columns(decided, 4)))
    yield Statement(NO_NESTED_LOOPS)
    for _, columns in parts:
        yield Statement(DELETE_BLOBS.format(freed=FREED_BLOBS), columns, fetch=False)
        yield Statement(DELETE_WRITES, columns, fetch=False)
    yield Statement(KEYS_ALONE)
    for chunk, columns in parts:
        removed = yield Statement(DELETE_CHECKPOINTS, columns, fetch=False)
        if removed != sum(going[thread_id] for thread_id in chunk):  # a trigger held some back
            left = yield from _sizes(chunk)
            for thread_id in chunk:
                going[thread_id] = sum(sizes[thread_id].values()) - sum(left[thread_id].values())
        outcomes |= {thread_id: PruneOutcome(going[thread_id]) for thread_id in chunk}
    return outcomes


def _sizes(thread_ids: Sequence[str]) -> Plan[Statement, dict[str, dict[str, int]]]:
    """Count the checkpoints of each namespace of threads."""
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    for thread_id, namespace, size in (yield Statement(SIZES, (list(thread_ids),))):
        sizes[thread_id][namespace] = size
    return sizes


def _decided(rows: Iterable[Row], found: Survivors) -> Iterator[tuple[str, str, str]]:
    """Return namespace, from where on everything stays, and what stays below that (JSON)."""
    listed: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        listed[row.namespace].append(row.id)
    for namespace, kept in found.kept.items():
        below = listed[namespace][-1] + "0"  # above the newest, in every collation
        for id_ in reversed(listed[namespace]):
            if id_ not in kept:
                break
            below = id_
        rest = {id_: None for id_ in kept if id_ < below}
        yield namespace, below, json.dumps(rest)


def _rows(
    thread_ids: Iterable[str], sizes: Mapping[str, Mapping[str, int]], keep: int
) -> Plan[Statement, tuple[dict[str, list[Row]], set[str], dict[str, str]]]:
    """Read the rows of threads.

    Also returns the threads whose newest checkpoints are known to need no ancestor, and why some
    threads cannot be decided on.
    """
    flat = [thread_id for thread_id in thread_ids if len(sizes[thread_id]) == 1]
    nested = [thread_id for thread_id in thread_ids if len(sizes[thread_id]) > 1]
    rows: dict[str, list[Row]] = defaultdict(list)
    alone: set[str] = set()
    doubts: dict[str, str] = {}
    if flat:
        for thread_id, ids, needs_none in (yield Statement(NEWEST, (flat, keep + 1))):
            rows[thread_id] = [Row(ROOT, id_) for id_ in reversed(ids)]
            if needs_none:
                alone.add(thread_id)
    if nested:
        answer = yield Statement(ROWS, (nested,))
        for thread_id, namespace, checkpoint_id, parent, source, parents in answer:
            rows[thread_id].append(Row(namespace, checkpoint_id, parent, source, _callers(parents)))
    for thread_id, members in list(rows.items()):
        # The rule compares ids as Python does, and the savers' queries as the database
        # does. That differs for ids other than UUIDs under most collations.
        ids = [row.id for row in members]
        if ids != sorted(ids):
            del rows[thread_id]
            doubts[thread_id] = (
                "the database orders its checkpoint ids by a collation that this package does "
                "not know"
            )
    return rows, alone, doubts


def _decide(
    rows: Mapping[str, Sequence[Row]], alone: AbstractSet[str], keep: int
) -> Plan[Statement, tuple[dict[str, Survivors], dict[str, str]]]:
    """Run the rule on many threads at once; also returns why it failed on some."""
    found: dict[str, Survivors] = {}
    doubts: dict[str, str] = {}
    running: dict[str, tuple[Survival, Need]] = {}

    def go_on(thread_id: str, survival: Survival, answer: dict[Key, Contents] | None) -> None:
        try:
            need = survival.send(answer)  # type: ignore[arg-type]  # None starts it
        except StopIteration as end:
            if end.value is not None:
                found[thread_id] = end.value
        except LeaveWholeError as error:
            doubts[thread_id] = str(error)
        else:
            running[thread_id] = survival, need

    for thread_id, members in rows.items():
        go_on(thread_id, rule.survival(members, keep), None)
    while running:
        asked, running = running, {}
        answers = yield from _read(
            {thread_id: need for thread_id, (_, need) in asked.items() if thread_id not in alone}
        )
        for thread_id, (survival, need) in asked.items():
            nothing = dict.fromkeys(need.keys, rule.NOTHING)
            go_on(thread_id, survival, nothing if thread_id in alone else answers[thread_id])
    return found, doubts


def _read(needs: Mapping[str, Need]) -> Plan[Statement, dict[str, dict[Key, Contents]]]:
    keys = [(thread, *key) for thread, need in needs.items() for key in need.keys]
    spaces = [(thread, space) for thread, need in needs.items() for space in need.namespaces]
    answer: list[tuple[Any, ...]] = []
    if keys:
        answer += yield Statement(CONTENTS_OF_ROWS, _columns(keys, 3))
    if spaces:
        answer += yield Statement(CONTENTS_OF_NAMESPACES, _columns(spaces, 2))
    found: dict[str, dict[Key, Contents]] = defaultdict(dict)
    for (
        thread_id,
        namespace,
        id_,
        parent,
        stored,
        unstored,
        snapshots,
        counters,
        marked,
        sends,
    ) in answer:
        found[thread_id][namespace, id_] = Contents(
            parent=parent,
            stored=frozenset(stored or ()),
            unstored=frozenset(unstored or ()),
            delta=frozenset(snapshots or ()) | frozenset(counters or ()),
            all_delta=marked,
            sends_parent=sends,
        )
    return found


def _births(found: Mapping[str, Survivors]) -> Plan[Statement, list[tuple[str, str, str]]]:
    births = []
    for thread_id, first, ts, earlier in (yield Statement(FIRST, (list(found),))):
        oldest = min(found[thread_id].kept[ROOT])
        if oldest != first:
            births.append((thread_id, oldest, earlier or birth_of(first, ts)))
    return births


def _callers(parents: Any) -> dict[str, str]:
    if not isinstance(parents, dict):
        return {}
    return {space: caller for space, caller in parents.items() if isinstance(caller, str)}


def _columns(rows: Iterable[tuple[str, ...]], count: int) -> tuple[list[str], ...]:
    columns: tuple[list[str], ...] = tuple([] for _ in range(count))
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return columns
