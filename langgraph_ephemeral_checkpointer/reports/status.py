"""What is stored and what the rules say of it, thread by thread, without touching anything.

Threads come page by page, so memory does not grow with their number.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.decisions.expiry import (
    ALIVE,
    Reason,
    ThreadFacts,
    Verdict,
    judge,
    trim_to,
    wanted_by,
)
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.reports.survey import Survey
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.strategies.registry import check_saver, detect_strategy
from langgraph_ephemeral_checkpointer.sweeps.resolution import Invalid, Steps, resolve
from langgraph_ephemeral_checkpointer.types import PolicyResolver


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
    policy_resolver: PolicyResolver | None = None,
    strategy: Strategy | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[ThreadStatus]:
    """Tell how each thread of a synchronous saver stands.

    Args:
        checkpointer: The saver; nothing is written to it.
        policy: The rules to judge by.
        expired_only: Leave out the threads that a sweep would not delete.
        policy_resolver: As of a sweeper; asked once for each thread.
        strategy: How the storage is read, instead of the one for the saver's type.
        clock: The time in seconds since the epoch; read once.

    Returns:
        The threads in the order of the storage. Those that come or go meanwhile may be in
        it or not.

    Raises:
        TypeError: ``checkpointer`` is no saver, or ``policy`` no TTLPolicy.
        UnsupportedCheckpointerError: A saver that cannot be swept.
        AsyncRequiredError: The saver is asynchronous; while iterating, the resolver.
        StorageError: While iterating: the threads could not be read.
    """
    statuses = _Statuses(checkpointer, policy, expired_only, policy_resolver, strategy, clock)
    if not statuses.strategy.runs_sync:
        raise AsyncRequiredError(
            f"{type(checkpointer).__name__} is asynchronous: use athread_statuses() instead of "
            "thread_statuses()"
        )
    return statuses.iterate()


def athread_statuses(
    checkpointer: BaseCheckpointSaver[Any],
    policy: TTLPolicy,
    *,
    expired_only: bool = False,
    policy_resolver: PolicyResolver | None = None,
    strategy: Strategy | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[ThreadStatus]:
    """Tell how each thread of any saver stands, off the event loop where the saver blocks.

    Use it with ``async for``; otherwise as :func:`thread_statuses`.
    """
    return _Statuses(
        checkpointer, policy, expired_only, policy_resolver, strategy, clock
    ).aiterate()


class _Statuses:
    def __init__(
        self,
        checkpointer: BaseCheckpointSaver[Any],
        policy: TTLPolicy,
        expired_only: bool,
        policy_resolver: PolicyResolver | None,
        strategy: Strategy | None,
        clock: Callable[[], float],
    ) -> None:
        check_saver(checkpointer)
        if not isinstance(policy, TTLPolicy):
            raise TypeError(f"policy must be a TTLPolicy, not {type(policy).__name__}")
        self.strategy = strategy or detect_strategy(checkpointer)
        self._policy = policy
        self._resolver = policy_resolver
        self._expired_only = expired_only
        self._now = clock()
        wanted = wanted_by(policy, self._now) if expired_only and not policy_resolver else None
        self._survey = Survey(self.strategy, wanted, self._page)

    def iterate(self) -> Iterator[ThreadStatus]:
        for page in self._survey.pages():
            yield from page

    async def aiterate(self) -> AsyncIterator[ThreadStatus]:
        async for page in self._survey.apages():
            for status in page:
                yield status

    def _page(self, threads: Sequence[ThreadFacts]) -> Steps[list[ThreadStatus]]:
        statuses = []
        for facts in threads:
            policy = yield from resolve(self._policy, self._resolver, facts.thread_id)
            status = self._status(facts, policy)
            if status.expired or not self._expired_only:
                statuses.append(status)
        return statuses

    def _status(self, facts: ThreadFacts, policy: TTLPolicy | Invalid | None) -> ThreadStatus:
        verdict, most = ALIVE, None
        if isinstance(policy, TTLPolicy):
            verdict = judge(facts, policy, self._now)
            most = trim_to(facts, policy, self._now)
        elif policy is not None:
            verdict = Verdict(kept=KeepReason.INVALID_POLICY)
        return ThreadStatus(
            thread_id=facts.thread_id,
            age_seconds=None if facts.born_at is None else self._now - facts.born_at,
            idle_seconds=None if facts.newest_at is None else self._now - facts.newest_at,
            checkpoint_count=facts.checkpoint_count,
            root_checkpoint_count=facts.root_checkpoint_count,
            interrupted=bool(facts.interrupted),
            reason=verdict.reason,
            kept=verdict.kept,
            excess_checkpoints=0 if most is None else facts.root_checkpoint_count - most,
        )
