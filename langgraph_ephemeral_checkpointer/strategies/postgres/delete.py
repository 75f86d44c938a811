"""Deleting threads from the tables of the Postgres savers, one batch in one transaction.

A batch is locked, read and judged, and what is to go is erased or moved to the trash: a
:class:`Removal` knows how. ``delete_unread`` erases without reading.

Every statement of a READ COMMITTED transaction sees what was committed before it, so a save
that commits while a delete runs is noticed, and rolls everything back: either the delete took
other rows than those that were judged, or a row is there after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable
from typing import NamedTuple

from langgraph_ephemeral_checkpointer.drivers.text_arrays import Ids
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.langgraph_names import INTERRUPT
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Recheck
from langgraph_ephemeral_checkpointer.strategies.postgres.access import SqlPlan, wait_briefly
from langgraph_ephemeral_checkpointer.strategies.postgres.birth import postgres_birth
from langgraph_ephemeral_checkpointer.strategies.postgres.find import (
    ODD,
    find_interrupted,
    odd_times,
    read_rows,
    waiting_at,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.places import at
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import DIGEST
from langgraph_ephemeral_checkpointer.strategies.rows import ThreadRow, facts_of

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

# All of a thread in one statement: foreign keys among the tables are looked at when it ends, and
# what they cascade to is gone by then. What is counted and what goes is of one snapshot.
_ERASE = f"""
    WITH writes AS (DELETE FROM checkpoint_writes WHERE thread_id = ANY(%(ids)s::text[])),
    blobs AS (DELETE FROM checkpoint_blobs WHERE thread_id = ANY(%(ids)s::text[])),
    gone AS ({{checkpoints}} RETURNING checkpoint_id)
    SELECT count(*), {DIGEST}, (SELECT count(*) {_QUESTIONS}) FROM gone
"""
_ERASE_ALL = _ERASE.format(
    checkpoints="DELETE FROM checkpoints WHERE thread_id = ANY(%(ids)s::text[])"
)
# Among ids of this form the order of text is that of time, whatever the database collates by.
_ERASE_OLD = _ERASE.format(
    checkpoints=f"""
        DELETE FROM checkpoints WHERE thread_id = ANY(%(ids)s::text[])
        AND checkpoint_id COLLATE "C" < %(before)s AND NOT {ODD}
    """
)
# On a later snapshot than the delete: what is there now was saved since, or is not old.
_STILL_THERE = "SELECT 1 FROM {table} WHERE thread_id = ANY(%(ids)s::text[])"
_LOOK = " UNION ALL ".join(
    _STILL_THERE.format(table=table) for table in ("checkpoints", "checkpoint_writes")
)
_ANY_LEFT = f"SELECT EXISTS ({_LOOK})"

_WHICH_ARE_THERE = """
    SELECT wanted.thread_id
    FROM unnest(%s::text[]) AS wanted (thread_id)
    CROSS JOIN LATERAL (
        SELECT 1 FROM checkpoints WHERE thread_id = wanted.thread_id LIMIT 1
    ) AS found
"""


class Taken(NamedTuple):
    """What a removal took of a batch, to compare with what was judged.

    Attributes:
        checkpoints: How many checkpoints.
        digest: What tells them apart from as many others; see :data:`.tables.DIGEST`.
        questions: How many questions to a human; None where one that comes late undoes the removal.
        left: Whether a checkpoint or a write of the batch is there afterwards.
    """

    checkpoints: int
    digest: int
    questions: int | None
    left: bool


class Removal(ABC):
    """How threads go, once a delete has judged them: erased, or into the trash.

    Made for one transaction, which calls the methods in this order.
    """

    @abstractmethod
    def enter(self, ids: Ids) -> SqlPlan[Container[str]]:
        """Take what the removal needs, before anything is read; return the threads it may have."""

    @abstractmethod
    def spare(self, rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, Outcome]]:
        """Return the threads that must not go this way now, and why, before they are judged."""

    @abstractmethod
    def take(self, ids: Ids) -> SqlPlan[Taken]:
        """Take threads out of the saver's tables; the last statement looks what is left."""


class Erase(Removal):
    """Threads go for good."""

    def enter(self, ids: Ids) -> SqlPlan[Container[str]]:
        """Return all: the rows are lock enough."""
        yield from ()
        return ids

    def spare(self, rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, Outcome]]:
        """Return none."""
        yield from ()
        return {}

    def take(self, ids: Ids) -> SqlPlan[Taken]:
        """Delete every row."""
        ((checkpoints, digest, questions),) = yield Statement(_ERASE_ALL, {"ids": ids.array})
        return Taken(checkpoints, digest, questions, left=(yield from any_left(ids)))


def delete_threads(
    ids: Ids, recheck: Recheck | None, removal: Removal
) -> SqlPlan[dict[str, Outcome]]:
    """Lock threads, read and judge them, and remove those that are to go.

    Args:
        ids: The threads.
        recheck: Judges each by what is read here; None to remove whatever is locked.
        removal: How they go.

    Raises:
        ThreadMovedError: What was removed is not what was judged, or not all there is.
        StorageUnavailableError: Somebody has locked a table as a whole.
    """
    yield from wait_briefly()
    entered = yield from removal.enter(ids)
    births = dict((yield Statement(_OWN_WITH_BIRTHS, {"ids": ids.array})))

    locked = ids.only(births).only(entered)
    read = yield from read_rows(locked)
    outcomes = yield from _not_read(Ids(one for one in ids if one not in read.rows))
    outcomes |= yield from removal.spare(read.rows.values())

    open_cases = locked.only(read.rows.keys() - outcomes.keys())
    asked: dict[str, int] = {}
    if recheck is None:
        outcomes |= dict.fromkeys(open_cases, Outcome())
    elif open_cases:
        asked = yield from _asked(open_cases)
        waiting = yield from waiting_at(open_cases, read.heads)
        odd = yield from odd_times(read.rows[one] for one in open_cases)
        for one in open_cases:
            facts = facts_of(read.rows[one]._replace(birth=births[one]), odd, one in waiting)
            outcomes[one] = Outcome(recheck(one, facts))

    doomed = ids.only({one for one, outcome in outcomes.items() if outcome.kept is None})
    if not doomed:
        return outcomes
    taken = yield from removal.take(doomed)
    judged = Taken(
        sum(read.rows[one].checkpoints for one in doomed),
        sum(read.digests[one] for one in doomed),
        None if taken.questions is None else sum(asked.get(one, 0) for one in doomed),
        left=False,
    )
    # A row that the recheck did not see is reason to keep the thread. A row that is left is one
    # without a recheck too: what it belongs to is gone.
    if taken.left or (recheck is not None and taken != judged):
        raise ThreadMovedError
    return outcomes


def delete_unread(ids: Ids, before: str) -> SqlPlan[Ids]:
    """Erase the threads of which every checkpoint is old and that wait for no human answer.

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
    owned = dict((yield Statement(_OWN_UNREAD, {"ids": ids.array})))

    asked = yield from _asked(ids)
    waiting = (yield from find_interrupted(ids.only(asked))) if asked else ()

    doomed = ids.only(owned.keys() - waiting)
    if not doomed:
        return doomed
    ((_, _, questions),) = yield Statement(_ERASE_OLD, {"ids": doomed.array, "before": before})
    if (yield from any_left(doomed)) or questions != sum(asked.get(one, 0) for one in doomed):
        raise ThreadMovedError
    return doomed


def _not_read(ids: Ids) -> SqlPlan[dict[str, Outcome]]:
    """Tell threads that somebody else works on from threads that are gone."""
    if not ids:
        return {}
    there = {row[0] for row in (yield Statement(_WHICH_ARE_THERE, (ids.array,)))}
    return {one: Outcome(KeepReason.BUSY if one in there else KeepReason.GONE) for one in ids}


def any_left(ids: Ids) -> SqlPlan[bool]:
    """Say whether a checkpoint or a write of one of the threads is there."""
    ((left,),) = yield Statement(_ANY_LEFT, {"ids": ids.array})
    return bool(left)


def _asked(ids: Ids) -> SqlPlan[dict[str, int]]:
    """Count the questions that each thread ever asked a human, answered or not."""
    return dict((yield Statement(_ASKED, {"ids": ids.array})))
