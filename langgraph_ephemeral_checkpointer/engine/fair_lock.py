"""A lock that threads and event loops may wait for alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager

from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError


class Turns:
    """Let one holder in at a time, first come first served, from any thread or event loop.

    Neither ``threading.Lock`` (it would block an event loop) nor ``asyncio.Lock`` (it
    belongs to one loop) will do: one sweeper may be swept from both.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[Future[None]] = deque()
        # The event loop of each turn that is held or waited for from one.
        self._loops: dict[Future[None], asyncio.AbstractEventLoop] = {}

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Hold the turn in a ``with`` block; blocks the calling thread.

        Raises:
            AsyncRequiredError: Blocking would be for ever: the thread runs the event loop in which
                the turn is held or waited for.
        """
        turn = self._ask(blocks=_running_loop())
        try:
            turn.result()
            yield
        finally:
            self._leave(turn)

    @asynccontextmanager
    async def await_turn(self) -> AsyncIterator[None]:
        """Hold the turn in an ``async with`` block; does not block the event loop."""
        turn = self._ask(loop=asyncio.get_running_loop())
        try:
            await asyncio.wrap_future(turn)
            yield
        finally:
            self._leave(turn)

    def _ask(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        blocks: asyncio.AbstractEventLoop | None = None,
    ) -> Future[None]:
        turn: Future[None] = Future()
        with self._guard:
            if blocks is not None and blocks in self._loops.values():
                raise AsyncRequiredError(
                    "another sweep of this sweeper is under way in this event loop, which sweep() "
                    "would block: use 'await sweeper.asweep()' instead"
                )
            if loop is not None:
                self._loops[turn] = loop
            if self._held:
                self._waiting.append(turn)
            else:
                self._held = True
                turn.set_result(None)
        return turn

    def _leave(self, turn: Future[None]) -> None:
        # A cancelled wait never had the turn, unless it was given in the same moment.
        with self._guard:
            self._loops.pop(turn, None)
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
            while self._waiting:
                if (after := self._waiting.popleft()).set_running_or_notify_cancel():
                    after.set_result(None)
                    return
            self._held = False


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
