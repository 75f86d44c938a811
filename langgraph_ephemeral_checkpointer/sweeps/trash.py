"""The part that the trash has in a sweep."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.errors import NotSetUpError
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.strategies.trash import Discard, SqlPlan, Undo

T = TypeVar("T")
Steps: TypeAlias = Plan[Work, T]


class SweepTrash:
    """Where a sweep puts what it deletes.

    Args:
        strategy: The storage.
        now: The time of the sweep, in seconds since the epoch.
        grace_seconds: How long threads stay in the trash, or None for no trash.
        orphan_age_seconds: How young the beginnings of a run are that no root was saved of.
        erase: Delete for good, and what the trash has of the same threads.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        now: float,
        grace_seconds: float | None,
        orphan_age_seconds: float | None,
        erase: bool,
    ) -> None:
        self._strategy = strategy
        self._now = now
        self._grace = grace_seconds
        self._unfinished_since = (
            -math.inf if orphan_age_seconds is None else now - orphan_age_seconds
        )
        self.wanted = strategy.undo is not None and (grace_seconds is not None or erase)

    def open(self, *, dry_run: bool) -> Steps[None]:
        """Make sure the trash is there, and start the clock of what came back out of it.

        Raises:
            NotSetUpError: There is none, and the sweeper was told to use it.
        """
        if not self.wanted:
            return
        try:
            yield from self._run(self._undo.check())
        except NotSetUpError:
            if self._grace is not None:
                raise
            self.wanted = False  # an erasure where there never was a trash
            return
        if self._grace is not None and not dry_run:
            yield from self._run(self._undo.note_restored(self._now, self._now + self._grace))

    def protected(self, thread_ids: Sequence[str]) -> Steps[Collection[str]]:
        """Say which threads came back less than a grace period ago."""
        if not self.wanted or self._grace is None:
            return ()
        return (yield from self._run(self._undo.protected(thread_ids, self._now)))

    def discard(self, reasons: Mapping[str, str]) -> Discard | None:
        """Say how to take threads away, or None for a plain delete."""
        if not self.wanted:
            return None
        return Discard(self._now, self._grace, self._unfinished_since, reasons)

    def empty(self) -> Steps[int]:
        """Empty what has been in the trash for its grace, in short transactions."""
        if not self.wanted or self._grace is None:
            return 0
        return (yield from purge(self._strategy, self._undo, self._now))

    @property
    def _undo(self) -> Undo:
        assert self._strategy.undo is not None  # noqa: S101 - else it is not wanted
        return self._strategy.undo

    def _run(self, plan: SqlPlan[T]) -> Steps[T]:
        answer: T = yield Work(partial(self._strategy.transact, plan))
        return answer


def purge(strategy: Strategy, undo: Undo, now: float | None) -> Steps[int]:
    """Empty the trash of what is over at ``now``, or of everything where that is None."""
    total: int = 0
    after: int = 0
    while True:
        gone, behind = yield Work(partial(strategy.transact, undo.purge(now, after)))
        total += gone
        if behind is None:
            return total
        after = behind
