"""What is stored and what the rules say of it, thread by thread, without touching anything.

Threads come page by page, so memory does not grow with their number.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.errors import ColourError
from langgraph_ephemeral_checkpointer.expiry import Reason, ThreadFacts, judge, wanted_by
from langgraph_ephemeral_checkpointer.plan import adrive, drive
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.steps import AsyncSteps, SyncSteps, Work
from langgraph_ephemeral_checkpointer.strategies.base import Page, Strategy
from langgraph_ephemeral_checkpointer.strategies.registry import check_saver, detect_strategy
from langgraph_ephemeral_checkpointer.sweep_plan import PAGE_SIZE, Steps


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """One thread as it stands.

    Attributes:
        thread_id: The id as text.
        age_seconds: Since its first checkpoint; None where that cannot be known.
        idle_seconds: Since its newest checkpoint in any namespace; None where that cannot
            be known.
        checkpoint_count: Checkpoints in all namespaces.
        root_checkpoint_count: Checkpoints in the root namespace.
        interrupted: It waits for a human answer.
        reason: The rule by which a sweep would delete it, or None.
        kept: Why a sweep would report it as kept although a rule may match, or None.
        excess_checkpoints: Root checkpoints beyond ``max_checkpoints_per_thread``.
    """

    thread_id: str
    age_seconds: float | None
    idle_seconds: float | None
    checkpoint_count: int
    root_checkpoint_count: int
    interrupted: bool
    reason: Reason | None
    kept: KeepReason | None
    excess_checkpoints: int

    @property
    def expired(self) -> bool:
        """Whether a sweep would delete it."""
        return self.reason is not None


def thread_statuses(
    checkpointer: BaseCheckpointSaver[Any],
    policy: TTLPolicy,
    *,
    expired_only: bool = False,
    strategy: Strategy | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[ThreadStatus]:
    """Tell how each thread of a synchronous saver stands.

    Args:
        checkpointer: The saver; nothing is written to it.
        policy: The rules to judge by.
        expired_only: Leave out the threads that a sweep would not delete.
        strategy: How the storage is read, instead of the one for the saver's type.
        clock: The time in seconds since the epoch; read once.

    Returns:
        The threads in the order of the storage. Those that come or go meanwhile may be in
        it or not.

    Raises:
        TypeError: ``checkpointer`` is no saver.
        ColourError: The saver is asynchronous.
        StorageError: While iterating: the threads could not be read.
    """
    survey = _Survey(checkpointer, policy, expired_only, strategy, clock)
    if not survey.strategy.runs_sync:
        raise ColourError(
            f"{type(checkpointer).__name__} is asynchronous: use athread_statuses() instead of "
            "thread_statuses()"
        )
    return survey.iterate()


def athread_statuses(
    checkpointer: BaseCheckpointSaver[Any],
    policy: TTLPolicy,
    *,
    expired_only: bool = False,
    strategy: Strategy | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[ThreadStatus]:
    """Tell how each thread of any saver stands, off the event loop where the saver blocks.

    Use it with ``async for``; otherwise as :func:`thread_statuses`.
    """
    return _Survey(checkpointer, policy, expired_only, strategy, clock).aiterate()


class _Survey:
    def __init__(
        self,
        checkpointer: BaseCheckpointSaver[Any],
        policy: TTLPolicy,
        expired_only: bool,
        strategy: Strategy | None,
        clock: Callable[[], float],
    ) -> None:
        check_saver(checkpointer)
        if not isinstance(policy, TTLPolicy):
            raise TypeError(f"policy must be a TTLPolicy, not {type(policy).__name__}")
        self.strategy = strategy or detect_strategy(checkpointer)
        self._policy = policy
        self._expired_only = expired_only
        self._now = clock()
        self._after: Any = None
        self._done = False

    def iterate(self) -> Iterator[ThreadStatus]:
        steps = SyncSteps(self.strategy)
        while not self._done:
            yield from drive(self._page(), steps.perform)

    async def aiterate(self) -> AsyncIterator[ThreadStatus]:
        steps = AsyncSteps(self.strategy)
        while not self._done:
            for status in await adrive(self._page(), steps.perform):
                yield status
            steps.raise_if_cancelled()

    def _page(self) -> Steps[list[ThreadStatus]]:
        wanted = wanted_by(self._policy, self._now) if self._expired_only else None
        page: Page = yield Work(partial(self.strategy.scan, wanted, self._after, PAGE_SIZE))
        unsure = [facts.thread_id for facts in page.threads if facts.interrupted is None]
        waiting: set[str] = set()
        if unsure:
            waiting = set((yield Work(partial(self.strategy.find_interrupted, unsure))))
        self._after, self._done = page.next, page.next is None
        statuses = [
            self._status(
                facts
                if facts.interrupted is not None
                else replace(facts, interrupted=facts.thread_id in waiting)
            )
            for facts in page.threads
        ]
        return [one for one in statuses if one.expired or not self._expired_only]

    def _status(self, facts: ThreadFacts) -> ThreadStatus:
        verdict = judge(facts, self._policy, self._now)
        most = self._policy.max_checkpoints_per_thread
        return ThreadStatus(
            thread_id=facts.thread_id,
            age_seconds=None if facts.born_at is None else self._now - facts.born_at,
            idle_seconds=None if facts.newest_at is None else self._now - facts.newest_at,
            checkpoint_count=facts.checkpoint_count,
            root_checkpoint_count=facts.root_checkpoint_count,
            interrupted=bool(facts.interrupted),
            reason=verdict.reason,
            kept=verdict.kept,
            excess_checkpoints=0 if most is None else max(0, facts.root_checkpoint_count - most),
        )
