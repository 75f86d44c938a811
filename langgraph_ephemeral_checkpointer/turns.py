"""A lock that threads and event loops may wait for alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager


class Turns:
    """Let one holder in at a time, first come first served, from any thread or event loop.

    Neither ``threading.Lock`` (it would block an event loop) nor ``asyncio.Lock`` (it
    belongs to one loop) will do: one sweeper may be swept from both.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[Future[None]] = deque()

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Hold the turn in a ``with`` block; blocks the calling thread."""
        turn = self._ask()
        try:
            turn.result()
            yield
        finally:
            self._leave(turn)

    @asynccontextmanager
    async def await_turn(self) -> AsyncIterator[None]:
        """Hold the turn in an ``async with`` block; does not block the event loop."""
        turn = self._ask()
        try:
            await asyncio.wrap_future(turn)
            yield
        finally:
            self._leave(turn)

    def _ask(self) -> Future[None]:
        turn: Future[None] = Future()
        with self._guard:
            if self._held:
                self._waiting.append(turn)
            else:
                self._held = True
                turn.set_result(None)
        return turn

    def _leave(self, turn: Future[None]) -> None:
        # A cancelled wait never had the turn, unless it was given in the same moment.
        with self._guard:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
            while self._waiting:
                if (after := self._waiting.popleft()).set_running_or_notify_cancel():
                    after.set_result(None)
                    return
            self._held = False
