"""What a purge needs of a storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan
from langgraph_ephemeral_checkpointer.engine.steps import Performer
from langgraph_ephemeral_checkpointer.messages.image import Place, ThreadImage
from langgraph_ephemeral_checkpointer.messages.scrubbing import REMOVE

T = TypeVar("T")


class Access(Performer, Protocol):
    """How a saver's storage is reached; a strategy is one."""

    @property
    def checkpointer(self) -> Any:
        """The saver."""
        ...

    @property
    def runs_sync(self) -> bool:
        """Whether it can be reached without an event loop."""
        ...


class Transactions(Access, Protocol):
    """How a storage with transactions is reached."""

    def query(self, plan: Plan[Any, T]) -> Maybe[T]:
        """Run a plan that only reads."""
        ...

    def transact(self, plan: Plan[Any, T]) -> Maybe[T]:
        """Run a plan in one transaction that writes."""
        ...


class MessageStorage(ABC):
    """Threads as images, in and out.

    Args:
        strategy: How the saver is reached; its connection, lock and transactions are used.
    """

    def __init__(self, strategy: Access) -> None:
        self.strategy = strategy
        self.saver: Any = strategy.checkpointer

    @abstractmethod
    def page(self, after: str | None, limit: int) -> Maybe[list[str]]:
        """The next thread ids, in order.

        Args:
            after: The last id of the page before; None at first.
            limit: How many at most.
        """

    @abstractmethod
    def read(self, thread_id: str) -> Maybe[ThreadImage]:
        """Everything that is stored of a thread."""

    @abstractmethod
    def write(self, image: ThreadImage, changes: Mapping[Place, Any]) -> Maybe[None]:
        """Write changes back in one transaction, all of them or none.

        Args:
            image: The thread as it was read.
            changes: New trees, or ``REMOVE``, by place.

        Raises:
            ThreadMovedError: If somebody saved to the thread since it was read.
        """


def count_removed(changes: Mapping[Place, Any]) -> int:
    """How many rows of writes the changes delete."""
    return sum(tree is REMOVE for place, tree in changes.items() if place.kind == "write")


def count_rows(changes: Mapping[Place, Any]) -> int:
    """How many rows the changes touch: what a checkpoint's row holds counts once."""
    alone = {"blob", "write"}
    return len({place if place.kind in alone else (place.ns, place.holder) for place in changes})
