"""AsyncTenantPostgresSaver: a thin shell over the plans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar, Unpack

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from langgraph_ephemeral_checkpointer.engine.plan import Plan, adrive
from langgraph_ephemeral_checkpointer.messages.hooks import OnBeforeTrim
from langgraph_ephemeral_checkpointer.messages.purge import BATCH_SIZE, apurge_storage
from langgraph_ephemeral_checkpointer.messages.result import PurgeResult
from langgraph_ephemeral_checkpointer.tenancy.asending import carry_out
from langgraph_ephemeral_checkpointer.tenancy.base import Options, TenantSaver
from langgraph_ephemeral_checkpointer.tenancy.driver import (
    check_isolation,
    check_role,
    connecting,
    joins,
    lock_of,
    storage_errors,
)
from langgraph_ephemeral_checkpointer.tenancy.plans import Step, Transaction
from langgraph_ephemeral_checkpointer.tenancy.proof import create, look, refuse_missing
from langgraph_ephemeral_checkpointer.tenancy.scope import in_scope_of_call

T = TypeVar("T")


class AsyncTenantPostgresSaver(TenantSaver):
    """A checkpointer for many tenants in one Postgres, kept apart by Row-Level Security.

    Args:
        conn: A connection, or a pool. One connection serves one call at a time,
            whichever saver it is made of.
        **options: See :class:`~.base.TenantSaver`.

    Raises:
        TypeError: ``conn`` is neither.
    """

    def __init__(
        self,
        conn: AsyncConnection[Any] | AsyncConnectionPool[AsyncConnection[Any]],
        **options: Unpack[Options],
    ) -> None:
        if not isinstance(conn, (AsyncConnection, AsyncConnectionPool)):
            raise TypeError(
                "conn is a psycopg AsyncConnection or AsyncConnectionPool, not "
                f"{type(conn).__name__}; for a connection string use: "
                "async with AsyncTenantPostgresSaver.from_conn_string(dsn)"
            )
        super().__init__(**options)
        self.conn = conn
        self.lock = lock_of(conn, asyncio.Lock)
        self._set_up_lock = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls, conn_string: str, *, prepare_threshold: int | None = 0, **options: Unpack[Options]
    ) -> AsyncIterator[Self]:
        """Connect, and give a saver that lives as long as the ``with`` block.

        Args:
            conn_string: How to reach the server.
            prepare_threshold: After how many uses a statement is prepared; None never
                does, as a pooler in transaction mode may need it.
            **options: The saver's own.

        Raises:
            StorageError: It cannot be read, or the server cannot be reached with it. No error
                shows the password.
        """
        with connecting(conn_string):
            conn = await AsyncConnection.connect(
                conn_string,
                autocommit=True,
                prepare_threshold=prepare_threshold,
                client_encoding="UTF8",
            )
        async with conn:
            yield cls(conn, **options)

    async def setup(self) -> None:
        """Prove that the tables are right, and make what is missing; first use does it too.

        Raises:
            SchemaMismatchError: Something else has those names.
            SchemaMissingError: Tables are missing, and ``create_schema`` is False or the role
                may not make them.
            RowSecurityError: Row-Level Security is void for the role, and required.
            StorageError: Transactions are not READ COMMITTED unless told so, or the database
                refused, or is away.
        """
        async with self._set_up_lock:
            if self._set_up.done:
                return
            missing, role = await adrive(
                look(self.names, migrated=not self._create_schema), self._perform
            )
            check_isolation(role)
            check_role(role, required=self._require_rls)
            if missing and not self._create_schema:
                refuse_missing(self.names, missing)
            if missing:
                await self._perform(Transaction(create(self.names)))
            self._set_up.done = True

    # LangGraph's saver -----------------------------------------------------------------

    @in_scope_of_call
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load the checkpoint that ``config`` names, or the newest of its namespace."""
        return await self._run(self._load(config))

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints, greatest id first; the tenant is that of the call, now.

        Args:
            config: Thread, namespace and checkpoint, each optional; None: all of the tenant.
            filter: What the metadata must contain.
            before: Only checkpoints with a smaller id than this one's.
            limit: At most so many.
        """
        listing = self._listing(config, filter=filter, before=before, limit=limit)
        return self._pages(listing)

    async def _pages(self, listing: Any) -> AsyncIterator[CheckpointTuple]:
        while not listing.done:
            for found in await self._run(listing.page()):
                yield found

    @in_scope_of_call
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint in one round trip, pruning included.

        Raises:
            ThreadDeletedError: The thread was deleted under the run and cannot be stored
                whole; nothing was stored.
            ClockBehindError: A run's would sort before its parent; nothing was stored.
        """
        target, plan = self._save(
            config, checkpoint, metadata, new_versions, joins=joins(self.conn)
        )
        await self._run(plan)
        return target.config(checkpoint["id"])

    @in_scope_of_call
    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's writes."""
        plan = self._write(config, writes, task_id, task_path)
        if writes:
            await self._run(plan)

    @in_scope_of_call
    async def adelete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread, in every namespace."""
        await self._run(self._delete_thread(thread_id))

    @in_scope_of_call
    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what some runs of the current tenant saved.

        Args:
            run_ids: The runs, as their checkpoints' metadata has them.

        Raises:
            TypeError: ``run_ids`` is one string.
            TenantRequiredError: No scope is open and there is no default tenant.
            HistoryNeededError: Later checkpoints of a thread are rebuilt from it. That thread is
                left whole; the others are done.
        """
        await self._run(self._delete_for_runs(run_ids))

    @in_scope_of_call
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, history and writes included, to a new id of the same tenant.

        Raises:
            ValueError: The two ids are one.
            CrossTenantError: They belong to two tenants.
            ThreadExistsError: The target has checkpoints.
        """
        await self._run(self._copy_thread(source_thread_id, target_thread_id))

    @in_scope_of_call
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint per namespace, or nothing, of some threads.

        Args:
            thread_ids: The threads; each is pruned in its own transaction.
            strategy: ``keep_latest`` (and what that one is rebuilt from) or ``delete``.

        Raises:
            TypeError: ``thread_ids`` is one string.
            ValueError: Another strategy.
        """
        await self._run(self._prune(thread_ids, strategy))

    @in_scope_of_call
    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """What delta channels are rebuilt from, in one query per thousand ancestors."""
        return await self._run(self._history(config, channels))

    # Housekeeping ----------------------------------------------------------------------

    @in_scope_of_call
    async def vacuum(self, days: float) -> int:
        """Delete the current tenant's threads whose newest checkpoint is older.

        A thread with a checkpoint of unknown age is kept; one that waits for a human answer goes.
        Writes of that age that lost their checkpoint go too.

        Args:
            days: Age in days, finite and greater than 0.

        Returns:
            The number of threads deleted.

        Raises:
            TypeError: ``days`` is no number.
            ValueError: It is not finite and greater than 0.
            TenantRequiredError: No scope is open and there is no default tenant.
        """
        return await self._run(self._vacuum(days))

    @in_scope_of_call
    async def purge_messages(
        self,
        older_than: timedelta,
        *,
        channels: Collection[str] | None = None,
        on_before_trim: OnBeforeTrim | None = None,
        dry_run: bool = False,
        batch_size: int = BATCH_SIZE,
        clock: Callable[[], float] | None = None,
    ) -> PurgeResult:
        """Take exchanges that are too old out of what the current tenant has stored.

        Every thread is looked at, the idle ones too, and rewritten in place, each in a short
        transaction of its own that holds the thread's lock, as saves do. The last exchange
        of a thread goes as well, unless an interrupt waits for it. A message without a stamp
        is taken to be as old as the oldest checkpoint that holds it.

        A run that loaded a thread before and saves after it brings the old messages back
        with that save; the next save with ``message_retention``, or the next purge, takes
        them again.

        Args:
            older_than: Exchanges all of whose messages are older go; a timedelta greater than zero.
            channels: The channels to look at; None: the saver's ``message_channels``.
            on_before_trim: Receives the thread id and the messages about to go from a thread.
                If it fails, that is reported and nothing of the thread is changed. Only the
                asynchronous saver takes one that is asynchronous.
            dry_run: Only say what would go; calls no hook.
            batch_size: How many thread ids to read at a time.
            clock: Seconds since the epoch; None: the saver's clock.

        Returns:
            What was done: threads, messages and rows, what stays and why, and errors.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: ``older_than`` or ``batch_size`` is not positive.
            TenantRequiredError: No scope is open and there is no default tenant.
            StorageUnavailableError: The database is away.
        """
        storage, options = self._purge(
            older_than,
            channels,
            on_before_trim,
            dry_run=dry_run,
            batch_size=batch_size,
            clock=clock,
            runs_sync=False,
        )
        result = await apurge_storage(storage, options)
        return self._messages.purged(storage.tenant, result)

    @in_scope_of_call
    async def forget_tenant(self, tenant: str | None = None) -> int:
        """Delete everything of a tenant.

        Args:
            tenant: Whose; None: the open scope's. The default tenant is never meant.

        Returns:
            The number of threads deleted.

        Raises:
            TypeError: ``tenant`` is no string.
            ValueError: It is empty, or Postgres cannot hold it as text.
            TenantRequiredError: No tenant is named and no scope is open.
        """
        return await self._run(self._forget(tenant))

    @in_scope_of_call
    async def tenants(self) -> Sequence[str]:
        """List the tenants that have rows and that the role may see."""
        return await self._run(self._tenants())

    # Running plans ---------------------------------------------------------------------

    async def _run(self, plan: Plan[Step, T]) -> T:
        if not self._set_up.done:
            await self.setup()
        return await adrive(plan, self._perform)

    async def run_plan(self, step: Step) -> Any:
        """Carry out one step of a plan over these tables, after the tables were proven."""
        if not self._set_up.done:
            await self.setup()
        return await self._perform(step)

    async def _perform(self, step: Step) -> Any:
        with storage_errors(self._doing):
            if isinstance(self.conn, AsyncConnectionPool):
                async with self.conn.connection() as conn:
                    return await carry_out(conn, step)
            async with self.lock:
                return await carry_out(self.conn, step)
