"""The steps of a sweep, and how each is carried out from a thread and from an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import adrive, drive
from langgraph_ephemeral_checkpointer.engine.shielding import finish
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """A call of the strategy: storage is read or written."""

    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ask:
    """A call of something the user passed in.

    What is ``owed`` is told of what has happened, so it is called to its end even by a sweep
    that was cancelled.
    """

    call: Callable[..., object]
    args: tuple[object, ...]
    owed: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A write to a file of ours: never on the event loop, and never left out on cancellation."""

    call: Callable[[], object]


class Performer(Protocol):
    """What carries out the steps of plans over one storage; a strategy is one."""

    @property
    def blocks(self) -> bool:
        """Whether it does its I/O on the calling thread."""
        ...

    def perform(self, step: Any) -> Any:
        """Carry out one step of a plan on the calling thread."""
        ...

    async def aperform(self, step: Any) -> Any:
        """Carry out one step of a plan on the running event loop."""
        ...


GIVES_A_COROUTINE = "_lgec_gives_a_coroutine"
"""The mark of plain functions of this package that give one; Python has its own from 3.12 on."""


def is_async_callable(call: object) -> bool:
    """Say whether calling it is known to give a coroutine."""
    return (
        inspect.iscoroutinefunction(call)
        or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004 - not whether it is there
        or getattr(call, GIVES_A_COROUTINE, False) is True
    )


class SyncSteps:
    """Carry out steps on the calling thread."""

    def __init__(self, strategy: Performer) -> None:
        self._strategy = strategy

    def perform(self, step: Work | Ask | Record) -> object:
        """Carry out one step.

        Raises:
            AsyncRequiredError: A callback gave an awaitable.
        """
        if isinstance(step, Work):
            return self.work(step)
        if isinstance(step, Record):
            return step.call()
        answer = step.call(*step.args)
        if inspect.isawaitable(answer):
            _close(answer)
            name = getattr(step.call, "__qualname__", repr(step.call))
            raise AsyncRequiredError(
                f"the callback {name} is asynchronous; use asweep() or start()"
            )
        return answer

    def work(self, step: Work) -> object:
        """Carry out a call of the strategy, and the plan it may return.

        Raises:
            AsyncRequiredError: The strategy gave an awaitable.
        """
        answer = self.call(step)
        if inspect.isawaitable(answer):
            _close(answer)
            raise AsyncRequiredError(
                f"{type(self._strategy).__name__} has asynchronous methods (and should say so by "
                "runs_sync = False): use 'await sweeper.asweep()' instead of sweep()"
            )
        return answer

    def call(self, step: Work) -> object:
        """Carry out a call of the strategy, and give also an awaitable as it is."""
        answer = step.call()
        if inspect.isgenerator(answer):
            return drive(answer, self._strategy.perform)
        return answer


class AsyncSteps:
    """Carry out steps on the running event loop, what blocks in a thread.

    A call of the strategy is never cancelled halfway: it is finished, what follows from
    it is done, and the cancellation is raised where the next call would begin.
    """

    def __init__(self, strategy: Performer) -> None:
        self._strategy = strategy
        self._cancelled = False

    async def perform(self, step: Work | Ask | Record) -> object:
        """Carry out one step.

        Raises:
            asyncio.CancelledError: The sweep was cancelled before this step.
        """
        if isinstance(step, Ask) and step.owed:
            return await self._finish(self._ask(step))
        if isinstance(step, Record):
            return await self._finish(asyncio.to_thread(step.call))
        self.raise_if_cancelled()
        if isinstance(step, Ask):
            return await self._ask(step)
        return await self._finish(self._work(step))

    def raise_if_cancelled(self) -> None:
        """Raise a cancellation that came while something was being finished."""
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError

    async def _ask(self, step: Ask) -> object:
        try:
            answer = step.call(*step.args)
            return await answer if inspect.isawaitable(answer) else answer
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # Not of this sweep: the callback waited for something that was cancelled.
            raise RuntimeError("something that the callback waited for was cancelled") from error

    async def _work(self, step: Work) -> object:
        if self._strategy.blocks:
            answer = await asyncio.to_thread(SyncSteps(self._strategy).call, step)
        else:
            answer = step.call()
        if inspect.isgenerator(answer):
            return await adrive(answer, self._strategy.aperform)
        if inspect.isawaitable(answer):
            return await answer
        if not self._strategy.blocks:
            await asyncio.sleep(0)  # gives the loop a chance between calls that work in memory
        return answer

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        return await finish(work, self._note_cancellation)

    def _note_cancellation(self) -> None:
        self._cancelled = True


def _close(awaitable: object) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()  # else Python warns that it was never awaited
