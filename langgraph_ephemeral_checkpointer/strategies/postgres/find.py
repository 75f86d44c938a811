"""What is read of threads in the tables of the Postgres savers, by key and without their state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import UUID6, time_of_saved
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.drivers.text_arrays import Ids, text_array
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.strategies.base import Page
from langgraph_ephemeral_checkpointer.strategies.postgres.access import SqlPlan
from langgraph_ephemeral_checkpointer.strategies.postgres.birth import postgres_birth
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import DIGEST
from langgraph_ephemeral_checkpointer.strategies.rows import (
    LIKE_UUID6,
    Cutoffs,
    ThreadRow,
    facts_of,
    is_odd,
    times_by_thread,
    waiting_threads,
)


def no_uuid6(checkpoint_id: str) -> str:
    """Write the condition that an id is no lower-case UUID of version 6; see :func:`.is_uuid6`.

    It may lie between two others in the order of text, not of time. One regular expression for all
    of it costs five times as much on every row. What LIKE lets pass in the place of a digit is told
    by its character, and a dash by the length of what follows the fourth.

    Args:
        checkpoint_id: A SQL expression.
    """
    return (
        f"({checkpoint_id} NOT LIKE '{LIKE_UUID6}' OR {checkpoint_id} ~ '[^0-9a-f-]' "
        f"OR pg_catalog.octet_length(pg_catalog.split_part({checkpoint_id}, '-', 5)) <> 12)"
    )


ODD = no_uuid6("checkpoint_id")

_AGGREGATES = f"""
    thread_id, min(checkpoint_id) AS first_id, max(checkpoint_id) AS last_id,
    count(*) AS checkpoints,
    count(*) FILTER (WHERE checkpoint_ns = '') AS roots,
    count(*) FILTER (WHERE {ODD}) AS odd_ids
"""

# What pruning noted of a thread's birth stands with its oldest root checkpoint. It is looked
# up only where it matters: it is not in the index that the aggregates come from.
_BIRTH = """
    (
        SELECT {birth} FROM checkpoints AS oldest
        WHERE oldest.thread_id = threads.thread_id AND oldest.checkpoint_ns = ''
        ORDER BY oldest.checkpoint_id LIMIT 1
    )
""".format(birth=postgres_birth("oldest.type"))

# A page follows the primary key, so it costs what it looks at, wherever it begins. Only
# the threads that matter are sent; the last row tells where the page ends.
_PAGE = f"""
    WITH page AS MATERIALIZED (
        SELECT {_AGGREGATES} FROM checkpoints
        WHERE %(after)s::text IS NULL OR thread_id > %(after)s
        GROUP BY thread_id ORDER BY thread_id LIMIT %(limit)s
    )
    SELECT * FROM (
        SELECT *, CASE WHEN %(births)s THEN {_BIRTH} END AS birth FROM page AS threads
    ) AS threads
    WHERE %(all)s OR odd_ids > 0
       OR last_id < %(newest_before)s OR first_id < %(born_before)s
       OR roots > %(more_than)s OR birth IS NOT NULL
    UNION ALL
    SELECT max(thread_id), NULL, NULL, count(*), NULL, NULL, NULL FROM page
"""

# For the idle rule alone the greatest id is enough of a thread that lives: each aggregate
# more costs half as much again. What may be expired is then looked at in full, unless it is
# to be reported unread: then its greatest id goes with it. (As "C" collates, which is cheaper:
# ids that tell a time are in the order of time whatever they are collated by.)
_LAST_IDS = """
    SELECT thread_id, max(checkpoint_id COLLATE "C") AS last_id
    FROM checkpoints
    WHERE %(after)s::text IS NULL OR thread_id > %(after)s
    GROUP BY thread_id ORDER BY thread_id LIMIT %(limit)s
"""

# As a rule no id of a page is odd. One regular expression for all of them, joined, tells that in
# a fraction of the time of one for each; where one is, each is looked at. (Each comma that joins
# two ids then ends a UUID, so each id is one UUID or more, and by their length together, they are
# one each.)
_USUAL = f"""
    octet_length(string_agg(last_id, ',')) = {len(LIKE_UUID6) + 1} * count(*) - 1
    AND string_agg(last_id, ',') ~ '^(?:{UUID6}(?:,|$))*$'
"""

# The page goes into one row, because to keep it as rows and read these again costs a fifth more.
# Only a page that has an odd id is read a second time, to look at each.
_QUIET_PAGE = f"""
    WITH page AS MATERIALIZED (
        SELECT array_agg(thread_id) FILTER (WHERE last_id < %(newest_before)s) AS ids,
            array_agg(last_id) FILTER (WHERE last_id < %(newest_before)s) AS last_ids,
            {_USUAL} AS usual, max(thread_id) AS last, count(*) AS seen
        FROM ({_LAST_IDS}) AS threads
    )
    SELECT thread_id, 0::bigint, CASE WHEN last_id < %(unread_before)s THEN last_id END
    FROM page CROSS JOIN LATERAL unnest(ids, last_ids) AS threads (thread_id, last_id)
    WHERE usual
    UNION ALL
    SELECT thread_id, 0, CASE WHEN last_id < %(unread_before)s AND NOT odd THEN last_id END
    FROM ({_LAST_IDS}) AS threads
    CROSS JOIN LATERAL (SELECT {no_uuid6("last_id")} AS odd OFFSET 0) AS form
    WHERE NOT (SELECT usual FROM page) AND (last_id < %(newest_before)s OR odd)
    UNION ALL
    SELECT last, seen, NULL FROM page
"""

# Behind them the head, at which interrupts stand, and what tells the checkpoints apart from
# as many others.
_ROWS_OF = f"""
    SELECT {_AGGREGATES}, max(checkpoint_id) FILTER (WHERE checkpoint_ns = '') AS head,
           {DIGEST}
    FROM checkpoints WHERE thread_id = ANY(%s::text[]) GROUP BY thread_id
"""

_TIMED = "^[0-9a-f]{8}-[0-9a-f]{4}-[67][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$"

# A checkpoint whose id holds its time is not read further.
_ODD_ROWS_OF = f"""
    SELECT thread_id, checkpoint_id,
           CASE WHEN checkpoint_id !~* '{_TIMED}' THEN checkpoint ->> 'ts' END
    FROM checkpoints WHERE thread_id = ANY(%s::text[])
"""

# LATERAL with LIMIT or OFFSET keeps to look-ups by key: a join is planned from estimates
# that are worst for the few huge threads.
_HEADS_OF = """
    SELECT wanted.thread_id, head.checkpoint_id
    FROM unnest(%s::text[]) AS wanted (thread_id)
    CROSS JOIN LATERAL (
        SELECT checkpoint_id FROM checkpoints
        WHERE thread_id = wanted.thread_id AND checkpoint_ns = ''
        ORDER BY checkpoint_id DESC LIMIT 1
    ) AS head
"""

_WRITES_AT = """
    SELECT head.thread_id, writes.task_id, writes.channel
    FROM unnest(%s::text[], %s::text[]) AS head (thread_id, checkpoint_id)
    CROSS JOIN LATERAL (
        SELECT task_id, channel FROM checkpoint_writes
        WHERE thread_id = head.thread_id AND checkpoint_ns = ''
          AND checkpoint_id = head.checkpoint_id
        OFFSET 0
    ) AS writes
"""


def odd_times(rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, list[float | None]]]:
    """Read the time of each checkpoint of those threads whose two ids do not tell it."""
    if not (odd := [row.thread_id for row in rows if is_odd(row)]):
        return {}
    found = yield Statement(_ODD_ROWS_OF, (text_array(odd),))
    return times_by_thread(
        (thread_id, time_of_saved(checkpoint_id, ts)) for thread_id, checkpoint_id, ts in found
    )


def scan(wanted: Wanted | None, after: str | None, limit: int) -> SqlPlan[Page]:
    """Read the next page of threads, behind a thread id."""
    cutoffs = Cutoffs(None, None, None) if wanted is None else Cutoffs.of(wanted)
    bounds: dict[str, object] = {
        "after": after,
        "limit": limit,
        "newest_before": cutoffs.newest_before,
    }
    if cutoffs.only_newest:
        bounds["unread_before"] = cutoffs.unread_before
        *quiet, (last, seen, _) = yield Statement(_QUIET_PAGE, bounds)
        unread = [(thread_id, last_id) for thread_id, _, last_id in quiet if last_id is not None]
        facts = yield from read_threads(Ids(row[0] for row in quiet if row[2] is None))
        return Page(facts, seen, last if seen == limit else None, unread=unread)
    bounds |= {
        "all": wanted is None,
        "births": wanted is None or cutoffs.born_before is not None,
        "born_before": cutoffs.born_before,
        "more_than": cutoffs.more_checkpoints_than,
    }
    *page, (last, _, _, seen, *_) = yield Statement(_PAGE, bounds)
    rows = [ThreadRow(*row) for row in page]
    odd = yield from odd_times(rows)
    return Page([facts_of(row, odd) for row in rows], seen, last if seen == limit else None)


def read_threads(ids: Ids) -> SqlPlan[list[ThreadFacts]]:
    """Read the facts of some threads, births left out, for the rules that go by the newest."""
    read = yield from read_rows(ids)
    waiting = yield from waiting_at(ids, read.heads)
    odd = yield from odd_times(read.rows.values())
    return [facts_of(row, odd, thread_id in waiting) for thread_id, row in read.rows.items()]


class Read(NamedTuple):
    """Some threads as one statement saw them, in the order in which they were asked for.

    Attributes:
        rows: What tells their ages, by thread.
        heads: The newest root checkpoint of each that has one.
        digests: Of the checkpoints of each, in all namespaces; see :data:`.tables.DIGEST`.
    """

    rows: dict[str, ThreadRow]
    heads: dict[str, str]
    digests: dict[str, int]


def read_rows(ids: Ids) -> SqlPlan[Read]:
    """Read some threads in full, but for their births."""
    if not ids:
        return Read({}, {}, {})
    found = {row[0]: row for row in (yield Statement(_ROWS_OF, (ids.array,)))}
    there = [found[thread_id] for thread_id in ids if thread_id in found]
    return Read(
        {row[0]: ThreadRow(*row[:-2]) for row in there},
        {row[0]: row[-2] for row in there if row[-2] is not None},
        {row[0]: row[-1] for row in there},
    )


def waiting_at(ids: Ids, heads: Mapping[str, str]) -> SqlPlan[set[str]]:
    """Return which threads wait for a human answer, by their newest root checkpoints.

    Args:
        ids: The threads; one without a root checkpoint waits for nothing.
        heads: The id of the newest root checkpoint of each.
    """
    if not (rooted := ids.only(heads)):
        return set()
    params = (rooted.array, text_array(heads[one] for one in rooted))
    return waiting_threads((yield Statement(_WRITES_AT, params)))


def find_interrupted(ids: Ids) -> SqlPlan[set[str]]:
    """Return which threads wait for a human answer."""
    return (yield from waiting_at(ids, dict((yield Statement(_HEADS_OF, (ids.array,))))))
