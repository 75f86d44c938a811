"""The synchronous tenant saver: a thin shell over the plans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from psycopg import Connection, Cursor, Rollback, errors
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.drivers.transactions import mend, transaction_on
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement, drive
from langgraph_ephemeral_checkpointer.messages.hooks import OnBeforeTrim
from langgraph_ephemeral_checkpointer.messages.purge import BATCH_SIZE, purge_storage
from langgraph_ephemeral_checkpointer.messages.result import PurgeResult
from langgraph_ephemeral_checkpointer.tenancy.arrays import adapt
from langgraph_ephemeral_checkpointer.tenancy.base import Options, TenantSaver
from langgraph_ephemeral_checkpointer.tenancy.driver import (
    DOUBTFUL,
    HAS_PIPELINE,
    UNPIN,
    check_isolation,
    check_role,
    connecting,
    in_transaction,
    isolation,
    joins,
    lock_of,
    storage_errors,
)
from langgraph_ephemeral_checkpointer.tenancy.plans import Step, Transaction
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch, create, look, refuse_missing
from langgraph_ephemeral_checkpointer.tenancy.wire import exchange, fits

T = TypeVar("T")


class TenantPostgresSaver(TenantSaver):
    """A checkpointer for many tenants in one Postgres, kept apart by Row-Level Security.

    Args:
        conn: A connection, or a pool. One connection serves one call at a time,
            whichever saver it is made of.
        **options: See :class:`~.base.TenantSaver`.

    Raises:
        TypeError: ``conn`` is neither.
    """

    def __init__(
        self, conn: Connection[Any] | ConnectionPool[Connection[Any]], **options: Unpack[Options]
    ) -> None:
        if not isinstance(conn, (Connection, ConnectionPool)):
            raise TypeError(
                f"conn is a psycopg Connection or ConnectionPool, not {type(conn).__name__}; "
                "for a connection string use: with TenantPostgresSaver.from_conn_string(dsn)"
            )
        super().__init__(**options)
        self.conn = conn
        self.lock = lock_of(conn, threading.RLock)

    @classmethod
    @contextmanager
    def from_conn_string(
        cls, conn_string: str, *, prepare_threshold: int | None = 0, **options: Unpack[Options]
    ) -> Iterator[Self]:
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
            conn = Connection.connect(
                conn_string,
                autocommit=True,
                prepare_threshold=prepare_threshold,
                client_encoding="UTF8",
            )
        with conn:
            yield cls(conn, **options)

    def setup(self) -> None:
        """Prove that the tables are right, and make what is missing; first use does it too.

        Raises:
            SchemaMismatchError: Something else has those names.
            SchemaMissingError: Tables are missing, and ``create_schema`` is False or the role
                may not make them.
            RowSecurityError: Row-Level Security is void for the role, and required.
            StorageError: Transactions are not READ COMMITTED unless told so, or the database
                refused, or is away.
        """
        with self._set_up.lock:
            if self._set_up.done:
                return
            missing, role = drive(look(self.names), self._perform)
            check_isolation(role)
            check_role(role, required=self._require_rls)
            if missing and not self._create_schema:
                refuse_missing(self.names, missing)
            if missing:
                self._perform(Transaction(create(self.names)))
            self._set_up.done = True

    # LangGraph's saver -----------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load the checkpoint that ``config`` names, or the newest of its namespace."""
        return self._run(self._load(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, greatest id first; the tenant is that of the call, now.

        Args:
            config: Thread, namespace and checkpoint, each optional; None: all of the tenant.
            filter: What the metadata must contain.
            before: Only checkpoints with a smaller id than this one's.
            limit: At most so many.
        """
        listing = self._listing(config, filter=filter, before=before, limit=limit)
        return self._pages(listing)

    def _pages(self, listing: Any) -> Iterator[CheckpointTuple]:
        while not listing.done:
            yield from self._run(listing.page())

    def put(
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
        """
        target, plan = self._save(
            config, checkpoint, metadata, new_versions, joins=joins(self.conn)
        )
        self._run(plan)
        return target.config(checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's writes."""
        plan = self._write(config, writes, task_id, task_path)
        if writes:
            self._run(plan)

    def delete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread, in every namespace."""
        self._run(self._delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what some runs of the current tenant saved.

        Args:
            run_ids: The runs, as their checkpoints' metadata has them.

        Raises:
            TypeError: ``run_ids`` is one string.
            TenantRequiredError: No scope is open and there is no default tenant.
            HistoryNeededError: Later checkpoints of a thread are rebuilt from it. That thread is
                left whole; the others are done.
        """
        self._run(self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, history and writes included, to a new id of the same tenant.

        Raises:
            ValueError: The two ids are one.
            CrossTenantError: They belong to two tenants.
            ThreadExistsError: The target has checkpoints.
        """
        self._run(self._copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint per namespace, or nothing, of some threads.

        Args:
            thread_ids: The threads; each is pruned in its own transaction.
            strategy: ``keep_latest`` (and what that one is rebuilt from) or ``delete``.

        Raises:
            TypeError: ``thread_ids`` is one string.
            ValueError: Another strategy.
        """
        self._run(self._prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """What delta channels are rebuilt from, in one query per thousand ancestors."""
        return self._run(self._history(config, channels))

    # Housekeeping ----------------------------------------------------------------------

    def vacuum(self, days: float) -> int:
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
        return self._run(self._vacuum(days))

    def purge_messages(
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
                If it fails, that is reported and nothing of the thread is changed.
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
            runs_sync=True,
        )
        return self._messages.purged(storage.tenant, purge_storage(storage, options))

    def forget_tenant(self, tenant: str | None = None) -> int:
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
        return self._run(self._forget(tenant))

    def tenants(self) -> Sequence[str]:
        """List the tenants that have rows and that the role may see."""
        return self._run(self._tenants())

    # Running plans ---------------------------------------------------------------------

    def _run(self, plan: Plan[Step, T]) -> T:
        if not self._set_up.done:
            self.setup()
        return drive(plan, self._perform)

    def run_plan(self, step: Step) -> Any:
        """Carry out one step of a plan over these tables, after the tables were proven."""
        if not self._set_up.done:
            self.setup()
        return self._perform(step)

    def _perform(self, step: Step) -> Any:
        with storage_errors(self._doing):
            if isinstance(self.conn, ConnectionPool):
                with self.conn.connection() as conn:
                    return _carry_out(conn, step)
            with self.lock:
                return _carry_out(self.conn, step)


def _carry_out(conn: Connection[Any], step: Step) -> Any:
    if not isinstance(step, Transaction):
        return _round_trip(conn, step)
    joined = in_transaction(conn, refused=step.alone)
    if conn in DOUBTFUL and not joined:
        _start_afresh(conn)
    with transaction_on(conn):
        if not joined and (level := isolation(conn)):
            _send(conn, [level])
        answer = drive(step.plan, partial(_send, conn))
        if joined:
            _send(conn, [UNPIN])
    return answer


def _round_trip(conn: Connection[Any], batch: Batch) -> list[Any]:
    """Run a batch as one transaction, or as part of the caller's where one is open."""
    if HAS_PIPELINE:
        with conn.lock:
            if fits(batch, conn):
                work = exchange(conn, batch)
                try:
                    return conn.wait(work)
                finally:
                    # A wait that is interrupted twice leaves it half done, and the error
                    # would keep it so for as long as somebody holds it.
                    work.close()
    if in_transaction(conn):
        return _send(conn, [*batch, UNPIN])[:-1]
    try:
        return _by_cursors(conn, batch)
    except errors.InvalidSqlStatementName:
        # As in the short way; psycopg does not notice every DISCARD ALL.
        return _by_cursors(conn, batch)


def _by_cursors(conn: Connection[Any], batch: Batch) -> list[Any]:
    if conn in DOUBTFUL:
        _start_afresh(conn)
    if not HAS_PIPELINE:
        with transaction_on(conn):
            return _send(conn, batch)
    # A plain try, not a context manager: this is on the way of every save.
    own = conn.info.pipeline_status == PipelineStatus.OFF
    by_itself = conn.autocommit
    try:
        if not by_itself:  # the switch is in the client only, BEGIN would be a trip
            conn.autocommit = True
        # Up to its end a pipeline is one implicit transaction, without BEGIN and COMMIT.
        answers = _send(conn, batch)
        if not by_itself:
            conn.autocommit = False
    except BaseException:
        DOUBTFUL.add(conn)
        if own:
            mend(conn, autocommit=by_itself)
        elif not by_itself:
            _switch_back(conn)
        raise
    return answers


def _switch_back(conn: Connection[Any]) -> None:
    """In a pipeline of the caller's, whose statements would each commit by themselves."""
    try:
        with suppress(errors.Error):
            conn.autocommit = False
    finally:
        if conn.autocommit:
            conn.pgconn.finish()


def _start_afresh(conn: Connection[Any]) -> None:
    with transaction_on(conn):
        raise Rollback
    DOUBTFUL.discard(conn)


def _send(conn: Connection[Any], batch: Sequence[Statement]) -> list[Any]:
    adapt(conn)
    if not HAS_PIPELINE or len(batch) == 1:
        return [_answer(_execute(conn, one), one) for one in batch]
    with conn.pipeline():
        cursors = [_execute(conn, one) for one in batch]
    return [_answer(cursor, one) for cursor, one in zip(cursors, batch, strict=True)]


def _execute(conn: Connection[Any], statement: Statement) -> Cursor[Any]:
    # Our own cursor, whatever cursor and row factories the connection came with.
    cursor = Cursor(conn, row_factory=tuple_row)
    return cursor.execute(statement.sql, statement.params, binary=True)


def _answer(cursor: Cursor[Any], statement: Statement) -> Any:
    return cursor.fetchall() if statement.fetch else cursor.rowcount
