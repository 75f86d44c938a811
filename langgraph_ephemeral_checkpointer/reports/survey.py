"""A look at every thread, page by page, that writes nothing; in both colours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.engine.plan import adrive, drive
from langgraph_ephemeral_checkpointer.engine.steps import AsyncSteps, SyncSteps, Work
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.sweeps.paging import read_page
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps

T = TypeVar("T")
Handle: TypeAlias = Callable[[Sequence[ThreadFacts]], Steps[T]]
"""What is made of one page; the facts tell whether each thread waits for a human."""


class Survey:
    """Scan a storage from its first thread to its last.

    Args:
        strategy: The storage.
        wanted: Which threads are needed; None for all.
        handle: Makes something of a page.
    """

    def __init__(self, strategy: Strategy, wanted: Wanted | None, handle: Handle[T]) -> None:
        self._strategy = strategy
        self._wanted = wanted
        self._handle = handle
        self._after: Any = None
        self._done = False

    def pages(self) -> Iterator[Any]:
        """Give what ``handle`` makes of each page."""
        steps = SyncSteps(self._strategy)
        while not self._done:
            yield drive(self._page(), steps.perform)

    async def apages(self) -> AsyncIterator[Any]:
        """Give what ``handle`` makes of each page, off the event loop where reading blocks."""
        steps = AsyncSteps(self._strategy)
        while not self._done:
            made = await adrive(self._page(), steps.perform)
            steps.raise_if_cancelled()
            yield made

    def _page(self) -> Steps[Any]:
        page = yield from read_page(self._strategy, self._wanted, self._after)
        unsure = [facts.thread_id for facts in page.threads if facts.interrupted is None]
        waiting: set[str] = set()
        if unsure:
            waiting = set((yield Work(partial(self._strategy.find_interrupted, unsure))))
        made = yield from self._handle(
            [
                facts
                if facts.interrupted is not None
                else replace(facts, interrupted=facts.thread_id in waiting)
                for facts in page.threads
            ]
        )
        self._after, self._done = page.next, page.next is None
        return made
