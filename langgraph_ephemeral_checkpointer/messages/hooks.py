"""Archive hooks, called from synchronous and from asynchronous code."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_ephemeral_checkpointer.common.arguments import check_callable
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError

OnBeforeTrim: TypeAlias = Callable[[str, list[BaseMessage]], Any]
"""Called with the thread id and the messages about to go; may be async in async code."""


def check_calls(clock: object, hook: object) -> None:
    """Refuse a clock or an archive hook that cannot be called.

    Raises:
        TypeError: If one of them is neither callable nor, for the hook, None.
    """
    check_callable("clock", clock)
    if hook is not None:
        check_callable("on_before_trim", hook)


def call_hook(hook: OnBeforeTrim | None, thread_id: str, messages: list[BaseMessage]) -> None:
    """Call an archive hook from synchronous code.

    Raises:
        AsyncRequiredError: If the hook is asynchronous.
    """
    if hook is None:
        return
    answer = hook(thread_id, messages)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise AsyncRequiredError(
            "on_before_trim is asynchronous, but the checkpointer is used synchronously; "
            "pass a plain function, or use the graph with ainvoke() and apurge_messages()"
        )


async def acall_hook(
    hook: OnBeforeTrim | None, thread_id: str, messages: list[BaseMessage]
) -> None:
    """Call an archive hook from asynchronous code; a plain one runs off the event loop."""
    if hook is None:
        return
    if inspect.iscoroutinefunction(hook):
        await hook(thread_id, messages)
        return
    answer = await asyncio.to_thread(hook, thread_id, messages)
    if inspect.isawaitable(answer):
        await answer
