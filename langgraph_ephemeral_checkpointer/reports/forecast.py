"""What a limit on idleness would take, for choosing one; nothing is written or decoded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.common.arguments import positive_seconds
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, judge
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.reports.survey import Survey
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.strategies.registry import check_saver, detect_strategy
from langgraph_ephemeral_checkpointer.sweeps.asking import sizes_of
from langgraph_ephemeral_checkpointer.sweeps.parts import batches
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps, resolve
from langgraph_ephemeral_checkpointer.types import PolicyResolver

HOUR, DAY = 3600.0, 86_400.0
DEFAULT_TTLS = (DAY, 7 * DAY, 30 * DAY, 90 * DAY)
BUCKETS = (HOUR, DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY)
"""Upper ends of the histogram's bars, in seconds of idleness; one more bar has the rest."""

_MEASURED_AT_ONCE = 500


@dataclass(slots=True)
class Take:
    """What an idle limit would take.

    Attributes:
        ttl_seconds: The limit.
        threads: How many threads.
        bytes: What they take, as stored; None where the storage cannot tell.
    """

    ttl_seconds: float
    threads: int = 0
    bytes: int | None = 0


@dataclass(slots=True)
class Forecast:
    """What each limit would take, of how many threads.

    Attributes:
        takes: One for each limit, in the order asked for.
        threads: All threads.
        interrupted: Of those, the ones that wait for a human: no idle limit takes them.
        exempt: Of those, the ones that the rules exempt.
        unknown: Of those, the ones of unknown age.
        idle: Threads by idleness: for each end in ``BUCKETS`` those below it, and the rest.
    """

    takes: list[Take]
    threads: int = 0
    interrupted: int = 0
    exempt: int = 0
    unknown: int = 0
    idle: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))


def forecast(
    checkpointer: BaseCheckpointSaver[Any],
    ttls: Sequence[float] = DEFAULT_TTLS,
    *,
    policy_resolver: PolicyResolver | None = None,
    strategy: Strategy | None = None,
    clock: Callable[[], float] = time.time,
) -> Forecast:
    """Say what each of some idle limits would take.

    Args:
        checkpointer: The saver; nothing is written to it.
        ttls: Idle limits in seconds.
        policy_resolver: As of a sweeper; threads that it exempts are left out.
        strategy: How the storage is read, instead of the one for the saver's type.
        clock: The time in seconds since the epoch; read once.

    Returns:
        What each limit would take.

    Raises:
        TypeError: ``checkpointer`` is no saver, or a limit no number.
        ValueError: A limit that is not finite and > 0.
        UnsupportedCheckpointerError: A saver that cannot be swept.
        AsyncRequiredError: The saver or the resolver is asynchronous.
        StorageError: The threads could not be read.
    """
    looking = _Looking(checkpointer, ttls, policy_resolver, strategy, clock)
    if not looking.strategy.runs_sync:
        raise AsyncRequiredError(
            f"{type(checkpointer).__name__} is asynchronous: use aforecast() instead of forecast()"
        )
    for _ in looking.survey.pages():
        pass
    return looking.found


async def aforecast(
    checkpointer: BaseCheckpointSaver[Any],
    ttls: Sequence[float] = DEFAULT_TTLS,
    *,
    policy_resolver: PolicyResolver | None = None,
    strategy: Strategy | None = None,
    clock: Callable[[], float] = time.time,
) -> Forecast:
    """Say what each of some idle limits would take, for any saver; as :func:`forecast`."""
    looking = _Looking(checkpointer, ttls, policy_resolver, strategy, clock)
    async for _ in looking.survey.apages():
        pass
    return looking.found


class _Looking:
    def __init__(
        self,
        checkpointer: BaseCheckpointSaver[Any],
        ttls: Sequence[float],
        resolver: PolicyResolver | None,
        strategy: Strategy | None,
        clock: Callable[[], float],
    ) -> None:
        check_saver(checkpointer)
        self.strategy = strategy or detect_strategy(checkpointer)
        self.found = Forecast([Take(positive_seconds("a limit", ttl)) for ttl in ttls])
        self._resolver = resolver
        self._now = clock()
        self._policies = [TTLPolicy(idle_ttl_seconds=take.ttl_seconds) for take in self.found.takes]
        self.survey = Survey(self.strategy, None, self._page)

    def _page(self, threads: Sequence[ThreadFacts]) -> Steps[None]:
        taken: dict[str, list[Take]] = {}
        for facts in threads:
            self._count(facts)
            takes = [
                take
                for take, policy in zip(self.found.takes, self._policies, strict=True)
                if judge(facts, policy, self._now).reason is not None
            ]
            if self._resolver is not None:
                default = TTLPolicy(idle_ttl_seconds=1)
                if (yield from resolve(default, self._resolver, facts.thread_id)) is None:
                    self.found.exempt += 1
                    continue
            if takes:
                taken[facts.thread_id] = takes
        for ids in batches(taken, _MEASURED_AT_ONCE):
            sizes = yield from sizes_of(self.strategy, ids)
            for thread_id in ids:
                size = sizes.get(thread_id)
                for take in taken[thread_id]:
                    take.threads += 1
                    if size is None or take.bytes is None:
                        take.bytes = None
                    else:
                        take.bytes += size.bytes

    def _count(self, facts: ThreadFacts) -> None:
        found = self.found
        found.threads += 1
        found.interrupted += bool(facts.interrupted)
        if facts.newest_at is None:
            found.unknown += 1
            return
        idle = self._now - facts.newest_at
        found.idle[sum(idle >= end for end in BUCKETS)] += 1
