"""The part of a sweep that deletes threads which the scan left unread.

Where nobody is asked or told before a delete and every thread goes by the idle rule alone, the
greatest id of a thread says whether it is due, and the deleting transaction makes sure of it.
To read it first would cost half as much again as to delete it. Whatever is not sure goes the
ordinary way: it is read, judged, and read again at its delete.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import TypeGuard

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_uuid6
from langgraph_ephemeral_checkpointer.decisions.expiry import (
    Reason,
    ThreadFacts,
    idle_before,
    judge,
)
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.errors import StorageUnusableError
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import LeavesUnread
from langgraph_ephemeral_checkpointer.sweeps.parts import (
    Candidate,
    StoppedEarly,
    SweepSettings,
    batches,
)
from langgraph_ephemeral_checkpointer.sweeps.report import SweepReport
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps

logger = logging.getLogger(__name__)

_REASON: Reason = "idle_ttl"

Unread = tuple[str, str]
"""A thread and its greatest id."""


def may_stay_unread(settings: SweepSettings, now: float) -> float | None:
    """Say from before when a thread may be deleted without being read first; None: no thread.

    Args:
        settings: What the sweep is told to do.
        now: Its time, in seconds since the epoch.
    """
    asks = settings.policy_resolver, settings.on_before_delete, settings.audit_log
    if any(one is not None for one in asks):
        return None
    return idle_before(settings.policy, now)


def leaves_unread(strategy: Strategy) -> TypeGuard[LeavesUnread]:
    """Say whether a storage may be asked to leave threads unread.

    Whoever wrote how threads are found and deleted must have written this part as well.

    A subclass of the user's that passes some threads by in ``scan``, or does more in
    ``delete_threads``, would be passed by itself.
    """
    kind = type(strategy)
    if not issubclass(kind, LeavesUnread):
        return False
    unread = _author(kind, "delete_unread")
    return all(issubclass(unread, _author(kind, name)) for name in ("scan", "delete_threads"))


def _author(kind: type, method: str) -> type:
    return next(one for one in kind.__mro__ if method in vars(one))


class SweepUnread:
    """Deletes unread threads batch by batch.

    Args:
        strategy: The storage.
        settings: What the sweep is told to do.
        report: Is told what became of each thread that is due.
        now: The time of the sweep, in seconds since the epoch.
        batch_size: Threads in one transaction.
    """

    def __init__(
        self,
        strategy: LeavesUnread,
        settings: SweepSettings,
        report: SweepReport,
        *,
        now: float,
        batch_size: int,
    ) -> None:
        self._strategy = strategy
        self._policy = settings.policy
        self._report = report
        self._now = now
        self._batch_size = batch_size

    def delete(self, unread: Sequence[Unread], before: float) -> Steps[list[ThreadFacts]]:
        """Delete what is sure to be idle.

        Args:
            unread: Threads of one page.
            before: As :func:`may_stay_unread` said.

        Returns:
            The facts of threads that are not sure to be idle, as if the scan had read them.

        Raises:
            StoppedEarly: The storage went away; the report says so.
        """
        rest: list[Unread] = []
        deleted = 0
        for batch in batches(unread, self._batch_size):
            try:
                gone = yield from self._batch([thread_id for thread_id, _ in batch], before)
            except StorageUnusableError as error:
                self._report.matched += len(unread) - deleted
                self._report.storage_away(map(self._candidate, batch), error)
                raise StoppedEarly from error
            deleted += len(gone)
            self._report.matched += len(gone)
            yield from self._report.deleted(dict.fromkeys(gone, _REASON))
            if len(gone) < len(batch):
                settled = set(gone)
                rest += [one for one in batch if one[0] not in settled]
        return (yield from self._read(rest)) if rest else []

    def _batch(self, ids: Sequence[str], before: float) -> Steps[Collection[str]]:
        try:
            gone: Collection[str] = yield Work(partial(self._strategy.delete_unread, ids, before))
        except StorageUnusableError:
            raise
        except Exception as error:  # noqa: BLE001 - the ordinary way tells which thread it is
            logger.debug("%d threads are read before they are deleted: %s", len(ids), error)
            return ()
        return gone

    def _read(self, unread: Sequence[Unread]) -> Steps[list[ThreadFacts]]:
        """Read threads, and report those that are gone: the scan had counted them."""
        ids = [thread_id for thread_id, _ in unread]
        found: list[ThreadFacts] = list((yield Work(partial(self._strategy.read_threads, ids))))
        there = {facts.thread_id for facts in found}
        for one in unread:
            if one[0] not in there:
                self._report.matched += 1
                self._report.keep(self._candidate(one), Outcome(KeepReason.GONE))
        return found

    def _candidate(self, unread: Unread) -> Candidate:
        thread_id, last_id = unread
        facts = ThreadFacts(thread_id, time_of_uuid6(last_id), None, 0, 0)
        since = judge(facts, self._policy, self._now).overdue_since
        return Candidate(since, thread_id, facts, self._policy, _REASON)
