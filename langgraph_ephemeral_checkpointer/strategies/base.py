"""What every storage must be able to do: the abstract Strategy finds, reads and deletes.

What a storage may be able to do besides is in :mod:`.capabilities`, a class for each. A
strategy answers questions and carries out deletes; it decides nothing. Its methods may be plain
functions, coroutine functions, or plans (generators) whose steps ``perform`` or ``aperform``
carry out: one text for savers that come in both colours. ``runs_sync`` and ``runs_async`` say
under which of ``sweep()`` and ``asweep()`` they can be called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.engine.plan import Maybe
from langgraph_ephemeral_checkpointer.result import KeepReason

Recheck: TypeAlias = Callable[[str, ThreadFacts | None], KeepReason | None]
"""From a thread id and its facts as the deleting transaction reads them (None: gone) to why
it must be kept after all, or None to delete it. Pure and quick: it runs inside transactions."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a scan.

    Attributes:
        threads: Facts of the wanted threads of this page, perhaps of more.
        seen: How many threads the page looked at.
        next: Where the next page begins, for ``scan(after=)``; None after the last page.
        sample: Any one of the threads that the page looked at, of a strategy that
            ``FindsOrphansFromAnywhere``.
        unread: Of a strategy that ``LeavesUnread``: threads that are not in ``threads``, each
            with its greatest checkpoint id, a UUID version 6 from before
            ``Wanted.unread_before``. Nothing more is known of them.
    """

    threads: Sequence[ThreadFacts]
    seen: int
    next: Any = None
    sample: str | None = None
    unread: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one thread in a delete.

    Attributes:
        kept: Why it is still there, or None if it was deleted.
        error: What went wrong, where ``kept`` is FAILED.
        rows: Rows removed, by table, where the strategy knows.
    """

    kept: KeepReason | None = None
    error: str | None = None
    rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PruneOutcome:
    """What a prune did to one thread.

    Attributes:
        removed_checkpoints: How many checkpoint rows were really removed.
        left_whole: Why nothing was removed although the thread is too long, else None.
    """

    removed_checkpoints: int = 0
    left_whole: str | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """How much one thread takes.

    Attributes:
        rows: Rows by table.
        bytes: Of its serialized states, values and writes, as stored; indexes and row
            headers come on top.
    """

    rows: Mapping[str, int]
    bytes: int


class Strategy(ABC):
    """How one kind of checkpointer is scanned and deleted from.

    Args:
        checkpointer: The saver; never closed by the strategy.
    """

    runs_sync: bool = True
    """Whether the methods give plain values, so that ``sweep()`` works."""
    runs_async: bool = True
    """Whether ``asweep()`` works."""
    blocks: bool = True
    """Whether plain methods do I/O, so that ``asweep()`` calls them in a thread."""
    batch_limit: int | None = None
    """How many threads one call deletes or prunes at most; None: any number."""

    def __init__(self, checkpointer: Any) -> None:
        self.checkpointer = checkpointer

    @abstractmethod
    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Maybe[Page]:
        """Read the next page of threads.

        Args:
            wanted: Which threads to report; None for every thread.
            after: None at first, then :attr:`Page.next` of the page before.
            limit: About how many threads to look at.

        Returns:
            The page. Pages together cover every thread that exists during the whole scan,
            once. Times come from ids and ``ts`` only; what cannot be known is None.
        """

    @abstractmethod
    def find_interrupted(self, thread_ids: Sequence[str]) -> Maybe[Collection[str]]:
        """Say which of the threads wait for a human answer.

        A task waits if it left ``__interrupt__`` and no output on the newest checkpoint of
        the root namespace, where interrupts of subgraphs are mirrored.
        """

    @abstractmethod
    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Maybe[Mapping[str, Outcome]]:
        """Delete threads whole, in one transaction.

        Args:
            thread_ids: Compared exactly.
            recheck: Asked for each thread inside the transaction, with facts read there
                (interrupts included); None to delete without looking again.

        Returns:
            The outcome of each thread.

        Raises:
            Exception: Nothing of any of the threads was deleted. The sweeper then tries
                each thread alone, unless it is a ``StorageUnusableError``. A strategy
                without transactions reports a failing thread in its outcome instead.
            ThreadMovedError: A thread changed while it was being deleted.
        """

    def perform(self, step: Any) -> Any:
        """Carry out one step of a plan that a method returned, under ``sweep()``.

        Raises:
            TypeError: The strategy returns plans and does not say how their steps are done.
        """
        raise TypeError(f"{type(self).__name__} returns plans: override perform() to do {step!r}")

    async def aperform(self, step: Any) -> Any:
        """Carry out one step of a plan that a method returned, under ``asweep()``.

        Raises:
            TypeError: As for :meth:`perform`.
        """
        raise TypeError(f"{type(self).__name__} returns plans: override aperform() to do {step!r}")
