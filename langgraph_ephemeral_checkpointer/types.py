"""The types of the callbacks, and the names that go with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from langgraph_ephemeral_checkpointer.policy import PolicyOverride, TTLPolicy
from langgraph_ephemeral_checkpointer.result import KeepReason, SweepResult

PolicyResolver: TypeAlias = Callable[
    [str], TTLPolicy | PolicyOverride | Awaitable[TTLPolicy | PolicyOverride]
]
"""From a thread id to its policy. Awaitable answers are for ``asweep()`` only, here and below."""

OnBeforeDelete: TypeAlias = Callable[[str, TTLPolicy, str], bool | Awaitable[bool | None] | None]
"""Thread id, the policy that matched, and the reason; only False keeps the thread."""

OnAfterDelete: TypeAlias = Callable[[str, str], Awaitable[None] | None]
"""Thread id and reason, once the delete is committed."""

OnSweepComplete: TypeAlias = Callable[[SweepResult], Awaitable[None] | None]
"""The result of a sweep, at its end."""

__all__ = [
    "KeepReason",
    "OnAfterDelete",
    "OnBeforeDelete",
    "OnSweepComplete",
    "PolicyOverride",
    "PolicyResolver",
    "SweepResult",
    "TTLPolicy",
]
