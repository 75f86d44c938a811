"""What a storage may be able to do beyond find and delete: one small abstract class for each.

A strategy says what its storage can do by the classes it derives from, as in
``class MyStrategy(GenericStrategy, Prunes)``; whoever needs a capability asks ``isinstance``.
Methods may be plain functions, coroutine functions or plans, as those of ``Strategy``. The
test kit has rules for each class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts
from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, PruneOutcome, Recheck, Size
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanKind, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.trash import Discard, Undo

if TYPE_CHECKING:  # what a purge needs is loaded by whoever purges
    from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage

T = TypeVar("T")


class Prunes(ABC):
    """Threads can be trimmed to their newest checkpoints (``max_checkpoints_per_thread``).

    What stays answers as before: state, subgraphs, interrupts, replays. A trim makes no thread
    younger, and a thread of which it is not sure what it needs is left whole.
    """

    @abstractmethod
    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Maybe[Mapping[str, PruneOutcome]]:
        """Trim threads to their newest ``keep`` root checkpoints and what those need.

        Args:
            thread_ids: Compared exactly; at most ``Strategy.batch_limit``.
            keep: At least 1.
            dry_run: Only say what would be removed.

        Returns:
            The outcome of each thread that is there.

        Raises:
            Exception: Nothing was removed of any of the threads.
        """


class HasTrash(ABC):
    """What a sweep deletes can go into a trash for a while (``grace_seconds``).

    A thread moves there whole and comes back whole; a run that was under way when its thread
    was deleted brings it back by saving.
    """

    discard_limit: int | None = None
    """How many threads :meth:`discard_threads` takes at most; None: any number."""

    @property
    @abstractmethod
    def undo(self) -> Undo:
        """The plans of the trash; :meth:`transact` runs them."""

    @abstractmethod
    def discard_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None, discard: Discard
    ) -> Maybe[Mapping[str, Outcome]]:
        """Take threads away as ``Strategy.delete_threads`` does, by way of the trash.

        Args:
            thread_ids: Compared exactly; at most :attr:`discard_limit`.
            recheck: As for ``Strategy.delete_threads``.
            discard: Whether they go into the trash or are erased there too.

        Returns:
            The outcome of each thread.

        Raises:
            NotSetUpError: There is no trash; nothing was deleted.
        """

    @abstractmethod
    def transact(self, plan: Plan[Any, T]) -> Maybe[T]:
        """Run a plan of :attr:`undo` in one transaction that writes, and return its answer."""

    def set_up(self) -> Maybe[None]:
        """Make the saver's own tables, where the saver makes them at first use."""
        return None


class FindsOrphans(ABC):
    """Rows that no checkpoint leads to can be found and deleted (``orphan_age_seconds``).

    :mod:`.orphans` says what counts as one. A row whose age is not known stays.
    """

    @abstractmethod
    def find_orphans(self, before: float, now: float, after: Any, limit: int) -> Maybe[OrphanPage]:
        """Look for orphans in the next part of the storage.

        Args:
            before: Rows of this moment and later are young, in seconds since the epoch.
            now: The time of the look, in seconds since the epoch.
            after: None at first, then :attr:`OrphanPage.next` of the page before.
            limit: About how many keys to look at.

        Returns:
            The orphans found, and where the next look begins.
        """

    @abstractmethod
    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> Maybe[int]:
        """Delete what is still an orphan of these.

        Args:
            orphans: What :meth:`find_orphans` gave.
            before: As for :meth:`find_orphans`, where a row may have become young since.

        Returns:
            How many rows went.
        """


class FindsOrphansFromAnywhere(FindsOrphans):
    """A look for orphans can begin at any thread, and pages of a scan name one (``Page.sample``).

    A sweep looks through a part of a large storage only. Where each sweep is a process of its
    own, it looks at the beginning and then goes on at the sample, so that all is reached in time.
    """

    @abstractmethod
    def orphans_from(self, kind: OrphanKind, thread_id: str) -> Any:
        """Return what ``find_orphans`` takes as ``after`` to begin at a thread.

        Args:
            kind: With which rows.
            thread_id: A ``Page.sample``.
        """


class PurgesMessages(ABC):
    """Old messages can be taken out of everything that is stored (``purge_messages``)."""

    @abstractmethod
    def message_storage(self) -> MessageStorage:
        """Return how threads are read as images, and how changes are written back."""


class MeasuresSizes(ABC):
    """The size of a thread can be told without reading its state (forecast, audit log)."""

    @abstractmethod
    def measure_threads(self, thread_ids: Sequence[str]) -> Maybe[Mapping[str, Size]]:
        """Tell how much threads take.

        Args:
            thread_ids: Compared exactly.

        Returns:
            The size of each thread that is there.
        """


class HasLock(ABC):
    """Only one of several sweepers of a storage works at a time (``enable_coordination``).

    The lock goes when its process dies. Sweeps are safe without it; it saves work.
    """

    @abstractmethod
    def lock(self) -> Maybe[bool]:
        """Keep other sweepers of the same storage out; return False if one is at work already."""

    @abstractmethod
    def unlock(self) -> Maybe[None]:
        """Let other sweepers in again; called exactly once after each successful lock."""


class HasTenants(ABC):
    """The storage keeps the threads of several tenants apart, and a call is about one of them."""

    @property
    @abstractmethod
    def tenant(self) -> str | None:
        """Whose threads a call that comes now is about; None where that is not clear."""

    @property
    @abstractmethod
    def spans_tenants(self) -> bool:
        """Whether a call that comes now would be about no tenant in particular.

        A sweep then goes over :meth:`tenants` in turn, each in its :meth:`tenant_scope`.
        """

    @abstractmethod
    def tenants(self) -> Maybe[Sequence[str]]:
        """List every tenant.

        Raises:
            TenantRequiredError: Not every tenant can be seen.
        """

    @abstractmethod
    def tenant_scope(self, tenant: str) -> AbstractContextManager[None]:
        """Make every call in a ``with`` block, callbacks included, one for this tenant."""


class LeavesUnread(ABC):
    """A scan may leave idle threads unread (``Page.unread``): their delete makes sure of them.

    That saves reading them first. A class that changes ``scan`` or ``delete_threads`` of such
    a strategy is asked about every thread again, unless it has its own :meth:`delete_unread`.
    """

    @abstractmethod
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

    @abstractmethod
    def read_threads(self, thread_ids: Sequence[str]) -> Maybe[Sequence[ThreadFacts]]:
        """Read those of the threads that are there.

        Births may be left out: what a scan leaves unread goes by its newest checkpoint alone.
        """
