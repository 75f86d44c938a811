"""What the trash consists of, whatever the database: entries, plans, and the two ways to discard.

A *generation* is one thread as one sweep took it away. A thread id that is used again and
expires again makes another generation; each is whole in itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import NotInTrashError

T = TypeVar("T")
SqlPlan: TypeAlias = Plan[Statement, T]

PURGE_BATCH = 100
"""Generations emptied in one transaction."""


@dataclass(frozen=True, slots=True)
class TrashedThread:
    """A thread in the trash.

    Attributes:
        thread_id: The id as text.
        deleted_at: When it was moved there, in seconds since the epoch by the sweeper's clock.
        reason: The rule by which it went, as ``on_before_delete`` was told.
        rows: How many rows of all tables it has.
        keep_until: From when on a sweep empties it, by the same clock.
        generation: Tells apart the entries of a thread that is there more than once.
    """

    thread_id: str
    deleted_at: float
    reason: str
    rows: int
    keep_until: float
    generation: int

    @property
    def grace_seconds(self) -> float:
        """The grace period that it was given."""
        return self.keep_until - self.deleted_at


@dataclass(frozen=True, slots=True)
class Discard:
    """How a delete treats what it takes: into the trash, or away for good.

    Args:
        now: The time of the sweep, in seconds since the epoch.
        grace_seconds: How long the threads stay in the trash; None erases them, and what the
            trash has of them already.
        unfinished_since: A thread without any checkpoint of the root graph is kept if something
            of it is younger than this, in seconds since the epoch: with durability ``exit`` (and
            for an instant with ``async``) a run saves its subgraphs first.
        reasons: The rule by which each thread goes.
    """

    now: float
    grace_seconds: float | None
    unfinished_since: float = -math.inf
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def keep_until(self) -> float:
        """When the grace of what is discarded now is over."""
        return self.now + (self.grace_seconds or 0.0)

    def unfinished(self, roots: int, last_id: str) -> bool:
        """Say whether a thread is the beginning of a run that is still to save its root."""
        return (
            self.grace_seconds is not None
            and roots == 0
            and last_id >= first_id_at(self.unfinished_since)
        )


class Undo(ABC):
    """The plans of a storage's trash. Each runs in one transaction that writes."""

    @abstractmethod
    def ddl(self) -> SqlPlan[list[str]]:
        """Give the statements that set the trash up, in order."""

    @abstractmethod
    def setup(self) -> SqlPlan[None]:
        """Create what is missing or out of date; does nothing where all is there."""

    @abstractmethod
    def teardown(self, *, force: bool) -> SqlPlan[None]:
        """Remove everything that :meth:`setup` made; does nothing where nothing is there.

        Raises:
            TrashNotEmptyError: The trash holds threads and ``force`` is off.
        """

    @abstractmethod
    def check(self) -> SqlPlan[None]:
        """Make sure that the trash is set up and fits the saver's tables as they are now.

        Raises:
            NotSetUpError: It is not.
        """

    @abstractmethod
    def entries(self, thread_id: str | None = None) -> SqlPlan[list[TrashedThread]]:
        """List the trash, of one thread or of all, oldest first."""

    @abstractmethod
    def restore(self, thread_id: str, generation: int | None, now: float) -> SqlPlan[TrashedThread]:
        """Move one generation of a thread, the newest where None, back to the saver's tables.

        Sweeps then leave it alone for the grace period that it had.

        Raises:
            NotInTrashError: The trash has no such entry.
            ThreadLivesAgainError: The thread id has checkpoints again.
        """

    @abstractmethod
    def purge(self, now: float | None, after: int) -> SqlPlan[tuple[int, int | None]]:
        """Empty a batch of entries whose grace is over, or whatever is there where ``now`` is None.

        Args:
            now: Seconds since the epoch.
            after: The generation behind which to begin; 0 at first.

        Returns:
            How many generations went, and where the next batch begins (None: at the end).
        """

    @abstractmethod
    def protected(self, thread_ids: Sequence[str], now: float) -> SqlPlan[Collection[str]]:
        """Say which threads came back out of the trash less than one grace period ago."""

    @abstractmethod
    def note_restored(self, now: float, keep_until: float) -> SqlPlan[None]:
        """Begin the grace period of threads that came back since the last sweep, end others.

        The triggers know no clock but the database's, so they only note that a thread came
        back, and the next sweep gives the note its time.
        """


def choose(found: Sequence[TrashedThread], thread_id: str, generation: int | None) -> TrashedThread:
    """Pick the entry to restore.

    Raises:
        NotInTrashError: There is none.
    """
    wanted = [entry for entry in found if generation in (None, entry.generation)]
    if not wanted:
        which = "" if generation is None else f" as generation {generation}"
        raise NotInTrashError(
            f"thread {thread_id!r} is not in the trash{which}: its grace is over, it came back "
            "already, or the id is another; trash() lists what is there"
        )
    return max(wanted, key=lambda entry: entry.generation)
