"""PostgresSaver and AsyncPostgresSaver: one text of statements, two ways to run them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.drivers.text_arrays import Ids
from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan, Statement
from langgraph_ephemeral_checkpointer.result import KeepReason
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
    HasLock,
    HasTrash,
    LeavesUnread,
    MeasuresSizes,
    Prunes,
    PurgesMessages,
)
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.postgres import delete, find, sizes
from langgraph_ephemeral_checkpointer.strategies.postgres import orphans as postgres_orphans
from langgraph_ephemeral_checkpointer.strategies.postgres.access import (
    LOCKED_THREADS,
    READ_COMMITTED,
    SqlPlan,
    arun,
    run,
    wait_briefly,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.lock import (
    Step,
    SweepLock,
    aperform,
    perform,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.prune import prune_postgres
from langgraph_ephemeral_checkpointer.strategies.postgres.prune_statements import SNAPSHOT
from langgraph_ephemeral_checkpointer.strategies.postgres.purge import PostgresStorage
from langgraph_ephemeral_checkpointer.strategies.postgres.trash import PostgresUndo, removal_of
from langgraph_ephemeral_checkpointer.strategies.postgres.visibility import seeing_all
from langgraph_ephemeral_checkpointer.strategies.rows import id_surely_before
from langgraph_ephemeral_checkpointer.strategies.trash import Discard

T = TypeVar("T")


class PostgresBase(
    Strategy, Prunes, HasTrash, FindsOrphans, PurgesMessages, MeasuresSizes, HasLock, LeavesUnread
):
    """What both colours do; each runs plans on its own kind of connection."""

    undo = PostgresUndo()
    discard_limit = LOCKED_THREADS

    def __init__(self, checkpointer: Any) -> None:
        super().__init__(checkpointer)
        pooled = not isinstance(checkpointer.conn, Connection | AsyncConnection)
        self._lock = SweepLock(pooled=pooled)
        self._proven: set[frozenset[int]] = set()

    def lock(self) -> Plan[Step, bool]:
        """Take the lock of the swept tables; see :mod:`.lock`."""
        return self._lock.acquire()

    def unlock(self) -> Plan[Step, None]:
        """Give the lock back."""
        return self._lock.release()

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Maybe[Page]:
        """Read the next page of threads; the cursor is the last thread id."""
        return self._transact(find.scan(wanted, after, limit))

    def find_interrupted(self, thread_ids: Sequence[str]) -> Maybe[Collection[str]]:
        """Look at the writes of each thread's newest root checkpoint."""
        return self._transact(find.find_interrupted(Ids(thread_ids)))

    def measure_threads(self, thread_ids: Sequence[str]) -> Maybe[Mapping[str, Size]]:
        """Add up the sizes of what is stored, compressed as it is."""
        return self._transact(sizes.measure(Ids(thread_ids)))

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Maybe[Mapping[str, Outcome]]:
        """Delete threads in one short transaction that waits for no lock for long."""
        return self._delete(thread_ids, recheck, delete.Erase())

    def delete_unread(self, thread_ids: Sequence[str], before: float) -> Maybe[Collection[str]]:
        """Delete threads in one short transaction that reads nothing of them."""
        plan = delete.delete_unread(Ids(thread_ids), id_surely_before(before))
        return self._write(plan, lambda: Ids(()))

    def read_threads(self, thread_ids: Sequence[str]) -> Maybe[Sequence[ThreadFacts]]:
        """Read threads in full, but for their births."""
        return self._transact(find.read_threads(Ids(thread_ids)))

    def discard_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None, discard: Discard
    ) -> Maybe[Mapping[str, Outcome]]:
        """Take threads away like :meth:`delete_threads`, and keep out the saves of each."""
        return self._delete(thread_ids, recheck, removal_of(discard))

    def find_orphans(self, before: float, now: float, after: Any, limit: int) -> Maybe[OrphanPage]:
        """Look through the next part of the tables."""
        return self._transact(postgres_orphans.find(before, after, limit))

    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> Maybe[int]:
        """Delete in one transaction what is still an orphan."""
        return self.transact(postgres_orphans.delete(orphans))

    def query(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan that only reads, in one transaction."""
        return self._transact(plan)

    def transact(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan in one transaction."""
        return self._transact(plan, READ_COMMITTED)

    def _delete(
        self, thread_ids: Sequence[str], recheck: Recheck | None, removal: delete.Removal
    ) -> Maybe[Mapping[str, Outcome]]:
        return self._write(
            delete.delete_threads(Ids(thread_ids), recheck, removal),
            lambda: dict.fromkeys(thread_ids, Outcome(KeepReason.BUSY)),
        )

    def _write(self, plan: SqlPlan[T], refused: Callable[[], T]) -> Maybe[T]:
        """Run a plan, or give what ``refused`` gives where another instance is in a batch."""
        return self._transact(self._lock.in_batch(plan, refused), READ_COMMITTED)

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Maybe[Mapping[str, PruneOutcome]]:
        """Trim threads in one transaction that works on one snapshot."""
        return self._transact(
            self._prune(thread_ids, keep, dry_run), Statement(SNAPSHOT, fetch=False)
        )

    def _prune(
        self, thread_ids: Sequence[str], keep: int, dry_run: bool
    ) -> SqlPlan[Mapping[str, PruneOutcome]]:
        if not dry_run:
            yield from wait_briefly()
        plan = prune_postgres(thread_ids, keep, dry_run=dry_run)
        # Where another instance is in a batch, it is trimming: nothing is left to do here.
        return (yield from self._lock.in_batch(plan, dict))

    def _transact(self, plan: SqlPlan[T], level: Statement | None = None) -> Maybe[T]:
        """Run a plan in one transaction that sees every row of the tables."""
        return self._run(seeing_all(plan, self._proven, level))

    def message_storage(self) -> PostgresStorage:
        """Return how a purge reads and writes the tables."""
        return PostgresStorage(self)

    @abstractmethod
    def _run(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan in one transaction."""


class PostgresStrategy(PostgresBase):
    """Sweep a ``PostgresSaver`` on a connection, a pipeline or a pool."""

    def perform(self, step: Step) -> Any:
        """Carry out one step of taking or giving back the lock."""
        return perform(self.checkpointer, step)

    def _run(self, plan: SqlPlan[T]) -> T:
        return run(self.checkpointer, plan)


class AsyncPostgresStrategy(PostgresBase):
    """Sweep an ``AsyncPostgresSaver`` on a connection, a pipeline or a pool."""

    runs_sync = False
    blocks = False

    async def aperform(self, step: Step) -> Any:
        """Carry out one step of taking or giving back the lock."""
        return await aperform(self.checkpointer, step)

    async def _run(self, plan: SqlPlan[T]) -> T:
        return await arun(self.checkpointer, plan)
