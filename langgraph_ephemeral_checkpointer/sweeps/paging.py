"""One page of threads from a strategy, which somebody else may have written."""

from __future__ import annotations

from functools import partial
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.expiry import Wanted
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.strategies.base import Page, Strategy
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps

PAGE_SIZE = 10_000
"""Threads looked at in one read."""


def read_page(strategy: Strategy, wanted: Wanted | None, after: Any) -> Steps[Page]:
    """Scan on from where the last page ended; the arguments are those of ``Strategy.scan``.

    Raises:
        TypeError: The strategy gave no page.
    """
    page = yield Work(partial(strategy.scan, wanted, after, PAGE_SIZE))
    if not isinstance(page, Page):
        raise TypeError(
            f"{type(strategy).__name__}.scan() must return a Page, not {type(page).__name__}"
        )
    return page
