"""Deleting threads from the tables of the Postgres savers, one batch in one transaction.

Every statement of a READ COMMITTED transaction sees what was committed before it, so a save
that commits while a delete runs is noticed, and rolls everything back: either the delete took
other rows than those that were judged, or a row is there after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.errors import LockNotAvailable

from langgraph_ephemeral_checkpointer.drivers.text_arrays import text_array
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.errors import StorageUnavailableError, ThreadMovedError
from langgraph_ephemeral_checkpointer.langgraph_names import INTERRUPT
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Recheck
from langgraph_ephemeral_checkpointer.strategies.postgres.access import SqlPlan
from langgraph_ephemeral_checkpointer.strategies.postgres.birth import postgres_birth
from langgraph_ephemeral_checkpointer.strategies.postgres.find import (
    ODD,
    find_interrupted,
    odd_times,
    read_rows,
    waiting_at,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.places import at
from langgraph_ephemeral_checkpointer.strategies.postgres.trash import PostgresBin
from langgraph_ephemeral_checkpointer.strategies.postgres.trash_tables import DIGEST
from langgraph_ephemeral_checkpointer.strategies.rows import facts_of, spared
from langgraph_ephemeral_checkpointer.strategies.trash import Discard

READ_COMMITTED = Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", fetch=False)
"""Snapshots that move, whatever the database or the connection defaults to."""

# Shorter than deadlock_timeout (1 s by default): a batch gives way before the server would
# have to choose a victim, which might be the graph.
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', '500ms', true)"

# What the first delete would take. Asked for first, it tells a table that somebody has locked as
# a whole, on which every thread would fail after its own wait, from a thread with a locked row.
_LOCK_TABLES = "LOCK TABLE checkpoints, checkpoint_blobs, checkpoint_writes IN ROW EXCLUSIVE MODE"

# Sweepers meet at a thread's first row by key, which no save ever touches: new rows sort
# behind it. Whoever gets the lock owns the thread, the others pass it by. It is also the row
# where pruning notes the thread's birth. (By an array of places the planner goes straight to
# the rows; a join would look each up by its key again.)
_FIRST_PLACES = """
    SELECT first.part, first.tid FROM unnest(%(ids)s::text[]) AS wanted (thread_id)
    CROSS JOIN LATERAL (
        SELECT tableoid AS part, ctid AS tid FROM checkpoints WHERE thread_id = wanted.thread_id
        ORDER BY checkpoint_ns, checkpoint_id LIMIT 1
    ) AS first
"""
_OWN = f"""
    SELECT thread_id, {{birth}} FROM checkpoints WHERE {at("checkpoints", _FIRST_PLACES)}
    FOR UPDATE SKIP LOCKED
"""
_OWN_WITH_BIRTHS = _OWN.format(birth=postgres_birth("type"))
_OWN_UNREAD = _OWN.format(birth="NULL")

# Any checkpoint's: few threads ever ask, and only those need a look at which one is the head.
_QUESTIONS = f"""
    FROM checkpoint_writes
    WHERE thread_id = ANY(%(ids)s::text[]) AND checkpoint_ns = '' AND channel = '{INTERRUPT}'
"""
_ASKED = f"SELECT thread_id, count(*) {_QUESTIONS} GROUP BY thread_id"

_DELETE_CHECKPOINTS = f"""
    WITH gone AS (
        DELETE FROM checkpoints WHERE thread_id = ANY(%s::text[]) RETURNING checkpoint_id
    )
    SELECT count(*), {DIGEST} FROM gone
"""
# Among ids of this form the order of text is that of time, whatever the database collates by.
_DELETE_OLD_CHECKPOINTS = f"""
    DELETE FROM checkpoints
    WHERE thread_id = ANY(%s::text[]) AND checkpoint_id COLLATE "C" < %s AND NOT {ODD}
"""
_DELETE_BLOBS = "DELETE FROM checkpoint_blobs WHERE thread_id = ANY(%s::text[])"
_STILL_THERE = "SELECT 1 FROM checkpoints WHERE thread_id = ANY(%(ids)s::text[]) LIMIT 1"
# The look comes last, on the snapshot of the last delete, so it counts what that deletes. A
# question that came meanwhile is one more; nothing takes one away but who deletes the thread.
_DELETE_WRITES_AND_LOOK = f"""
    WITH gone AS (DELETE FROM checkpoint_writes WHERE thread_id = ANY(%(ids)s::text[]))
    SELECT EXISTS ({_STILL_THERE}), (SELECT count(*) {_QUESTIONS})
"""

_WHICH_ARE_THERE = """
    SELECT wanted.thread_id
    FROM unnest(%s::text[]) AS wanted (thread_id)
    CROSS JOIN LATERAL (
        SELECT 1 FROM checkpoints WHERE thread_id = wanted.thread_id LIMIT 1
    ) AS found
"""


def wait_briefly() -> SqlPlan[None]:
    """Wait for no lock for long, and for none on a whole table a second time.

    Raises:
        StorageUnavailableError: Somebody has locked a table as a whole.
    """
    yield Statement(_LOCK_TIMEOUT)
    try:
        yield Statement(_LOCK_TABLES, fetch=False)
    except LockNotAvailable as error:
        raise StorageUnavailableError(
            "another session has locked a whole table of checkpoints (a migration, an index that "
            "is built, VACUUM FULL); the next sweep tries again"
        ) from error


def delete_threads(
    ids: Sequence[str], recheck: Recheck | None, discard: Discard | None = None
) -> SqlPlan[dict[str, Outcome]]:
    """Own, read, judge, and delete threads or move them to the trash.

    Args:
        ids: The threads.
        recheck: Judges each by what is read here; None to delete what is owned.
        discard: How they go by way of the trash, or None.

    Raises:
        ThreadMovedError: What was deleted is not what was judged, or not all there is.
        StorageUnavailableError: Somebody has locked a table as a whole.
    """
    yield from wait_briefly()
    trash = None if discard is None else PostgresBin(discard)
    entered = set(ids) if trash is None else (yield from trash.enter(ids))
    births = dict((yield Statement(_OWN_WITH_BIRTHS, {"ids": text_array(ids)})))
    read = yield from read_rows([one for one in ids if one in entered and one in births])
    outcomes = yield from _not_owned([one for one in ids if one not in read.rows])
    if discard is not None and trash is not None:
        restored = yield from trash.spare(list(read.rows))
        outcomes |= spared(discard, read.rows.values(), restored)
    asked: dict[str, int] = {}
    open_cases = [row for thread_id, row in read.rows.items() if thread_id not in outcomes]
    if recheck is None:
        outcomes.update((row.thread_id, Outcome()) for row in open_cases)
    elif open_cases:
        asked = yield from _asked([row.thread_id for row in open_cases])
        waiting = yield from waiting_at(
            {row.thread_id: read.heads[row.thread_id] for row in open_cases if row.roots}
        )
        odd = yield from odd_times(open_cases)
        for row in open_cases:
            thread_id = row.thread_id
            facts = facts_of(row._replace(birth=births[thread_id]), odd, thread_id in waiting)
            outcomes[thread_id] = Outcome(recheck(thread_id, facts))
    doomed = [thread_id for thread_id, outcome in outcomes.items() if outcome.kept is None]
    if not doomed:
        return outcomes
    questions = sum(asked.get(thread_id, 0) for thread_id in doomed)
    if trash is None:
        removed, left, asked_now = yield from _erase(doomed)
    else:
        # A question that comes later brings the thread back.
        removed, asked_now = (yield from trash.take(doomed)), questions
        left = yield Statement(_STILL_THERE, {"ids": text_array(doomed)})
    judged = (
        sum(read.rows[thread_id].checkpoints for thread_id in doomed),
        sum(read.digests[thread_id] for thread_id in doomed),
    )
    # A row that the recheck did not see is reason to keep the thread. A row that is left is one
    # without a recheck too: its blobs are gone.
    if left or (recheck is not None and (removed, asked_now) != (judged, questions)):
        raise ThreadMovedError
    return outcomes


def delete_unread(ids: Sequence[str], before: str) -> SqlPlan[list[str]]:
    """Delete the threads of which every checkpoint is old and that wait for no human answer.

    Nothing of them is read: the delete itself takes old checkpoints alone, and one that is left
    undoes it.

    Args:
        ids: Threads that are likely to be such.
        before: An id below which every id of a UUID version 6 is old.

    Returns:
        Those that were deleted.

    Raises:
        ThreadMovedError: One of them has a checkpoint that is not known to be old, or asked a human
            meanwhile.
        StorageUnavailableError: Somebody has locked a table as a whole.
    """
    yield from wait_briefly()
    these = text_array(ids)
    owned = {row[0] for row in (yield Statement(_OWN_UNREAD, {"ids": these}))}
    asked = yield from _asked(ids)
    waiting = (yield from find_interrupted(list(asked))) if asked else set()
    doomed = [thread_id for thread_id in ids if thread_id in owned and thread_id not in waiting]
    if not doomed:
        return []
    if len(doomed) < len(ids):
        these = text_array(doomed)
    yield Statement(_DELETE_OLD_CHECKPOINTS, (these, before), fetch=False)
    yield Statement(_DELETE_BLOBS, (these,), fetch=False)
    ((left, asked_now),) = yield Statement(_DELETE_WRITES_AND_LOOK, {"ids": these})
    if left or asked_now != sum(asked.get(thread_id, 0) for thread_id in doomed):
        raise ThreadMovedError
    return doomed


def _asked(ids: Sequence[str]) -> SqlPlan[dict[str, int]]:
    """Count the questions that each thread ever asked a human, answered or not."""
    return dict((yield Statement(_ASKED, {"ids": text_array(ids)})))


def _erase(ids: Sequence[str]) -> SqlPlan[tuple[tuple[int, int], bool, int]]:
    """Delete every row of some threads.

    Returns:
        How many checkpoints went with which digest, whether one is there afterwards, and how
        many questions went.
    """
    these = text_array(ids)
    removed = (yield Statement(_DELETE_CHECKPOINTS, (these,)))[0]
    yield Statement(_DELETE_BLOBS, (these,), fetch=False)
    ((left, asked_now),) = yield Statement(_DELETE_WRITES_AND_LOOK, {"ids": these})
    return tuple(removed), left, asked_now


def _not_owned(ids: Sequence[str]) -> SqlPlan[dict[str, Outcome]]:
    """Tell threads that somebody else works on from threads that are gone."""
    if not ids:
        return {}
    there = {row[0] for row in (yield Statement(_WHICH_ARE_THERE, (text_array(ids),)))}
    return {one: Outcome(KeepReason.BUSY if one in there else KeepReason.GONE) for one in ids}
