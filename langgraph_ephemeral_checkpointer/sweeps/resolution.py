"""Which policy is in force for a thread: what a resolver answers, made safe."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan
from langgraph_ephemeral_checkpointer.engine.steps import Ask, Record, Work
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError
from langgraph_ephemeral_checkpointer.policy import PolicyOverride, TTLPolicy
from langgraph_ephemeral_checkpointer.types import PolicyResolver

logger = logging.getLogger(__name__)

T = TypeVar("T")
Steps: TypeAlias = Plan[Work | Ask | Record, T]
"""A plan of calls of the storage and of the user's callbacks, and of writes to our files."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """The resolver answered something that is no policy; ``error`` says what."""

    error: str


def resolve(
    policy: TTLPolicy, resolver: PolicyResolver | None, thread_id: str
) -> Steps[TTLPolicy | Invalid | None]:
    """Find the policy of one thread, asking the resolver once.

    Args:
        policy: The policy where there is no resolver, where it fails, and where it says so.
        resolver: The user's, or None.
        thread_id: The thread.

    Returns:
        The policy; None if the thread is exempt.

    Raises:
        AsyncRequiredError: The resolver is asynchronous, the sweep is not.
    """
    if resolver is None:
        return policy
    try:
        answer = yield Ask(resolver, (thread_id,))
    except AsyncRequiredError:
        raise
    except Exception:
        logger.exception("policy_resolver failed for %r; the global policy is used", thread_id)
        return policy
    if isinstance(answer, TTLPolicy):
        return answer
    if answer is PolicyOverride.USE_DEFAULT:
        return policy
    if answer is PolicyOverride.EXEMPT:
        return None
    return Invalid(
        "policy_resolver must return a TTLPolicy or a PolicyOverride, not "
        f"{type(answer).__name__}; the thread was kept"
    )
