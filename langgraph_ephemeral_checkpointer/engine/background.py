"""The background task of a sweeper."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

from langgraph_ephemeral_checkpointer.common.arguments import positive_seconds
from langgraph_ephemeral_checkpointer.engine.shielding import acts_for
from langgraph_ephemeral_checkpointer.errors import RetentionError, RetryableError

logger = logging.getLogger(__name__)

_JITTER = 0.1
"""The share by which an interval is longer or shorter, so that replicas do not march in step."""


_LONGEST = 1e9
"""Seconds; what no timer can hold is as good as this."""


def jittered(seconds: float) -> float:
    """Make a pause a little longer or shorter."""
    return min(seconds, _LONGEST) * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret


class BackgroundLoop:
    """Call something again and again in a task of the running event loop.

    Args:
        tick: What to call; its exceptions are logged and do not end the loop.
        name: Of the task.
        pause: Gives the seconds until the next tick, from the interval.
    """

    def __init__(
        self,
        tick: Callable[[], Awaitable[object]],
        name: str,
        pause: Callable[[float], float] | None = None,
    ) -> None:
        self._tick = tick
        self._name = name
        self._pause = pause or jittered
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None

    @property
    def running(self) -> bool:
        """Whether the task is there and not done."""
        task = self._task
        return task is not None and not task.done() and not task.get_loop().is_closed()

    async def start(self, interval_seconds: float | timedelta) -> None:
        """Start the task and return once it runs; the first tick comes at once.

        Args:
            interval_seconds: Pause between ticks in seconds, > 0.

        Raises:
            TypeError: The interval is neither a number nor a timedelta.
            ValueError: It is not finite and > 0.
            RuntimeError: Started already.
        """
        interval = positive_seconds("interval_seconds", interval_seconds)
        if self.running:
            raise RuntimeError("the sweeper is started already; call stop() first")
        # No await up to here and until the task exists: a stop() sees all of it or nothing.
        running, self._stop = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run(interval, running, self._stop), name=self._name)
        try:
            await running.wait()
        except BaseException:
            self._stop.set()  # cancelled before it was started
            raise

    async def stop(self, *, now: bool = False) -> None:
        """End the task; does nothing when not started.

        Args:
            now: Cancel the tick in progress instead of letting it finish.

        Called by the tick itself, it returns at once and the task ends after the tick.
        """
        if not self.running:
            # Lets a start() that was made a task just before take its first step.
            await asyncio.sleep(0)
        task, stop = self._task, self._stop
        if task is None or stop is None or not self.running:
            return
        stop.set()
        if acts_for(task):
            return
        if now:
            task.cancel()
        await asyncio.wait({task})
        if self._task is task:
            self._task = None

    async def _run(self, interval: float, running: asyncio.Event, stop: asyncio.Event) -> None:
        running.set()
        while not stop.is_set():
            try:
                await self._tick()
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise
                # A cancellation that is not of this task leaked out of something it called.
                mends = not isinstance(error, RetentionError) or isinstance(error, RetryableError)
                also = "" if mends else ", and fails too until the cause is changed"
                logger.exception(
                    "a sweep failed; the next one is tried in about %s s%s", interval, also
                )
            try:
                await asyncio.wait_for(stop.wait(), self._pause(interval))
            except TimeoutError:
                continue
