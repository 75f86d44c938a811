"""Deleting threads from the tables of the SQLite savers, one batch in one immediate transaction.

A batch is read and judged, and what is to go is erased or moved to the trash: a :class:`Removal`
knows how. ``delete_unread`` erases without reading. No other writer can get in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.errors import StorageError
from langgraph_ephemeral_checkpointer.langgraph_names import INTERRUPT
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Recheck
from langgraph_ephemeral_checkpointer.strategies.rows import ThreadRow, facts_of
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import SqlPlan, in_parts
from langgraph_ephemeral_checkpointer.strategies.sqlite.find import (
    ALL_IDS,
    are_uuid6,
    find_interrupted,
    odd_times,
    read_rows,
)

_TABLES = ("checkpoints", "writes")

# Whether an interrupt is on the head (NULL: there is no head), and the ids of all checkpoints where
# these are old as text. It costs a third of the aggregates and of the look at the writes.
_OLD = f"""
    SELECT t.column1, (
        SELECT EXISTS (
            SELECT 1 FROM writes AS w
            WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = ''
              AND w.checkpoint_id = c.checkpoint_id AND w.channel = '{INTERRUPT}')
        FROM checkpoints AS c WHERE c.thread_id = t.column1 AND c.checkpoint_ns = ''
        ORDER BY c.checkpoint_id DESC LIMIT 1
    ), (
        SELECT CASE WHEN max(checkpoint_id) < ? THEN {ALL_IDS} END
        FROM checkpoints WHERE thread_id = t.column1
    ) FROM (VALUES {{marks}}) AS t
"""

_DELETE = "DELETE FROM {table} WHERE thread_id IN ({marks})"

_TRIGGERS = """
    SELECT 1 FROM sqlite_master WHERE type = 'trigger'
    UNION ALL SELECT 1 FROM sqlite_temp_master WHERE type = 'trigger' LIMIT 1
"""
_LEFT = "SELECT 1 FROM {table} WHERE thread_id IN ({marks}) LIMIT 1"


class Removal(ABC):
    """How threads go, once a delete has judged them: erased, or into the trash.

    Made for one transaction, which calls the methods in this order.
    """

    @abstractmethod
    def enter(self) -> SqlPlan[None]:
        """Make sure that the removal has what it needs, before anything is read."""

    @abstractmethod
    def spare(self, rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, Outcome]]:
        """Return the threads that must not go this way now, and why, before they are judged."""

    @abstractmethod
    def take(self, ids: Sequence[str]) -> SqlPlan[None]:
        """Take threads out of the saver's tables."""


class Erase(Removal):
    """Threads go for good."""

    def enter(self) -> SqlPlan[None]:
        """Need nothing."""
        yield from ()

    def spare(self, rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, Outcome]]:
        """Return none."""
        yield from ()
        return {}

    def take(self, ids: Sequence[str]) -> SqlPlan[None]:
        """Delete every row.

        Raises:
            StorageError: A trigger held one back.
        """
        for table in _TABLES:
            for some, marks in in_parts(ids):
                yield Statement(_DELETE.format(table=table, marks=marks), some, fetch=False)
        # Nobody else writes meanwhile, so only a trigger can have held rows back without an error.
        if not (yield Statement(_TRIGGERS)):
            return
        for table in _TABLES:
            for some, marks in in_parts(ids):
                if (yield Statement(_LEFT.format(table=table, marks=marks), some)):
                    raise StorageError(
                        "SQLite did not delete every row; look for a trigger with RAISE(IGNORE) "
                        f"on the table {table}"
                    )


def delete_threads(
    ids: Sequence[str], recheck: Recheck | None, removal: Removal
) -> SqlPlan[dict[str, Outcome]]:
    """Read threads, judge them, and remove those that are to go.

    Args:
        ids: The threads.
        recheck: Judges each by what is read here; None to remove whatever is there.
        removal: How they go.
    """
    yield from removal.enter()

    rows = yield from read_rows(ids)
    outcomes = {one: Outcome(KeepReason.GONE) for one in ids if one not in rows}
    outcomes |= yield from removal.spare(rows.values())

    open_cases = [one for one in rows if one not in outcomes]
    if recheck is None:
        outcomes |= dict.fromkeys(open_cases, Outcome())
    else:
        odd = yield from odd_times(rows[one] for one in open_cases)
        waiting = yield from find_interrupted(open_cases)
        for one in open_cases:
            outcomes[one] = Outcome(recheck(one, facts_of(rows[one], odd, one in waiting)))

    yield from removal.take([one for one, outcome in outcomes.items() if outcome.kept is None])
    return outcomes


def delete_unread(ids: Sequence[str], before: str) -> SqlPlan[list[str]]:
    """Erase the threads of which every checkpoint is old and that wait for no human answer.

    Nothing of them is read but whether that is sure, in one question about all.

    Args:
        ids: Threads that are likely to be such.
        before: An id below which every id of a UUID version 6 is old.

    Returns:
        Those that were deleted.
    """
    doomed: list[str] = []
    for some, marks in in_parts(ids, "(?)", besides=1):
        rows = yield Statement(_OLD.format(marks=marks), (before, *some))
        old = {one: found for one, asks, found in rows if asks == 0 and found}
        # As a rule all are such: one look at all of them costs less than one at each.
        sure = are_uuid6(",".join(old.values()))
        doomed += (one for one, found in old.items() if sure or are_uuid6(found))
    yield from Erase().take(doomed)
    return doomed
