"""SqliteSaver and AsyncSqliteSaver: one text of statements, two ways to run them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.engine.plan import Maybe
from langgraph_ephemeral_checkpointer.strategies.base import (
    Outcome,
    Page,
    PruneOutcome,
    Recheck,
    Size,
    Strategy,
)
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    FindsOrphans,
    HasTrash,
    LeavesUnread,
    MeasuresSizes,
    Prunes,
    PurgesMessages,
)
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.rows import id_surely_before
from langgraph_ephemeral_checkpointer.strategies.sqlite import delete, find, sizes
from langgraph_ephemeral_checkpointer.strategies.sqlite import orphans as sqlite_orphans
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import (
    SqlPlan,
    aread,
    awrite,
    read,
    write,
)
from langgraph_ephemeral_checkpointer.strategies.sqlite.prune import prune_sqlite
from langgraph_ephemeral_checkpointer.strategies.sqlite.purge import SqliteStorage
from langgraph_ephemeral_checkpointer.strategies.sqlite.trash import SqliteUndo, removal_of
from langgraph_ephemeral_checkpointer.strategies.trash import Discard

T = TypeVar("T")


class SqliteBase(
    Strategy, Prunes, HasTrash, FindsOrphans, PurgesMessages, MeasuresSizes, LeavesUnread
):
    """What both colours do; each runs plans on its own kind of connection."""

    undo = SqliteUndo()

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Maybe[Page]:
        """Read the next page of threads; the cursor is the last thread id."""
        return self._read(find.scan(wanted, after, limit))

    def find_interrupted(self, thread_ids: Sequence[str]) -> Maybe[Collection[str]]:
        """Look at the writes of each thread's newest root checkpoint."""
        return self._read(find.find_interrupted(thread_ids))

    def measure_threads(self, thread_ids: Sequence[str]) -> Maybe[Mapping[str, Size]]:
        """Add up the lengths of what is stored."""
        return self._read(sizes.measure(thread_ids))

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Maybe[Mapping[str, Outcome]]:
        """Delete threads in one immediate transaction, which no other writer can enter."""
        return self._write(delete.delete_threads(thread_ids, recheck, delete.Erase()))

    def delete_unread(self, thread_ids: Sequence[str], before: float) -> Maybe[Collection[str]]:
        """Delete threads in one immediate transaction that asks one question about all."""
        return self._write(delete.delete_unread(thread_ids, id_surely_before(before)))

    def read_threads(self, thread_ids: Sequence[str]) -> Maybe[Sequence[ThreadFacts]]:
        """Read threads in full."""
        return self._read(find.read_threads(thread_ids))

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Maybe[Mapping[str, PruneOutcome]]:
        """Trim threads in one immediate transaction."""
        plan = prune_sqlite(thread_ids, keep, dry_run=dry_run)
        return self._read(plan) if dry_run else self._write(plan)

    def discard_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None, discard: Discard
    ) -> Maybe[Mapping[str, Outcome]]:
        """Take threads away like :meth:`delete_threads`, by way of the trash."""
        return self._write(delete.delete_threads(thread_ids, recheck, removal_of(discard)))

    def find_orphans(self, before: float, now: float, after: Any, limit: int) -> Maybe[OrphanPage]:
        """Look through the next part of the tables."""
        return self._read(sqlite_orphans.find(before, after, limit))

    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> Maybe[int]:
        """Delete in one transaction what is still an orphan."""
        return self._write(sqlite_orphans.delete(orphans))

    def query(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan that only reads."""
        return self._read(plan)

    def transact(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan in one immediate transaction."""
        return self._write(plan)

    def message_storage(self) -> SqliteStorage:
        """Return how a purge reads and writes the tables."""
        return SqliteStorage(self)

    @abstractmethod
    def _read(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan that only reads."""

    @abstractmethod
    def _write(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan in one immediate transaction."""


class SqliteStrategy(SqliteBase):
    """Sweep a ``SqliteSaver``, on its connection and under its lock."""

    def set_up(self) -> None:
        """Have the saver make its tables, as it does at first use."""
        with self.checkpointer.lock:
            self.checkpointer.setup()

    def _read(self, plan: SqlPlan[T]) -> T:
        return read(self.checkpointer, plan)

    def _write(self, plan: SqlPlan[T]) -> T:
        return write(self.checkpointer, plan)


class AsyncSqliteStrategy(SqliteBase):
    """Sweep an ``AsyncSqliteSaver``, on its connection and under its lock."""

    runs_sync = False
    blocks = False

    async def set_up(self) -> None:
        """Have the saver make its tables, as it does at first use."""
        await self.checkpointer.setup()

    async def _read(self, plan: SqlPlan[T]) -> T:
        return await aread(self.checkpointer, plan)

    async def _write(self, plan: SqlPlan[T]) -> T:
        return await awrite(self.checkpointer, plan)
