"""One sweep, as a plan: find, verify, delete, prune, report.

The plan yields :class:`Work` for the storage and :class:`Ask` for the user's callbacks
and knows nothing of threads, event loops or databases.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from langgraph_ephemeral_checkpointer.audit import SweepAudit
from langgraph_ephemeral_checkpointer.brake import refusal
from langgraph_ephemeral_checkpointer.errors import (
    ColourError,
    StorageUnavailableError,
    ThreadMovedError,
)
from langgraph_ephemeral_checkpointer.expiry import (
    Reason,
    ThreadFacts,
    judge,
    still_expired,
    trim_to,
    verdicts,
    wanted_by,
)
from langgraph_ephemeral_checkpointer.orphans.sweeping import OrphanRound
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.resolution import Invalid, Steps, resolve
from langgraph_ephemeral_checkpointer.result import KeepReason, SweepResult
from langgraph_ephemeral_checkpointer.steps import Ask, Work
from langgraph_ephemeral_checkpointer.strategies.base import (
    Outcome,
    Page,
    Recheck,
    Strategy,
)
from langgraph_ephemeral_checkpointer.sweep_frame import framed
from langgraph_ephemeral_checkpointer.sweep_limit import oldest_first
from langgraph_ephemeral_checkpointer.sweep_parts import (
    Candidate,
    StoppedEarly,
    SweepSettings,
    batches,
    describe,
)
from langgraph_ephemeral_checkpointer.sweep_report import SweepReport
from langgraph_ephemeral_checkpointer.sweep_trim import SweepTrim
from langgraph_ephemeral_checkpointer.sweep_unread import SweepUnread, may_stay_unread
from langgraph_ephemeral_checkpointer.trash.model import Discard
from langgraph_ephemeral_checkpointer.trash.sweeping import SweepTrash

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAGE_SIZE = 10_000
"""Threads looked at in one read."""


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
            grace_seconds=None if no_trash else settings.grace_seconds,
            orphan_age_seconds=settings.orphan_age_seconds,
            erase=no_trash,
        )
        self._orphans = orphans
        limits = [strategy.batch_limit, strategy.discard_limit if self._trash.wanted else None]
        self.batch_size = min(one for one in (settings.batch_size, *limits) if one is not None)
        self.result = SweepResult(dry_run=dry_run)
        self._report = SweepReport(self.result, settings.on_after_delete, now)
        self._audit = SweepAudit(settings.audit_log, strategy, now)
        self._trim = SweepTrim(
            strategy, self.result, self._audit, batch_size=self.batch_size, dry_run=dry_run
        )
        self._sample: str | None = None
        self._failure: Exception | None = None
        self._resolved: dict[str, TTLPolicy | Invalid | None] | None = None

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
        limit = self._settings.max_deletes_per_sweep
        if limit is None:
            yield from self._as_found()
        else:
            resolves = self._settings.policy_resolver is not None
            yield from oldest_first([self], limit, _plainly, resolves=resolves)
        yield from self.finish()

    def begin(self) -> Steps[bool]:
        """Make sure that the sweep may go on; False where it is refused, as the result says."""
        yield from self._trash.open(dry_run=self._dry_run)
        percent = self._settings.max_delete_percent
        if percent is not None and (yield from self._is_too_much(percent)):
            return False
        if not self._strategy.gives_samples:
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
        if self._strategy.gives_samples:
            yield from self._tidy()

    def _tidy(self) -> Steps[None]:
        """Remove rows that no checkpoint leads to, in a bounded part of the tables."""
        age, orphans = self._settings.orphan_age_seconds, self._orphans
        if orphans is None or age is None or not self._strategy.can_find_orphans:
            return
        try:
            self.result.orphan_count = yield from orphans.advance(
                self._strategy, self._now - age, self._now, self._sample, dry_run=self._dry_run
            )
        except StorageUnavailableError as error:
            self.result.errors[""] = describe(error)

    def _is_too_much(self, percent: float) -> Steps[bool]:
        """Walk the storage once to count, and refuse the sweep if its share is too large.

        A resolver is asked once a thread, so what it answers here is remembered.
        """
        self._resolved = {}
        oldest: list[Candidate] = []

        def handle(page: Page) -> Steps[None]:
            candidates, _ = yield from self._judge(page.threads)
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
        before = None
        if not self._dry_run and not self._trash.wanted:
            before = may_stay_unread(self._strategy, self._settings, self._now)
        lane = SweepUnread(
            self._strategy,
            self._settings,
            self._report,
            now=self._now,
            batch_size=self.batch_size,
        )

        def handle(page: Page) -> Steps[None]:
            done, unsure = len(self.result.deleted_thread_ids), []
            if page.unread and before is not None:
                unsure = yield from lane.delete(page.unread, before)
            # What was read and what was not go apart, but are reported as a dry run does: in order.
            threads = sorted([*unsure, *page.threads], key=lambda facts: facts.thread_id)
            candidates, prunable = yield from self._judge(threads)
            self._report.matched += len(candidates)
            for batch in batches(candidates, self.batch_size):
                yield from self.delete(batch)
            self.result.deleted_thread_ids[done:] = sorted(self.result.deleted_thread_ids[done:])
            yield from self._trim.trim(prunable)

        yield from self._walk(handle, before)

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
            candidates, prunable = yield from self._judge(page.threads)
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
            page: Page = yield Work(partial(self._strategy.scan, wanted, after, PAGE_SIZE))
            seen += page.seen
            if random.random() * seen < page.seen:  # noqa: S311 - each thread is as likely
                self._sample = page.sample
            # A later walk sees less, by what was deleted.
            self._report.seen = max(self._report.seen, seen)
            yield from handle(page)
            if page.next is None:
                return
            after = page.next

    def _judge(
        self, threads: Sequence[ThreadFacts]
    ) -> Steps[tuple[list[Candidate], dict[int, list[ThreadFacts]]]]:
        """Sort out a page: what is to be deleted, and what is to be trimmed to which length."""
        judged: list[tuple[ThreadFacts, TTLPolicy]] = []
        for facts in threads:
            policy = yield from self._policy_of(facts.thread_id)
            if policy is not None:
                judged.append((facts, policy))
        # The verdict of each, and the one that holds instead if it waits for a human answer.
        pairs = [
            verdicts(facts, policy, self._now)
            if facts.interrupted is None
            else (judge(facts, policy, self._now),) * 2
            for facts, policy in judged
        ]
        unsure = [
            facts.thread_id
            for (facts, _), (asleep, waits) in zip(judged, pairs, strict=True)
            if asleep != waits
        ]
        waiting: set[str] = set()
        if unsure:
            waiting = set((yield Work(partial(self._strategy.find_interrupted, unsure))))
        candidates: list[Candidate] = []
        prunable: dict[int, list[ThreadFacts]] = defaultdict(list)
        for (facts, policy), (asleep, waits) in zip(judged, pairs, strict=True):
            is_waiting = facts.thread_id in waiting
            verdict = waits if is_waiting else asleep
            if facts.interrupted is None:
                facts = replace(facts, interrupted=is_waiting)
            if verdict.reason is not None:
                candidates.append(
                    Candidate(verdict.overdue_since, facts.thread_id, facts, policy, verdict.reason)
                )
                continue
            if verdict.kept is not None:
                self.result.kept.setdefault(facts.thread_id, verdict.kept)
            keep = trim_to(facts, policy, self._now)
            if keep is not None:
                prunable[keep].append(facts)
        return candidates, prunable

    def _policy_of(self, thread_id: str) -> Steps[TTLPolicy | None]:
        known = self._resolved
        if known is not None and thread_id in known:
            policy = known[thread_id]
        else:
            policy = yield from resolve(
                self._settings.policy, self._settings.policy_resolver, thread_id
            )
            if known is not None and self._settings.policy_resolver is not None:
                known[thread_id] = policy
        if isinstance(policy, Invalid):
            self.result.kept[thread_id] = KeepReason.INVALID_POLICY
            self.result.errors[thread_id] = policy.error
            return None
        return policy

    def delete(self, batch: Sequence[Candidate]) -> Steps[None]:
        """Ask about each thread of a batch, delete the approved ones, and report.

        Raises:
            StoppedEarly: The storage went away; the result says so.
        """
        approved = {}
        restored = yield from self._trash.protected([one.thread_id for one in batch])
        for candidate in batch:
            if candidate.thread_id in restored:
                self._report.keep(candidate, Outcome(KeepReason.RESTORED))
                continue
            if (yield from self._is_approved(candidate)):
                approved[candidate.thread_id] = candidate
        if not approved:
            return
        if self._dry_run:
            self._report.would_delete({one.thread_id: one.reason for one in approved.values()})
            return
        yield from self._audit.intend(
            "delete", [(one.facts, one.reason) for one in approved.values()]
        )
        try:
            discard = self._trash.discard({one.thread_id: one.reason for one in approved.values()})
            outcomes = yield from self._delete_apart(
                list(approved), self._recheck(approved), discard
            )
        except StorageUnavailableError as error:
            yield from self._audit.lost()
            self._report.storage_away(approved.values(), error)
            raise StoppedEarly from error
        try:
            yield from self._audit.deleted(outcomes)
        finally:
            yield from self._settle(approved, outcomes)

    def _settle(self, approved: dict[str, Candidate], outcomes: dict[str, Outcome]) -> Steps[None]:
        """Report what became of a batch."""
        deleted: dict[str, Reason] = {}
        for thread_id, candidate in approved.items():
            outcome = outcomes.get(thread_id) or Outcome(KeepReason.FAILED, self._no_outcome())
            if outcome.kept is not None:
                self._report.keep(candidate, outcome)
            else:
                deleted[thread_id] = candidate.reason
        yield from self._report.deleted(deleted)

    def _no_outcome(self) -> str:
        return f"{type(self._strategy).__name__}.delete_threads() gave no outcome for the thread"

    def _is_approved(self, candidate: Candidate) -> Steps[bool]:
        veto = self._settings.on_before_delete
        if veto is None or self._dry_run:
            return True
        thread_id = candidate.thread_id
        try:
            answer = yield Ask(veto, (thread_id, candidate.policy, candidate.reason))
        except ColourError:
            raise
        except Exception as error:
            logger.exception("on_before_delete failed for %r; the thread is kept", thread_id)
            self._report.keep(candidate, Outcome(KeepReason.CALLBACK_FAILED, describe(error)))
            return False
        if answer is False:
            self._report.keep(candidate, Outcome(KeepReason.VETOED))
            return False
        return True

    def _recheck(self, approved: dict[str, Candidate]) -> Recheck | None:
        if not self._settings.safe_delete:
            return None
        now = self._now

        def recheck(thread_id: str, facts: ThreadFacts | None) -> KeepReason | None:
            candidate = approved[thread_id]
            return still_expired(facts, candidate.policy, candidate.reason, now)

        return recheck

    def _delete_apart(
        self, thread_ids: Sequence[str], recheck: Recheck | None, discard: Discard | None
    ) -> Steps[dict[str, Outcome]]:
        """Delete a batch, or where that fails each thread alone, so that one stops no other."""
        try:
            if discard is None:
                call = partial(self._strategy.delete_threads, thread_ids, recheck)
            else:
                call = partial(self._strategy.discard_threads, thread_ids, recheck, discard)
            return dict((yield Work(call)))
        except StorageUnavailableError:
            raise
        except ThreadMovedError:
            if len(thread_ids) == 1:
                return {thread_ids[0]: Outcome(KeepReason.WOKE_UP)}
        except Exception as error:  # noqa: BLE001 - whatever a custom strategy raises
            if len(thread_ids) == 1:
                logger.warning("thread %r could not be deleted: %s", thread_ids[0], error)
                return {thread_ids[0]: Outcome(KeepReason.FAILED, describe(error))}
        outcomes: dict[str, Outcome] = {}
        for thread_id in thread_ids:
            outcomes.update((yield from self._delete_apart([thread_id], recheck, discard)))
        return outcomes


def _plainly(number: int, steps: Steps[T]) -> Steps[T | None]:
    return steps
