"""The part of a sweep that deletes: asks about each thread of a batch, deletes it, reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.expiry import Reason, ThreadFacts, still_expired
from langgraph_ephemeral_checkpointer.engine.steps import Ask, Work
from langgraph_ephemeral_checkpointer.errors import (
    AsyncRequiredError,
    StorageUnusableError,
    ThreadBusyError,
    ThreadMovedError,
)
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Recheck, Strategy
from langgraph_ephemeral_checkpointer.sweeps.audit import SweepAudit
from langgraph_ephemeral_checkpointer.sweeps.parts import (
    Candidate,
    FewWords,
    StoppedEarly,
    SweepSettings,
    describe,
)
from langgraph_ephemeral_checkpointer.sweeps.report import SweepReport
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps
from langgraph_ephemeral_checkpointer.sweeps.trash import Delete, SweepTrash

logger = logging.getLogger(__name__)


class SweepDelete:
    """Deletes candidates batch by batch, or one by one where a batch fails.

    Args:
        strategy: The storage.
        settings: What the sweep is told to do.
        report: Is told what became of each thread.
        audit: Is told before and after.
        trash: Where the threads go, if there is one.
        now: The time of the sweep, in seconds since the epoch.
        dry_run: Only report.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: SweepSettings,
        report: SweepReport,
        audit: SweepAudit,
        trash: SweepTrash,
        *,
        now: float,
        dry_run: bool,
    ) -> None:
        self._strategy = strategy
        self._settings = settings
        self._report = report
        self._audit = audit
        self._trash = trash
        self._now = now
        self._dry_run = dry_run
        self._few = FewWords(logger)

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
            reasons = {one.thread_id: one.reason for one in approved.values()}
            delete = self._trash.discard(reasons) or self._strategy.delete_threads
            outcomes = yield from self._delete_apart(
                delete, list(approved), self._recheck(approved)
            )
        except StorageUnusableError as error:
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

    def _outcomes(self, answer: Any) -> dict[str, Outcome]:
        """What a strategy gave, without what is no outcome; somebody else may have written it."""
        if not isinstance(answer, Mapping):
            raise TypeError(
                f"{type(self._strategy).__name__}.delete_threads() must return a mapping from "
                f"thread id to Outcome, not {type(answer).__name__}"
            )
        return {name: one for name, one in answer.items() if isinstance(one, Outcome)}

    def _no_outcome(self) -> str:
        return f"{type(self._strategy).__name__}.delete_threads() gave no outcome for the thread"

    def _is_approved(self, candidate: Candidate) -> Steps[bool]:
        veto = self._settings.on_before_delete
        if veto is None or self._dry_run:
            return True
        thread_id = candidate.thread_id
        try:
            answer = yield Ask(veto, (thread_id, candidate.policy, candidate.reason))
        except AsyncRequiredError:
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
        self, delete: Delete, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Steps[dict[str, Outcome]]:
        """Delete a batch, or where that fails each thread alone, so that one stops no other."""
        try:
            return self._outcomes((yield Work(partial(delete, thread_ids, recheck))))
        except StorageUnusableError:
            raise
        except ThreadMovedError:
            if len(thread_ids) == 1:
                return {thread_ids[0]: Outcome(KeepReason.WOKE_UP)}
        except ThreadBusyError:
            if len(thread_ids) == 1:
                return {thread_ids[0]: Outcome(KeepReason.BUSY)}
        except Exception as error:  # noqa: BLE001 - whatever a custom strategy raises
            if len(thread_ids) == 1:
                self._few.warn("thread %r could not be deleted: %s", thread_ids[0], error)
                return {thread_ids[0]: Outcome(KeepReason.FAILED, describe(error))}
        outcomes: dict[str, Outcome] = {}
        for thread_id in thread_ids:
            outcomes.update((yield from self._delete_apart(delete, [thread_id], recheck)))
        return outcomes
