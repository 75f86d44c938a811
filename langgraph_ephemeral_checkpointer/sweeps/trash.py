"""The part that the trash has in a sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.errors import NotSetUpError
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Recheck, Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasTrash
from langgraph_ephemeral_checkpointer.strategies.trash import Discard, SqlPlan

T = TypeVar("T")
Steps: TypeAlias = Plan[Work, T]
Delete: TypeAlias = Callable[[Sequence[str], Recheck | None], Maybe[Mapping[str, Outcome]]]
"""A call of the strategy that takes threads away, and tells what became of each."""


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
        self._now = now
        self._grace = grace_seconds
        self._unfinished_since = (
            -math.inf if orphan_age_seconds is None else now - orphan_age_seconds
        )
        self._storage: HasTrash | None = None
        if isinstance(strategy, HasTrash) and (grace_seconds is not None or erase):
            self._storage = strategy

    @property
    def wanted(self) -> bool:
        """Whether what the sweep deletes has to do with the trash."""
        return self._storage is not None

    @property
    def batch_limit(self) -> int | None:
        """How many threads one transaction takes away at most; None: any number."""
        return None if self._storage is None else self._storage.discard_limit

    def open(self, *, dry_run: bool) -> Steps[None]:
        """Make sure the trash is there, and start the clock of what came back out of it.

        Raises:
            NotSetUpError: There is none, and the sweeper was told to use it.
        """
        if (storage := self._storage) is None:
            return
        try:
            yield from _run(storage, storage.undo.check())
        except NotSetUpError:
            if self._grace is not None:
                raise
            self._storage = None  # an erasure where there never was a trash
            return
        if self._grace is not None and not dry_run:
            yield from _run(storage, storage.undo.note_restored(self._now, self._now + self._grace))

    def protected(self, thread_ids: Sequence[str]) -> Steps[Collection[str]]:
        """Say which threads came back less than a grace period ago."""
        if (storage := self._storage) is None or self._grace is None:
            return ()
        return (yield from _run(storage, storage.undo.protected(thread_ids, self._now)))

    def discard(self, reasons: Mapping[str, str]) -> Delete | None:
        """Return the call that takes threads away by way of the trash; None: a plain delete."""
        if (storage := self._storage) is None:
            return None
        discard = Discard(self._now, self._grace, self._unfinished_since, reasons)
        return lambda thread_ids, recheck: storage.discard_threads(thread_ids, recheck, discard)

    def empty(self) -> Steps[int]:
        """Empty what has been in the trash for its grace, in short transactions."""
        if (storage := self._storage) is None or self._grace is None:
            return 0
        return (yield from purge(storage, self._now))


def _run(storage: HasTrash, plan: SqlPlan[T]) -> Steps[T]:
    answer: T = yield Work(partial(storage.transact, plan))
    return answer


def purge(storage: HasTrash, now: float | None) -> Steps[int]:
    """Empty the trash of what is over at ``now``, or of everything where that is None."""
    total: int = 0
    after: int = 0
    while True:
        gone, behind = yield from _run(storage, storage.undo.purge(now, after))
        total += gone
        if behind is None:
            return total
        after = behind
