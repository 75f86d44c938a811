"""TTLPolicy: when a thread is expired."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING

from langgraph_ephemeral_checkpointer.common.arguments import positive_seconds
from langgraph_ephemeral_checkpointer.common.kinds import COUNT, DURATION, declared, option


class PolicyOverride(enum.Enum):
    """What a resolver may answer instead of a policy."""

    USE_DEFAULT = "use_default"
    """The policy of the sweeper."""
    EXEMPT = "exempt"
    """No rule: the thread is neither deleted nor pruned."""


@dataclass(frozen=True)
class TTLPolicy:
    """When a thread is expired, and how much of it is kept until then.

    A thread is expired if any rule matches. At least one rule must be given.

    Args:
        idle_ttl_seconds: Expired when no namespace has had a new checkpoint for longer
            than this. A thread that waits for a human answer is not idle.
        hard_age_ttl_seconds: Expired when the first checkpoint is older than this,
            whatever happened since, also where pruning has removed that checkpoint.
        max_checkpoints_per_thread: Keep at most the newest N checkpoints of the root
            namespace, and what they need.
        interrupted_ttl_seconds: Like the idle rule, for threads that wait for a human
            answer, and only for those.

    The durations are seconds, as int, float or timedelta, and are stored as a number.

    Raises:
        ValueError: No rule, a duration that is not finite or not > 0, a count < 1.
        TypeError: A value of another type; ``bool`` is no number here.
    """

    idle_ttl_seconds: float | None = option(
        DURATION,
        "Expire threads without a new checkpoint for this long. Durations are seconds, or 90s, "
        "15m, 2h, 1h30m, 7d, 4w.",
        key="idle_ttl",
        words="deleted when idle for {}",
    )
    hard_age_ttl_seconds: float | None = option(
        DURATION,
        "Expire threads whose first checkpoint is older than this, used or not.",
        key="hard_age_ttl",
        words="deleted when {} old",
    )
    max_checkpoints_per_thread: int | None = option(
        COUNT,
        "Keep only the newest N checkpoints of each thread, and what they need.",
        key="max_checkpoints",
        words="trimmed to {} checkpoints",
    )
    interrupted_ttl_seconds: float | None = option(
        DURATION,
        "Expire threads that wait for a human answer after this long; without it, they are "
        "kept by the idle rule.",
        key="interrupted_ttl",
        words="deleted when a human has not answered for {}",
    )

    if TYPE_CHECKING:  # more can be given than is read

        def __init__(
            self,
            idle_ttl_seconds: float | timedelta | None = None,
            hard_age_ttl_seconds: float | timedelta | None = None,
            max_checkpoints_per_thread: int | None = None,
            interrupted_ttl_seconds: float | timedelta | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for rule in declared(type(self)):
            object.__setattr__(self, rule.name, rule.checked(getattr(self, rule.name)))
        if all(getattr(self, rule.name) is None for rule in fields(self)):
            names = ", ".join(rule.name for rule in fields(self))
            raise ValueError(f"a TTLPolicy needs at least one rule: give one of {names}")


@dataclass(frozen=True)
class IdleTrimPolicy(TTLPolicy):
    """A policy that trims a thread only once it has been idle for some time.

    Args:
        trim_after_idle_seconds: ``max_checkpoints_per_thread`` is followed for threads
            without a new checkpoint for longer than this, in seconds or as a timedelta; those of
            unknown age are left whole.

    Raises:
        ValueError: As of a TTLPolicy; or there is no ``max_checkpoints_per_thread``.
        TypeError: As of a TTLPolicy; or ``trim_after_idle_seconds`` is missing.
    """

    trim_after_idle_seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "trim_after_idle_seconds"
        object.__setattr__(self, name, positive_seconds(name, self.trim_after_idle_seconds))
        if self.max_checkpoints_per_thread is None:
            raise ValueError("trim_after_idle_seconds needs max_checkpoints_per_thread")
