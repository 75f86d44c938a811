"""Opening an empty InMemorySaver, to try the command line with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer.strategies.opening import Address, Saver


@contextmanager
def open_memory(_address: Address) -> Iterator[Saver]:
    """Open a saver that holds nothing."""
    yield InMemorySaver()
