"""Plans: an algorithm written once as a generator, and the two drivers that run it.

A plan yields steps (a SQL statement, a call) and is sent what each step gave. It
never does I/O itself, so one text serves the synchronous and the asynchronous
savers. A step that fails is thrown into the plan where it was yielded, so that the
plan's own ``try``/``finally`` decides what happens next, also on cancellation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

S = TypeVar("S")
T = TypeVar("T")

Plan: TypeAlias = Generator[S, Any, T]
"""A generator of steps ``S`` that returns ``T``."""

Maybe: TypeAlias = T | Awaitable[T] | Plan[Any, T]
"""A value, or an awaitable or a plan that gives it."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement; its answer is the rows, or the row count when ``fetch`` is off."""

    sql: Any
    params: Any = ()
    fetch: bool = True


def drive(plan: Plan[S, T], perform: Callable[[S], Any]) -> T:
    """Run a plan to its end on the calling thread.

    Args:
        plan: The plan; it is used up.
        perform: Carries out one step and returns its answer.

    Returns:
        What the plan returns.
    """
    resume: Callable[[], S] = partial(plan.send, None)
    while True:
        try:
            step = resume()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # StopIteration is untyped
        try:
            answer = perform(step)
        except BaseException as error:  # noqa: BLE001 - the plan decides, and cleans up
            resume = partial(plan.throw, error)
        else:
            resume = partial(plan.send, answer)


async def adrive(plan: Plan[S, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """Run a plan to its end on the running event loop; otherwise as :func:`drive`."""
    resume: Callable[[], S] = partial(plan.send, None)
    while True:
        try:
            step = resume()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # StopIteration is untyped
        try:
            answer = await perform(step)
        except BaseException as error:  # noqa: BLE001 - the plan decides, and cleans up
            resume = partial(plan.throw, error)
        else:
            resume = partial(plan.send, answer)
