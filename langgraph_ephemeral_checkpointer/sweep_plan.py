"""One sweep, as a plan: find, verify, delete, prune, report.

The plan yields :class:`Work` for the storage and :class:`Ask` for the user's callbacks
and knows nothing of threads, event loops or databases.
"""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

from langgraph_ephemeral_checkpointer.audit import SweepAudit
from langgraph_ephemeral_checkpointer.brake import refusal
from langgraph_ephemeral_checkpointer.checkpoint_ids import time_of_uuid6
from langgraph_ephemeral_checkpointer.errors import (
    ColourError,
    StorageUnavailableError,
    ThreadMovedError,
)
from langgraph_ephemeral_checkpointer.expiry import (
    ALIVE,
    Reason,
    ThreadFacts,
    idle_before,
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
from langgraph_ephemeral_checkpointer.sweep_parts import (
    Candidate,
    StoppedEarly,
    SweepSettings,
    batches,
    describe,
)
from langgraph_ephemeral_checkpointer.sweep_trim import SweepTrim
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
        self._batch_size = min(one for one in (settings.batch_size, *limits) if one is not None)
        self.result = SweepResult(dry_run=dry_run)
        self._audit = SweepAudit(settings.audit_log, strategy, now)
        self._trim = SweepTrim(
            strategy, self.result, self._audit, batch_size=self._batch_size, dry_run=dry_run
        )
        self._seen = 0
        self._gone = 0
        self._matched = 0  # threads found to delete, whatever becomes of them
        self._failed_or_kept = 0  # of those, the ones tried and kept
        self._resolved: dict[str, TTLPolicy | Invalid | None] | None = None
        self._longest_overdue = now

    def run(self) -> Steps[SweepResult]:
        """Sweep once, under the lock, and report."""
        return framed(self._strategy, self._settings, self.result, self.work(), self.count)

    def count(self) -> None:
        """Complete the result once :meth:`work` is over."""
        result = self.result
        result.active_thread_count = self._seen - self._gone - len(result.deleted_thread_ids)
        result.deferred_count = (
            self._matched - len(result.deleted_thread_ids) - self._failed_or_kept
        )
        result.oldest_overdue_seconds = self._now - self._longest_overdue

    def work(self) -> Steps[None]:
        """Find, verify, delete and prune, without a lock and without a report.

        Raises:
            StoppedEarly: The storage went away; the result says so.
        """
        yield from self._trash.open(dry_run=self._dry_run)
        percent = self._settings.max_delete_percent
        if percent is not None and (yield from self._is_too_much(percent)):
            return
        limit = self._settings.max_deletes_per_sweep
        if limit is None:
            yield from self._as_found()
        else:
            yield from self._oldest_first(limit)
        if not self._dry_run:
            self.result.emptied_trash_count = yield from self._trash.empty()
        yield from self._tidy()

    def _tidy(self) -> Steps[None]:
        """Remove rows that no checkpoint leads to, in a bounded part of the tables."""
        age, orphans = self._settings.orphan_age_seconds, self._orphans
        if orphans is None or age is None or not self._strategy.can_find_orphans:
            return
        try:
            self.result.orphan_count = yield from orphans.advance(
                self._strategy, self._now - age, self._now, dry_run=self._dry_run
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
            self._matched += len(candidates)
            oldest[:] = heapq.nsmallest(1, oldest + candidates)

        yield from self._walk(handle)
        why = refusal(self._matched, self._seen, percent)
        if why is not None:
            self.result.refused = True
            self.result.errors[""] = why
            self._note_overdue(oldest)
            return True
        # The walk that deletes finds everything again, and what changed meanwhile.
        self._matched = self._seen = 0
        self.result.kept.clear()
        self.result.errors.clear()
        return False

    def _as_found(self) -> Steps[None]:
        """Delete page by page, so that nothing grows with the number of threads."""

        before = self._unread_before()

        def handle(page: Page) -> Steps[None]:
            threads = page.threads
            if page.unread and before is not None:
                threads = [*(yield from self._delete_unread(page.unread, before)), *threads]
            candidates, prunable = yield from self._judge(threads)
            self._matched += len(candidates)
            for batch in batches(candidates, self._batch_size):
                yield from self._delete(batch)
            yield from self._trim.trim(prunable)

        yield from self._walk(handle, before)

    def _unread_before(self) -> float | None:
        """Say how old a thread may be deleted by its ids alone; None: each is read first.

        That is so where nobody is asked or told before a delete, and every thread goes by the
        same rule.
        """
        settings = self._settings
        if (
            self._dry_run
            or self._trash.wanted
            or settings.policy_resolver is not None
            or settings.on_before_delete is not None
            or settings.audit_log is not None
        ):
            return None
        return idle_before(settings.policy, self._now)

    def _delete_unread(
        self, unread: Sequence[tuple[str, str]], before: float
    ) -> Steps[list[ThreadFacts]]:
        """Delete threads of a page that are surely idle, and read those that may not be.

        Returns:
            The facts of the latter, as if the scan had read them.
        """
        rest: list[tuple[str, str]] = []
        deleted = 0
        for batch in batches(unread, self._batch_size):
            ids = [thread_id for thread_id, _ in batch]
            try:
                gone = yield Work(partial(self._strategy.delete_unread, ids, before))
            except StorageUnavailableError as error:
                self._matched += len(unread) - deleted
                self._fail([self._idle(one) for one in batch], error)
                raise StoppedEarly from error
            except Exception as error:  # noqa: BLE001 - the batch is tried again, thread by thread
                logger.debug("threads have to be read before they are deleted: %s", error)
                gone = ()
            deleted += len(gone)
            self._matched += len(gone)
            yield from self._tell_deleted(dict.fromkeys(gone, "idle_ttl"))
            if len(gone) < len(batch):
                settled = set(gone)
                rest += [one for one in batch if one[0] not in settled]
        if not rest:
            return []
        ids = [thread_id for thread_id, _ in rest]
        facts: list[ThreadFacts] = list((yield Work(partial(self._strategy.read_threads, ids))))
        there = {one.thread_id: one for one in facts}
        for one in rest:
            found = there.get(one[0])
            # The scan found it idle, so it is reported also where it is no longer.
            if found is None:
                self._matched += 1
                self._keep(self._idle(one), Outcome(KeepReason.GONE))
            elif judge(found, self._settings.policy, self._now) == ALIVE:
                self._matched += 1
                self._keep(self._idle(one), Outcome(KeepReason.WOKE_UP))
                del there[one[0]]
        return list(there.values())

    def _idle(self, unread: tuple[str, str]) -> Candidate:
        """Make a candidate of a thread of which only its greatest id is known."""
        thread_id, last_id = unread
        newest_at = time_of_uuid6(last_id)
        policy = self._settings.policy
        facts = ThreadFacts(thread_id, newest_at, None, 0, 0)
        return Candidate(
            judge(facts, policy, self._now).overdue_since, thread_id, facts, policy, "idle_ttl"
        )

    def _oldest_first(self, limit: int) -> Steps[None]:
        """Delete at most ``limit`` threads, those that have been overdue longest.

        Threads that are kept do not count, so the walk goes on until enough are deleted or
        none is left. Only as many candidates are remembered as one round can use, and
        another round walks the storage again. A resolver is asked once a thread, so with
        one all candidates are remembered.
        """
        room = None if self._settings.policy_resolver else limit + self._batch_size
        prune = True
        while True:
            found = yield from self._oldest(room, prune)
            rest = iter(found)
            while (missing := limit - len(self.result.deleted_thread_ids)) > 0:
                batch = list(islice(rest, min(missing, self._batch_size)))
                if not batch:
                    break
                yield from self._delete(batch)
            if missing <= 0 or room is None or len(found) < room:
                self._note_overdue(list(islice(rest, 1)))
                return
            prune = False

    def _oldest(self, room: int | None, prune: bool) -> Steps[list[Candidate]]:
        """Find the ``room`` candidates that have been overdue longest and were not tried yet."""
        found: list[Candidate] = []
        # A thread may have changed since an earlier walk, and match by another rule now.
        settled = {*self.result.kept, *self.result.deleted_thread_ids}
        self._matched = len(self.result.deleted_thread_ids) + self._failed_or_kept

        def handle(page: Page) -> Steps[None]:
            candidates, prunable = yield from self._judge(page.threads)
            fresh = [one for one in candidates if one.thread_id not in settled]
            self._matched += len(fresh)
            found.extend(fresh)
            if room is not None and len(found) > 2 * room:
                found[:] = heapq.nsmallest(room, found)
            if prune:
                yield from self._trim.trim(prunable)

        yield from self._walk(handle)
        return heapq.nsmallest(room or len(found), found)

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
            # A later walk sees less, by what was deleted.
            self._seen = max(self._seen, seen)
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

    def _delete(self, batch: Sequence[Candidate]) -> Steps[None]:
        approved = {}
        restored = yield from self._trash.protected([one.thread_id for one in batch])
        for candidate in batch:
            if candidate.thread_id in restored:
                self._keep(candidate, Outcome(KeepReason.RESTORED))
                continue
            if (yield from self._is_approved(candidate)):
                approved[candidate.thread_id] = candidate
        if not approved:
            return
        if self._dry_run:
            self._note_deleted({one.thread_id: one.reason for one in approved.values()})
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
            self._fail(approved.values(), error)
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
                self._keep(candidate, outcome)
            else:
                deleted[thread_id] = candidate.reason
        yield from self._tell_deleted(deleted)

    def _tell_deleted(self, deleted: dict[str, Reason]) -> Steps[None]:
        """Report threads that are deleted, and tell the caller of each."""
        self._note_deleted(deleted)
        if self._settings.on_after_delete is None:
            return
        for thread_id, reason in deleted.items():
            try:
                yield Ask(self._settings.on_after_delete, (thread_id, reason), owed=True)
            except ColourError:
                raise
            except Exception:
                logger.exception("on_after_delete failed for %r; it is deleted", thread_id)

    def _note_deleted(self, deleted: dict[str, Reason]) -> None:
        self.result.deleted_thread_ids.extend(deleted)
        self.result.reasons.update(deleted)

    def _fail(self, batch: Iterable[Candidate], error: StorageUnavailableError) -> None:
        """Report a batch during which the storage went away."""
        self.result.errors[""] = describe(error)
        for candidate in batch:
            self._keep(candidate, Outcome(KeepReason.FAILED, describe(error)))

    def _no_outcome(self) -> str:
        return f"{type(self._strategy).__name__}.delete_threads() gave no outcome for the thread"

    def _keep(self, candidate: Candidate, outcome: Outcome) -> None:
        assert outcome.kept is not None  # noqa: S101 - for the type checker
        thread_id = candidate.thread_id
        self._failed_or_kept += 1
        self.result.kept[thread_id] = outcome.kept
        if outcome.error is not None:
            self.result.errors[thread_id] = outcome.error
        if outcome.kept is KeepReason.GONE:
            self._gone += 1
        elif outcome.kept is not KeepReason.WOKE_UP:
            self._note_overdue([candidate])

    def _note_overdue(self, left: Sequence[Candidate]) -> None:
        """Remember how long the longest overdue of the threads that stay has been so."""
        self._longest_overdue = min([self._longest_overdue, *(one.overdue_since for one in left)])

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
            self._keep(candidate, Outcome(KeepReason.CALLBACK_FAILED, describe(error)))
            return False
        if answer is False:
            self._keep(candidate, Outcome(KeepReason.VETOED))
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
