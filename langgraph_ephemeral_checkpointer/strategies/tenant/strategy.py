"""TenantPostgresSaver and AsyncTenantPostgresSaver: one text of statements, two ways to run them.

The saver finds the tenant and proves the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection

from langgraph_ephemeral_checkpointer.decisions.expiry import Wanted
from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan
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
    FindsOrphansFromAnywhere,
    HasLock,
    HasTenants,
    MeasuresSizes,
    Prunes,
)
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanKind, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.postgres.access import (
    LOCKED_THREADS,
    READ_COMMITTED,
    errors_mapped,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.lock import Step as LockStep
from langgraph_ephemeral_checkpointer.strategies.postgres.lock import SweepLock, aperform, perform
from langgraph_ephemeral_checkpointer.strategies.tenant import delete, find, sizes
from langgraph_ephemeral_checkpointer.strategies.tenant import orphans as tenant_orphans
from langgraph_ephemeral_checkpointer.strategies.tenant.access import Batches, TenantTables
from langgraph_ephemeral_checkpointer.strategies.tenant.prune import prune_threads
from langgraph_ephemeral_checkpointer.tenancy.names import CLOSE_PATH, Names
from langgraph_ephemeral_checkpointer.tenancy.plans import Transaction

T = TypeVar("T")


class TenantBase(Strategy, Prunes, FindsOrphansFromAnywhere, MeasuresSizes, HasLock, HasTenants):
    """What both colours do; each runs plans through its own kind of saver."""

    batch_limit = LOCKED_THREADS

    def __init__(self, checkpointer: Any) -> None:
        super().__init__(checkpointer)
        pooled = not isinstance(checkpointer.conn, Connection | AsyncConnection)
        self._lock = SweepLock(pooled=pooled, table=self._names.quoted()["checkpoints"])

    @property
    def _names(self) -> Names:
        names: Names = self.checkpointer.names
        return names

    def _tables(self) -> TenantTables:
        return TenantTables(self._names, self.checkpointer.current_tenant())

    def lock(self) -> Plan[LockStep, bool]:
        """Take the lock of the swept table, all tenants of it; see :mod:`..postgres.lock`."""
        return self._lock.acquire()

    def unlock(self) -> Plan[LockStep, None]:
        """Give the lock back."""
        return self._lock.release()

    @property
    def tenant(self) -> str | None:
        """Whose threads a call that comes now is about, where that is clear."""
        saver = self.checkpointer
        return saver.current_tenant() if saver.names_a_tenant else None

    @property
    def spans_tenants(self) -> bool:
        """Whether no scope is open and the saver has no default tenant."""
        return not self.checkpointer.names_a_tenant

    def tenants(self) -> Maybe[Sequence[str]]:
        """List every tenant, for a role that sees them all."""
        return self._transact(find.every_tenant(self._names))

    def tenant_scope(self, tenant: str) -> AbstractContextManager[None]:
        """Open the saver's own scope."""
        scope: AbstractContextManager[None] = self.checkpointer.tenant_scope(tenant)
        return scope

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Maybe[Page]:
        """Read the next page of the tenant's threads; the cursor is the last thread id."""
        return self._transact(find.scan(self._tables(), wanted, after, limit))

    def find_interrupted(self, thread_ids: Sequence[str]) -> Maybe[Collection[str]]:
        """Look at the writes of each thread's newest root checkpoint."""
        return self._transact(find.find_interrupted(self._tables(), thread_ids))

    def measure_threads(self, thread_ids: Sequence[str]) -> Maybe[Mapping[str, Size]]:
        """Add up the sizes of what is stored, compressed as it is."""
        return self._transact(sizes.measure(self._tables(), thread_ids))

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Maybe[Mapping[str, Outcome]]:
        """Delete threads in one short transaction that waits for no save."""
        plan = delete.delete_threads(self._tables(), thread_ids, recheck)
        busy = Outcome(KeepReason.BUSY)
        return self._transact(self._in_batch(plan, lambda: dict.fromkeys(thread_ids, busy)))

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Maybe[Mapping[str, PruneOutcome]]:
        """Trim threads in one transaction."""
        plan = prune_threads(self._tables(), thread_ids, keep, dry_run=dry_run)
        return self._transact(plan if dry_run else self._in_batch(plan, dict))

    def find_orphans(self, before: float, now: float, after: Any, limit: int) -> Maybe[OrphanPage]:
        """Look through the next part of the tenant's rows."""
        return self._transact(tenant_orphans.find(self._tables(), before, after, limit))

    def orphans_from(self, kind: OrphanKind, thread_id: str) -> Any:
        """Begin at a thread's first row."""
        return (kind, thread_id, "", "")

    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> Maybe[int]:
        """Delete in one transaction what is still an orphan of the tenant."""
        plan = tenant_orphans.delete(self._tables(), orphans, before)
        return self._transact(self._in_batch(plan, int))

    def _in_batch(self, plan: Batches[T], refused: Callable[[], T]) -> Batches[T]:
        yield [READ_COMMITTED, CLOSE_PATH]
        if (attempt := self._lock.attempt()) is not None:
            (answer,) = yield [attempt]
            if not answer[0][0]:
                plan.close()
                return refused()
        return (yield from plan)

    def _transact(self, plan: Batches[T]) -> Maybe[T]:
        answer: Maybe[T] = self.checkpointer.run_plan(Transaction(_mapped(plan), alone=True))
        return answer


class TenantPostgresStrategy(TenantBase):
    """Sweep a ``TenantPostgresSaver``: the tenant in scope, or every tenant in turn."""

    def perform(self, step: LockStep) -> Any:
        """Carry out one step of taking or giving back the lock."""
        self.checkpointer.setup()
        return perform(self.checkpointer, step)


class AsyncTenantPostgresStrategy(TenantBase):
    """Sweep an ``AsyncTenantPostgresSaver``: the tenant in scope, or every tenant in turn."""

    runs_sync = False
    blocks = False

    async def aperform(self, step: LockStep) -> Any:
        """Carry out one step of taking or giving back the lock."""
        await self.checkpointer.setup()
        return await aperform(self.checkpointer, step)


def _mapped(plan: Batches[T]) -> Batches[T]:
    """Tell a thread that cannot be worked on now from a server that is away.

    To the saver a wait that was too long is a server that is away; a sweep goes on with
    the other threads.
    """
    with errors_mapped():
        return (yield from plan)
