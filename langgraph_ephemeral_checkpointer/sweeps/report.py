"""What a sweep reports: how many threads there are, and what became of those that were due."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from langgraph_ephemeral_checkpointer.decisions.expiry import Reason
from langgraph_ephemeral_checkpointer.engine.steps import Ask
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError
from langgraph_ephemeral_checkpointer.result import KeepReason, SweepResult
from langgraph_ephemeral_checkpointer.strategies.base import Outcome
from langgraph_ephemeral_checkpointer.sweeps.parts import Candidate, describe
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps
from langgraph_ephemeral_checkpointer.types import OnAfterDelete

logger = logging.getLogger(__name__)


class SweepReport:
    """Fills in the result of one sweep as it goes on.

    Args:
        result: The result.
        on_after_delete: Is told of each thread that is deleted, or None.
        now: The time of the sweep, in seconds since the epoch.

    Attributes:
        seen: Threads looked at.
        matched: Threads found to delete, whatever becomes of them.
        tried_and_kept: Of those, the ones that stay for a reason in the result.
    """

    def __init__(
        self, result: SweepResult, on_after_delete: OnAfterDelete | None, now: float
    ) -> None:
        self._result = result
        self._on_after_delete = on_after_delete
        self._now = now
        self._gone = 0
        self._longest_overdue = now
        self.seen = 0
        self.matched = 0
        self.tried_and_kept = 0

    def complete(self) -> None:
        """Put what was counted into the result."""
        result = self._result
        result.active_thread_count = self.seen - self._gone - len(result.deleted_thread_ids)
        result.deferred_count = self.matched - len(result.deleted_thread_ids) - self.tried_and_kept
        result.oldest_overdue_seconds = self._now - self._longest_overdue

    def deleted(self, reasons: Mapping[str, Reason]) -> Steps[None]:
        """Report threads that are deleted, by the rule of each, and tell the caller of them."""
        self.would_delete(reasons)
        if self._on_after_delete is None:
            return
        for thread_id, reason in reasons.items():
            try:
                yield Ask(self._on_after_delete, (thread_id, reason), owed=True)
            except AsyncRequiredError:
                raise
            except Exception:
                logger.exception("on_after_delete failed for %r; it is deleted", thread_id)

    def would_delete(self, reasons: Mapping[str, Reason]) -> None:
        """Report threads as deleted and tell nobody, as a dry run does."""
        self._result.deleted_thread_ids.extend(reasons)
        self._result.reasons.update(reasons)

    def keep(self, candidate: Candidate, outcome: Outcome) -> None:
        """Report a thread that a rule matched and that stays."""
        assert outcome.kept is not None  # noqa: S101 - for the type checker
        thread_id = candidate.thread_id
        self.tried_and_kept += 1
        self._result.kept[thread_id] = outcome.kept
        if outcome.error is not None:
            self._result.errors[thread_id] = outcome.error
        if outcome.kept is KeepReason.GONE:
            self._gone += 1
        elif outcome.kept is not KeepReason.WOKE_UP:
            self.overdue([candidate])

    def storage_away(self, batch: Iterable[Candidate], error: BaseException) -> None:
        """Report a batch during which the storage went away."""
        self._result.errors[""] = describe(error)
        for candidate in batch:
            self.keep(candidate, Outcome(KeepReason.FAILED, describe(error)))

    def overdue(self, left: Iterable[Candidate]) -> None:
        """Remember how long the longest overdue of the threads that stay has been so."""
        self._longest_overdue = min([self._longest_overdue, *(one.overdue_since for one in left)])
