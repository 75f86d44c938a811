"""TTLPolicy: when a thread is expired."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING

from langgraph_ephemeral_checkpointer.common.arguments import checked_count

_SECONDS = ("idle_ttl_seconds", "hard_age_ttl_seconds", "interrupted_ttl_seconds")


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

    idle_ttl_seconds: float | None = None
    hard_age_ttl_seconds: float | None = None
    max_checkpoints_per_thread: int | None = None
    interrupted_ttl_seconds: float | None = None

    if TYPE_CHECKING:  # more can be given than is read

        def __init__(
            self,
            idle_ttl_seconds: float | timedelta | None = None,
            hard_age_ttl_seconds: float | timedelta | None = None,
            max_checkpoints_per_thread: int | None = None,
            interrupted_ttl_seconds: float | timedelta | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in _SECONDS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, positive_seconds(name, value))
        count = self.max_checkpoints_per_thread
        if count is not None:
            checked_count("max_checkpoints_per_thread", count)
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
        after = positive_seconds("trim_after_idle_seconds", self.trim_after_idle_seconds)
        object.__setattr__(self, "trim_after_idle_seconds", after)
        if self.max_checkpoints_per_thread is None:
            raise ValueError("trim_after_idle_seconds needs max_checkpoints_per_thread")


def positive_seconds(name: str, value: object) -> float:
    """Check a duration.

    Args:
        name: What to call it in the error.
        value: Seconds as int or float, or a timedelta.

    Returns:
        The seconds; an int stays an int.

    Raises:
        TypeError: Neither a number nor a timedelta.
        ValueError: Not finite, or not > 0.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(
            f"{name} must be seconds (int or float) or a timedelta, not {type(value).__name__}"
        )
    if seconds <= 0 or (isinstance(seconds, float) and not math.isfinite(seconds)):
        raise ValueError(f"{name} must be finite and > 0, not {value!r}")
    return seconds
