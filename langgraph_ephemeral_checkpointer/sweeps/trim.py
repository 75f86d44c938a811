"""The part of a sweep that trims the threads that live on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.errors import (
    StorageUnusableError,
    ThreadBusyError,
    ThreadMovedError,
)
from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.strategies.base import PruneOutcome, Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import Prunes
from langgraph_ephemeral_checkpointer.sweeps.audit import SweepAudit
from langgraph_ephemeral_checkpointer.sweeps.parts import FewWords, StoppedEarly, batches, describe
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps

logger = logging.getLogger(__name__)

_CANNOT_PRUNE = (
    "max_checkpoints_per_thread, which policy_resolver asks for, is not supported for this "
    "checkpointer; the thread was left whole"
)


class SweepTrim:
    """Trim threads batch by batch, or one by one where a batch fails.

    Args:
        strategy: The storage.
        result: Of the sweep; what is done is written into it.
        audit: Is told before and after.
        batch_size: Threads in one transaction.
        dry_run: Only count.
    """

    def __init__(
        self,
        strategy: Strategy,
        result: SweepResult,
        audit: SweepAudit,
        *,
        batch_size: int,
        dry_run: bool,
    ) -> None:
        self._strategy = strategy
        self._result = result
        self._audit = audit
        self._batch_size = batch_size
        self._dry_run = dry_run
        self._few = FewWords(logger)

    def trim(self, prunable: dict[int, list[ThreadFacts]]) -> Steps[None]:
        """Trim threads, given by how many checkpoints each is to keep."""
        for keep, threads in prunable.items():
            if not isinstance(self._strategy, Prunes):
                # A resolver's policy asks for it; the sweeper's own is refused at construction.
                self._result.errors.setdefault(threads[0].thread_id, _CANNOT_PRUNE)
                logger.warning("%s: %s", type(self._strategy).__name__, _CANNOT_PRUNE)
                continue
            for batch in batches(threads, self._batch_size):
                yield from self._batch(self._strategy, batch, keep)

    def _batch(self, storage: Prunes, batch: Sequence[ThreadFacts], keep: int) -> Steps[None]:
        if not self._dry_run:
            yield from self._audit.intend("prune", [(facts, "max_checkpoints") for facts in batch])
        try:
            outcomes = yield from self._apart(storage, [facts.thread_id for facts in batch], keep)
        except StoppedEarly:
            yield from self._audit.lost()
            raise
        for thread_id, outcome in outcomes.items():
            self._result.pruned_checkpoint_count += outcome.removed_checkpoints
            if outcome.left_whole is not None:
                self._result.errors[thread_id] = f"not pruned: {outcome.left_whole}"
        yield from self._audit.pruned(outcomes)

    def _apart(
        self, storage: Prunes, thread_ids: Sequence[str], keep: int
    ) -> Steps[dict[str, PruneOutcome]]:
        call = partial(storage.prune_threads, thread_ids, keep, dry_run=self._dry_run)
        try:
            return dict((yield Work(call)))
        except StorageUnusableError as error:
            self._result.errors[""] = describe(error)
            raise StoppedEarly from error
        except (ThreadMovedError, ThreadBusyError):
            if len(thread_ids) == 1:  # somebody else trims it, or deletes it, or has it locked
                return {}
        except Exception as error:  # noqa: BLE001 - whatever a custom strategy raises
            if len(thread_ids) == 1:
                self._few.warn("thread %r could not be pruned: %s", thread_ids[0], error)
                return {thread_ids[0]: PruneOutcome(left_whole=describe(error))}
        outcomes: dict[str, PruneOutcome] = {}
        for thread_id in thread_ids:
            outcomes.update((yield from self._apart(storage, [thread_id], keep)))
        return outcomes
