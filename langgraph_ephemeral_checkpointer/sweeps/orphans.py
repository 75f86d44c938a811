"""Walking all orphans, a page in a transaction; and the part that they have in a sweep."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan, adrive, drive
from langgraph_ephemeral_checkpointer.engine.steps import AsyncSteps, SyncSteps, Work
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError, UnsupportedCheckpointerError
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    FindsOrphans,
    FindsOrphansFromAnywhere,
    HasTenants,
)
from langgraph_ephemeral_checkpointer.strategies.orphans import (
    PAGE_LIMIT,
    SWEEP_LIMIT,
    Orphan,
    OrphanKind,
    OrphanPage,
)
from langgraph_ephemeral_checkpointer.sweeps.asking import tenant_of

T = TypeVar("T")
Steps: TypeAlias = Plan[Work, T]


def walk(strategy: FindsOrphans, before: float, now: float) -> Steps[list[Orphan]]:
    """Find every orphan, of every tenant where the storage shows no particular one."""
    parts = yield from _of_everyone(strategy, partial(_walk, strategy, before, now))
    return [orphan for part in parts for orphan in part]


def _walk(strategy: FindsOrphans, before: float, now: float) -> Steps[list[Orphan]]:
    found: list[Orphan] = []
    after: Any = None
    while True:
        page: OrphanPage = yield _look(strategy, before, now, after, PAGE_LIMIT)
        found += page.orphans
        if page.next is None:
            return found
        after = page.next


def remove(strategy: FindsOrphans, before: float, now: float) -> Steps[int]:
    """Find and delete every orphan, and count the rows; of everybody, as :func:`walk`."""
    return sum((yield from _of_everyone(strategy, partial(_remove, strategy, before, now))))


def _remove(strategy: FindsOrphans, before: float, now: float) -> Steps[int]:
    removed, after = 0, None
    while True:
        page: OrphanPage = yield _look(strategy, before, now, after, PAGE_LIMIT)
        removed += yield from _delete(strategy, page, before)
        if page.next is None:
            return removed
        after = page.next


def _of_everyone(strategy: FindsOrphans, plan: Callable[[], Steps[T]]) -> Steps[list[T]]:
    if not isinstance(strategy, HasTenants) or not strategy.spans_tenants:
        return [(yield from plan())]
    tenants = yield Work(strategy.tenants)
    answers = []
    for tenant in tenants:
        with strategy.tenant_scope(tenant):
            answers.append((yield from plan()))
    return answers


class OrphanRound:
    """Goes round the tables, a bounded part in each sweep, so that none costs much.

    A small database is looked at whole in every sweep. Each tenant has its own round.
    """

    def __init__(self) -> None:
        self._after: dict[str | None, Any] = {}

    def advance(
        self,
        strategy: FindsOrphans,
        before: float,
        now: float,
        sample: str | None,
        *,
        dry_run: bool,
    ) -> Steps[int]:
        """Look at the next part, delete its orphans, and count the rows.

        Args:
            strategy: The storage.
            before: Rows of this moment and later are young, in seconds since the epoch.
            now: The time of the sweep.
            sample: Any one thread, where the storage gives it.
            dry_run: Only count.
        """
        whose = tenant_of(strategy)
        removed, after = 0, self._after.get(whose)
        # The two kinds of rows are two parts; a round that ends begins again next time.
        looks = 2
        while looks:
            page: OrphanPage = yield _look(strategy, before, now, after, SWEEP_LIMIT)
            if dry_run:
                removed += sum(orphan.rows for orphan in page.orphans)
            else:
                removed += yield from _delete(strategy, page, before)
            after, looks = page.next, looks - 1
            if after is None:
                break
            if (
                not looks
                and whose not in self._after
                and sample is not None
                and isinstance(strategy, FindsOrphansFromAnywhere)
            ):
                # Too much for one sweep. Where each is a process of its own, what lies behind
                # the first part is only ever reached by going on anywhere.
                kind: OrphanKind = random.choice(("writes", "blobs"))  # noqa: S311 - no secret
                after, looks, sample = strategy.orphans_from(kind, sample), 1, None
        if not dry_run:
            self._after[whose] = after
        return removed


def _look(strategy: FindsOrphans, before: float, now: float, after: Any, limit: int) -> Work:
    return Work(partial(strategy.find_orphans, before, now, after, limit))


def _delete(strategy: FindsOrphans, page: OrphanPage, before: float) -> Steps[int]:
    if not page.orphans:
        return 0
    removed: int = yield Work(partial(strategy.delete_orphans, page.orphans, before))
    return removed


class OrphanMethods:
    """What a sweeper offers of orphans.

    The methods whose names begin with ``a`` are for ``await``; they do what the others do, and
    are the only ones for an asynchronous checkpointer: the others raise ``AsyncRequiredError``
    there.
    """

    _strategy: Strategy
    _orphan_age_seconds: float | None
    _read_clock: Callable[[], float]
    _orphan_round: OrphanRound

    def orphans(self) -> list[Orphan]:
        """Find the rows that no checkpoint leads to and that are older than the sweeper's limit.

        The limit is ``orphan_age_seconds``, or a day where that is None.

        Returns:
            The orphans, of every tenant where the storage shows no particular one.

        Raises:
            UnsupportedCheckpointerError: This kind of checkpointer cannot be looked through.
            AsyncRequiredError: The saver is asynchronous.
            TenantRequiredError: No tenant is in scope, and the role does not see every one.
            StorageError: The database refused.
        """
        return self._do_orphans(walk)

    async def aorphans(self) -> list[Orphan]:
        """As :meth:`orphans`."""
        return await self._ado_orphans(walk)

    def delete_orphans(self) -> int:
        """Delete what :meth:`orphans` finds, each row looked at again as it goes.

        Returns:
            How many rows went.

        Raises:
            RetentionError: As for :meth:`orphans`.
        """
        return self._do_orphans(remove)

    async def adelete_orphans(self) -> int:
        """As :meth:`delete_orphans`."""
        return await self._ado_orphans(remove)

    def go_on_from(self, earlier: OrphanMethods) -> None:
        """Look for orphans behind where another sweeper of the same storage stopped."""
        self._orphan_round = earlier._orphan_round

    def _of_orphans(self, plan: Callable[[FindsOrphans, float, float], Steps[T]]) -> Steps[T]:
        if not isinstance(self._strategy, FindsOrphans):
            raise UnsupportedCheckpointerError(
                f"{type(self._strategy.checkpointer).__name__} cannot be searched for orphans "
                f"({type(self._strategy).__name__} cannot look for them); remove them by means of "
                "the storage"
            )
        now = self._read_clock()
        age = _DAY if self._orphan_age_seconds is None else self._orphan_age_seconds
        return plan(self._strategy, now - age, now)

    def _do_orphans(self, plan: Callable[[FindsOrphans, float, float], Steps[T]]) -> T:
        if not self._strategy.runs_sync:
            raise AsyncRequiredError(
                f"{type(self._strategy.checkpointer).__name__} is asynchronous: use the method of "
                "the same name with an 'a' in front, and await it"
            )
        return drive(self._of_orphans(plan), SyncSteps(self._strategy).perform)

    async def _ado_orphans(self, plan: Callable[[FindsOrphans, float, float], Steps[T]]) -> T:
        steps = AsyncSteps(self._strategy)
        answer = await adrive(self._of_orphans(plan), steps.perform)
        steps.raise_if_cancelled()
        return answer


_DAY = 86_400
