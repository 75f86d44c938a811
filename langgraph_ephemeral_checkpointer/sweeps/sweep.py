"""One sweep, as a plan: find, verify, delete, prune, report.

The plan yields :class:`.Work` for the storage and :class:`.Ask` for the user's callbacks
and knows nothing of threads, event loops or databases.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from langgraph_ephemeral_checkpointer.decisions.brake import refusal
from langgraph_ephemeral_checkpointer.decisions.expiry import wanted_by
from langgraph_ephemeral_checkpointer.errors import StorageUnusableError
from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.strategies.base import Page, Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    FindsOrphans,
    FindsOrphansFromAnywhere,
)
from langgraph_ephemeral_checkpointer.sweeps.audit import SweepAudit
from langgraph_ephemeral_checkpointer.sweeps.deleting import SweepDelete
from langgraph_ephemeral_checkpointer.sweeps.frame import framed
from langgraph_ephemeral_checkpointer.sweeps.judging import SweepJudge
from langgraph_ephemeral_checkpointer.sweeps.limit import oldest_first
from langgraph_ephemeral_checkpointer.sweeps.orphans import OrphanRound
from langgraph_ephemeral_checkpointer.sweeps.paging import read_page
from langgraph_ephemeral_checkpointer.sweeps.parts import (
    Candidate,
    SweepSettings,
    batches,
    describe,
)
from langgraph_ephemeral_checkpointer.sweeps.report import SweepReport
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps
from langgraph_ephemeral_checkpointer.sweeps.trash import SweepTrash
from langgraph_ephemeral_checkpointer.sweeps.trim import SweepTrim
from langgraph_ephemeral_checkpointer.sweeps.unread import (
    SweepUnread,
    leaves_unread,
    may_stay_unread,
)

T = TypeVar("T")


class Sweep:
    """One sweep in progress.

    Args:
        strategy: The storage.
        settings: What to do.
        now: The time by which everything is judged, in seconds since the epoch.
        dry_run: Write nothing, take no lock, call no ``on_before_delete``.
        orphans: How far the search for orphans has come, over all sweeps; None: no search.
        no_trash: Erase on the spot, and what the trash has of the same threads.

    Attributes:
        result: Filled in as the sweep goes on.
        batch_size: Threads per delete.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: SweepSettings,
        *,
        now: float,
        dry_run: bool,
        no_trash: bool = False,
        orphans: OrphanRound | None = None,
    ) -> None:
        self._strategy = strategy
        self._settings = settings
        self._now = now
        self._dry_run = dry_run
        self._trash = SweepTrash(
            strategy,
            now=now,
            grace_seconds=None if no_trash else settings.options.grace,
            orphan_age_seconds=settings.orphan_age_seconds,
            erase=no_trash,
        )
        self._orphans = orphans
        limits = [strategy.batch_limit, self._trash.batch_limit]
        self.batch_size = min(
            one for one in (settings.options.batch_size, *limits) if one is not None
        )
        self.result = SweepResult(dry_run=dry_run)
        self._report = SweepReport(self.result, settings.on_after_delete, now)
        self._audit = SweepAudit(settings.audit_log, strategy, now)
        self._trim = SweepTrim(
            strategy, self.result, self._audit, batch_size=self.batch_size, dry_run=dry_run
        )
        self._sample: str | None = None
        self._failure: Exception | None = None
        self._judge = SweepJudge(strategy, settings, self.result, now)
        self._delete = SweepDelete(
            strategy, settings, self._report, self._audit, self._trash, now=now, dry_run=dry_run
        )

    def run(self) -> Steps[SweepResult]:
        """Sweep once, under the lock, and report."""
        return framed(self._strategy, self._settings, self.result, self.work(), self.count)

    def count(self) -> None:
        """Complete the result once :meth:`work` is over."""
        self._report.complete()

    def note_overdue(self, left: Sequence[Candidate]) -> None:
        """Remember how long the longest overdue of the threads that stay has been so."""
        self._report.overdue(left)

    def work(self) -> Steps[None]:
        """Find, verify, delete and prune, without a lock and without a report.

        Raises:
            StoppedEarly: The storage went away; the result says so.
        """
        if not (yield from self.begin()):
            return
        limit = self._settings.options.max_deletes
        if limit is None:
            yield from self._as_found()
        else:
            resolves = self._settings.policy_resolver is not None
            yield from oldest_first([self], limit, _plainly, resolves=resolves)
        yield from self.finish()

    def begin(self) -> Steps[bool]:
        """Make sure that the sweep may go on; False where it is refused, as the result says."""
        yield from self._trash.open(dry_run=self._dry_run)
        percent = self._settings.options.max_delete_percent
        if percent is not None and (yield from self._is_too_much(percent)):
            return False
        if not isinstance(self._strategy, FindsOrphansFromAnywhere):
            # Before the deletes: behind them the look would wade through rows only just dead.
            try:
                yield from self._tidy()
            except Exception as error:  # noqa: BLE001 - raised again after the deletes
                self._failure = error
        return True

    def finish(self) -> Steps[None]:
        """Do what comes after the deletes."""
        if not self._dry_run:
            self.result.emptied_trash_count = yield from self._trash.empty()
        if self._failure is not None:
            raise self._failure
        if isinstance(self._strategy, FindsOrphansFromAnywhere):
            yield from self._tidy()

    def _tidy(self) -> Steps[None]:
        """Remove rows that no checkpoint leads to, in a bounded part of the tables."""
        age, orphans = self._settings.orphan_age_seconds, self._orphans
        if orphans is None or age is None or not isinstance(self._strategy, FindsOrphans):
            return
        try:
            self.result.orphan_count = yield from orphans.advance(
                self._strategy, self._now - age, self._now, self._sample, dry_run=self._dry_run
            )
        except StorageUnusableError as error:
            self.result.errors[""] = describe(error)

    def _is_too_much(self, percent: float) -> Steps[bool]:
        """Walk the storage once to count, and refuse the sweep if its share is too large.

        A resolver is asked once a thread, so what it answers here is remembered.
        """
        self._judge.remember()
        oldest: list[Candidate] = []

        def handle(page: Page) -> Steps[None]:
            candidates, _ = yield from self._judge.judge(page.threads)
            self._report.matched += len(candidates)
            oldest[:] = heapq.nsmallest(1, oldest + candidates)

        yield from self._walk(handle)
        why = refusal(self._report.matched, self._report.seen, percent)
        if why is not None:
            self.result.refused = True
            self.result.errors[""] = why
            self._report.overdue(oldest)
            return True
        # The walk that deletes finds everything again, and what changed meanwhile.
        self._report.matched = self._report.seen = 0
        self.result.kept.clear()
        self.result.errors.clear()
        return False

    def _as_found(self) -> Steps[None]:
        """Delete page by page, so that nothing grows with the number of threads."""
        before, lane = None, None
        if not self._dry_run and not self._trash.wanted and leaves_unread(self._strategy):
            before = may_stay_unread(self._settings, self._now)
            lane = SweepUnread(
                self._strategy,
                self._settings,
                self._report,
                now=self._now,
                batch_size=self.batch_size,
            )

        def handle(page: Page) -> Steps[None]:
            done, unsure = len(self.result.deleted_thread_ids), []
            if page.unread and lane is not None and before is not None:
                unsure = yield from lane.delete(page.unread, before)
            # What was read and what was not go apart, but are reported as a dry run does: in order.
            threads = sorted([*unsure, *page.threads], key=lambda facts: facts.thread_id)
            candidates, prunable = yield from self._judge.judge(threads)
            self._report.matched += len(candidates)
            for batch in batches(candidates, self.batch_size):
                yield from self._delete.delete(batch)
            self.result.deleted_thread_ids[done:] = sorted(self.result.deleted_thread_ids[done:])
            yield from self._trim.trim(prunable)

        yield from self._walk(handle, before)

    def delete(self, batch: Sequence[Candidate]) -> Steps[None]:
        """Delete a batch of what :meth:`find_oldest` found; see :meth:`.SweepDelete.delete`."""
        return self._delete.delete(batch)

    def find_oldest(self, room: int | None, *, prune: bool) -> Steps[list[Candidate]]:
        """Find the ``room`` candidates that have been overdue longest and were not tried yet.

        Args:
            room: How many; None for all.
            prune: Trim threads on the way.
        """
        found: list[Candidate] = []
        # A thread may have changed since an earlier walk, and match by another rule now.
        settled = {*self.result.kept, *self.result.deleted_thread_ids}
        self._report.matched = len(self.result.deleted_thread_ids) + self._report.tried_and_kept

        def handle(page: Page) -> Steps[None]:
            candidates, prunable = yield from self._judge.judge(page.threads)
            fresh = [one for one in candidates if one.thread_id not in settled]
            self._report.matched += len(fresh)
            found.extend(fresh)
            if room is not None and len(found) > 2 * room:
                found[:] = heapq.nsmallest(room, found)
            if prune:
                yield from self._trim.trim(prunable)

        yield from self._walk(handle)
        return heapq.nsmallest(len(found) if room is None else room, found)

    def _walk(
        self, handle: Callable[[Page], Steps[None]], unread_before: float | None = None
    ) -> Steps[None]:
        """Hand each page of threads to ``handle``, and count the threads."""
        wanted = None
        if self._settings.policy_resolver is None:
            wanted = wanted_by(self._settings.policy, self._now)
            wanted = replace(wanted, unread_before=unread_before)
        seen, after = 0, None
        while True:
            page = yield from read_page(self._strategy, wanted, after)
            seen += page.seen
            if random.random() * seen < page.seen:  # noqa: S311 - each thread is as likely
                self._sample = page.sample
            # A later walk sees less, by what was deleted.
            self._report.seen = max(self._report.seen, seen)
            yield from handle(page)
            if page.next is None:
                return
            after = page.next


def _plainly(number: int, steps: Steps[T]) -> Steps[T | None]:
    return steps
