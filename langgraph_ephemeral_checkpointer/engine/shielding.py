"""Work that a cancellation does not interrupt halfway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_behalf: WeakKeyDictionary[asyncio.Task[Any], asyncio.Task[Any]] = WeakKeyDictionary()
"""From a task that does shielded work to the task that waits for it."""


async def finish(work: Coroutine[Any, Any, T], on_cancel: Callable[[], None]) -> T:
    """Carry out work to its end, whatever is cancelled meanwhile.

    Args:
        work: What to do. It is cancelled only itself, as when its event loop is shut down.
        on_cancel: Called when the waiting task is cancelled; whoever gives it has to raise
            the cancellation afterwards.
    """
    task = asyncio.ensure_future(work)
    if (waiting := asyncio.current_task()) is not None:
        _behalf[task] = waiting
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            on_cancel()
    return task.result()


def acts_for(task: asyncio.Task[Any]) -> bool:
    """Say whether the running task is the given one, or does shielded work for it."""
    current = asyncio.current_task()
    while current is not None and current is not task:
        current = _behalf.get(current)
    return current is task
