"""What the sweeper needs of a storage: the abstract Strategy.

A strategy answers questions and carries out deletes; it decides nothing. Its methods may
be plain functions, coroutine functions, or plans (generators) whose steps ``perform`` or
``aperform`` carry out: one text for savers that come in both colours. ``runs_sync`` and
``runs_async`` say under which of ``sweep()`` and ``asweep()`` they can be called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanKind, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.prune_outcome import PruneOutcome
from langgraph_ephemeral_checkpointer.strategies.trash import Discard, Undo

T = TypeVar("T")

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
        sample: Any one of the threads that the page looked at, where the storage gives it.
        unread: Threads that are not in ``threads``, each with its greatest checkpoint id, a UUID
            version 6 from before ``Wanted.unread_before``. Nothing more is known of them.
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
    """How one kind of checkpointer is scanned, deleted from and pruned.

    Args:
        checkpointer: The saver; never closed by the strategy.
    """

    runs_sync: bool = True
    """Whether the methods give plain values, so that ``sweep()`` works."""
    runs_async: bool = True
    """Whether ``asweep()`` works."""
    blocks: bool = True
    """Whether plain methods do I/O, so that ``asweep()`` calls them in a thread."""
    can_prune: bool = False
    """Whether ``max_checkpoints_per_thread`` is supported."""
    can_coordinate: bool = False
    """Whether :meth:`lock` and :meth:`unlock` keep other sweepers out."""
    can_find_orphans: bool = False
    """Whether :meth:`find_orphans` and :meth:`delete_orphans` work."""
    gives_samples: bool = False
    """Whether pages have a :attr:`Page.sample`, at which a look for orphans can go on."""
    undo: Undo | None = None
    """The plans of a trash, where the storage can have one; :meth:`transact` runs them."""
    discard_limit: int | None = None
    """How many threads :meth:`discard_threads` takes at most in one transaction."""
    tenant: str | None = None
    """Whose threads the storage shows at the moment, where it has tenants."""
    batch_limit: int | None = None
    """How many threads :meth:`delete_threads` and :meth:`prune_threads` take at most."""

    def __init__(self, checkpointer: Any) -> None:
        self.checkpointer = checkpointer

    @property
    def spans_tenants(self) -> bool:
        """Whether a call that comes now would be about no tenant in particular.

        A sweep then goes over :meth:`tenants` in turn, each in its :meth:`tenant_scope`.
        """
        return False

    def tenants(self) -> Maybe[Sequence[str]]:
        """List every tenant.

        Raises:
            TenantRequiredError: Not every tenant can be seen.
        """
        raise NotImplementedError(f"{type(self).__name__} knows no tenants")

    def tenant_scope(self, tenant: str) -> AbstractContextManager[None]:
        """Make every call in a ``with`` block, callbacks included, one for this tenant."""
        raise NotImplementedError(f"{type(self).__name__} knows no tenants")

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

    def measure_threads(self, thread_ids: Sequence[str]) -> Maybe[Mapping[str, Size]]:
        """Tell how much threads take, without reading their state.

        Returns:
            The size of each thread that is there; nothing where a storage cannot tell.
        """
        return {}

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

    def delete_unread(self, thread_ids: Sequence[str], before: float) -> Maybe[Collection[str]]:
        """Delete, of threads that a scan reported unread, those that are surely idle.

        All in one transaction. A thread is surely idle if the time of every checkpoint of it is
        known and lies before ``before``, and it waits for no human answer, inside the
        transaction.

        Args:
            thread_ids: Compared exactly.
            before: Seconds since the epoch.

        Returns:
            Those that were deleted; whoever asked has to read the others.

        Raises:
            Exception: Nothing of any of the threads was deleted.
        """
        raise NotImplementedError(f"{type(self).__name__} leaves no thread unread")

    def read_threads(self, thread_ids: Sequence[str]) -> Maybe[Sequence[ThreadFacts]]:
        """Read those of the threads that are there.

        Births may be left out: what a scan leaves unread goes by its newest checkpoint alone.
        """
        raise NotImplementedError(f"{type(self).__name__} leaves no thread unread")

    def discard_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None, discard: Discard
    ) -> Maybe[Mapping[str, Outcome]]:
        """Take threads away as :meth:`delete_threads` does, by way of the trash.

        Args:
            thread_ids: Compared exactly.
            recheck: As for :meth:`delete_threads`.
            discard: Whether they go into the trash or are erased there too.

        Raises:
            NotSetUpError: There is no trash; nothing was deleted.
        """
        raise NotImplementedError(f"{type(self).__name__} has no trash")

    def find_orphans(self, before: float, now: float, after: Any, limit: int) -> Maybe[OrphanPage]:
        """Look for rows that no checkpoint leads to; see :mod:`.orphans` for what counts.

        Args:
            before: Rows of this moment and later are young, in seconds since the epoch.
            now: The time of the look.
            after: None at first, then :attr:`OrphanPage.next` of the page before.
            limit: About how many keys to look at.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot look for orphans")

    def orphans_from(self, kind: OrphanKind, thread_id: str) -> Any:
        """Give what :meth:`find_orphans` takes as ``after`` to begin at a thread.

        Args:
            kind: With which rows.
            thread_id: A :attr:`Page.sample`.
        """
        return None

    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> Maybe[int]:
        """Delete what is still an orphan of these, and count the rows.

        Args:
            orphans: What :meth:`find_orphans` gave.
            before: As for :meth:`find_orphans`, where a row may have become young since.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot look for orphans")

    def set_up(self) -> Maybe[None]:
        """Make the saver's tables, where the saver itself does that without being asked."""
        return None

    def query(self, plan: Plan[Any, T]) -> Maybe[T]:
        """Run a plan of SQL statements that only reads."""
        raise NotImplementedError(f"{type(self).__name__} has no statements")

    def transact(self, plan: Plan[Any, T]) -> Maybe[T]:
        """Run a plan of SQL statements in one transaction that writes."""
        raise NotImplementedError(f"{type(self).__name__} has no transactions")

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Maybe[Mapping[str, PruneOutcome]]:
        """Trim threads to their newest ``keep`` root checkpoints and what those need.

        Args:
            thread_ids: Compared exactly.
            keep: At least 1.
            dry_run: Only say what would be removed.

        Returns:
            The outcome of each thread.

        Raises:
            Exception: Nothing was removed of any of the threads.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot prune")

    def perform(self, step: Any) -> Any:
        """Carry out one step of a plan that a method returned, under ``sweep()``."""
        raise NotImplementedError(f"{type(self).__name__} has no plans to perform {step!r} of")

    async def aperform(self, step: Any) -> Any:
        """Carry out one step of a plan that a method returned, under ``asweep()``."""
        raise NotImplementedError(f"{type(self).__name__} has no plans to perform {step!r} of")

    def lock(self) -> Maybe[bool]:
        """Keep other sweepers of the same tables out; False if one is at work already."""
        return True

    def unlock(self) -> Maybe[None]:
        """Let other sweepers in again; called exactly once after each successful lock."""
        return None
