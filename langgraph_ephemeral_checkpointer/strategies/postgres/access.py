"""A transaction on whatever a Postgres saver works on: a connection, a pipeline or a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from langgraph_ephemeral_checkpointer.drivers.postgres_errors import meaning
from langgraph_ephemeral_checkpointer.drivers.transactions import atransaction_on, transaction_on
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement, adrive, drive
from langgraph_ephemeral_checkpointer.errors import (
    RetentionError,
    StorageError,
    StorageUnavailableError,
    StorageUnusableError,
    ThreadMovedError,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.visibility import (
    FILTERED,
    NEEDED_RIGHTS,
    NO_TABLES,
    RELIES_ON_PATH,
)

T = TypeVar("T")
SqlPlan: TypeAlias = Plan[Statement, T]


def run(saver: Any, plan: Plan[Statement, T]) -> T:
    """Run a plan of statements in one transaction of a ``PostgresSaver``.

    Statements are not prepared: the planner then knows the arrays, and poolers that give
    each transaction another session do not mind.

    Raises:
        StorageError: The plan's transaction was rolled back.
    """
    with errors_mapped(), transaction(saver) as cursor:

        def perform(step: Statement) -> Any:
            cursor.execute(step.sql, step.params, prepare=False)
            if step.fetch:
                return cursor.fetchall()
            if pipe := _pipe(saver):  # the row count comes with the next sync
                pipe.sync()
            return cursor.rowcount

        return drive(plan, perform)


async def arun(saver: Any, plan: Plan[Statement, T]) -> T:
    """Run a plan in one transaction of an ``AsyncPostgresSaver``; otherwise as :func:`run`."""
    with errors_mapped():
        async with atransaction(saver) as cursor:

            async def perform(step: Statement) -> Any:
                await cursor.execute(step.sql, step.params, prepare=False)
                if step.fetch:
                    return await cursor.fetchall()
                if pipe := _pipe(saver):  # the row count comes with the next sync
                    await pipe.sync()
                return cursor.rowcount

            return await adrive(plan, perform)


READ_COMMITTED = Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", fetch=False)
"""Snapshots that move, whatever the database or the connection defaults to."""

LOCKED_THREADS = 500
"""Threads that one transaction locks at most, where each has a lock of its own.

A server in its default configuration has room for some 6,000 locks.
"""

# Shorter than deadlock_timeout (1 s by default): a batch gives way before the server would
# have to choose a victim, which might be the graph.
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', '500ms', true)"

# What the first delete would take. Asked for first, it tells a table that somebody has locked as
# a whole, on which every thread would fail after its own wait, from a thread with a locked row.
_LOCK_TABLES = "LOCK TABLE checkpoints, checkpoint_blobs, checkpoint_writes IN ROW EXCLUSIVE MODE"


def wait_briefly() -> SqlPlan[None]:
    """Wait for no lock for long, and for none on a whole table a second time.

    Raises:
        StorageUnavailableError: Somebody has locked a table as a whole.
    """
    yield Statement(_LOCK_TIMEOUT)
    try:
        yield Statement(_LOCK_TABLES, fetch=False)
    except LockNotAvailable as error:
        raise StorageUnavailableError(
            "another session has locked a whole table of checkpoints (a migration, an index that "
            "is built, VACUUM FULL); the next sweep tries again"
        ) from error


@contextmanager
def transaction(saver: Any) -> Iterator[Cursor[TupleRow]]:
    """Open a transaction of a ``PostgresSaver`` and give a cursor of plain tuples.

    A pool is not locked: it gives nobody the same connection twice.
    """
    with (
        _connection(saver) as connection,
        transaction_on(connection),
        connection.cursor(row_factory=tuple_row) as cursor,
    ):
        yield cursor


@contextmanager
def _connection(saver: Any) -> Iterator[Connection[Any]]:
    _refuse_closed(saver.conn)
    if not isinstance(saver.conn, Connection):
        with saver.conn.connection() as connection:
            refuse_bytes(connection)
            yield connection
        return
    with saver.lock:
        if pipe := _pipe(saver):
            pipe.sync()
        refuse_open_transaction(saver.conn)
        refuse_bytes(saver.conn)
        yield saver.conn


@asynccontextmanager
async def atransaction(saver: Any) -> AsyncIterator[AsyncCursor[TupleRow]]:
    """Open a transaction of an ``AsyncPostgresSaver``; otherwise as :func:`transaction`."""
    async with (
        _aconnection(saver) as connection,
        atransaction_on(connection),
        connection.cursor(row_factory=tuple_row) as cursor,
    ):
        yield cursor


@asynccontextmanager
async def _aconnection(saver: Any) -> AsyncIterator[AsyncConnection[Any]]:
    _refuse_closed(saver.conn)
    if not isinstance(saver.conn, AsyncConnection):
        async with saver.conn.connection() as connection:
            refuse_bytes(connection)
            yield connection
        return
    async with saver.lock:
        if pipe := _pipe(saver):
            await pipe.sync()
        refuse_open_transaction(saver.conn)
        refuse_bytes(saver.conn)
        yield saver.conn


def _pipe(saver: Any) -> Any:
    return getattr(saver, "pipe", None)  # the tenant savers work on no pipeline


def refuse_open_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Refuse a connection with an open transaction: the caller would have to commit it.

    Raises:
        StorageUnusableError: There is one.
    """
    if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise StorageUnusableError(
            "the Postgres connection has a transaction open that is not the sweeper's, so a delete "
            "would not be committed; open the saver's connection with autocommit=True, or give the "
            "saver a pool"
        )


def _refuse_closed(conn: Any) -> None:
    # Waiting mends neither: a lost connection stays closed, and nobody opens the pool.
    if not getattr(conn, "closed", False):
        return
    if isinstance(conn, Connection | AsyncConnection):
        raise StorageUnusableError(
            "the saver's Postgres connection is closed and does not come back; make a new saver "
            "and sweeper on a new one, or on a pool, which connects again by itself"
        )
    raise StorageUnusableError(
        "the saver's Postgres pool is not open; open it before the first sweep (pool.open() or "
        "'with pool'), and stop the sweeper before it is closed"
    )


def refuse_bytes(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Refuse a connection that reads text as bytes, which the saver then stores as other text.

    Raises:
        StorageUnusableError: It does.
    """
    if connection.info.encoding == "ascii":
        raise StorageUnusableError(
            "the Postgres connection's client_encoding is SQL_ASCII (that of the database, unless "
            "another is asked for), under which text is read as bytes, by the saver too; connect "
            "with client_encoding=UTF8"
        )


@contextmanager
def errors_mapped() -> Iterator[None]:
    """Turn the driver's errors into ours, telling a bad thread from a server that is away."""
    try:
        yield
    except RetentionError:
        raise
    except psycopg.errors.SerializationFailure as error:
        raise ThreadMovedError from error
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction) as error:
        if error.diag.context is not None:  # in a function
            raise StorageError(
                f"Postgres refused a statement: {error.diag.message_primary}; {RELIES_ON_PATH}"
            ) from error
        if isinstance(error, psycopg.errors.UndefinedTable):
            raise StorageUnusableError(NO_TABLES) from error
        raise StorageError(f"Postgres refused a statement: {error}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        # The words are of the server's language; where they come from is not.
        filtered = error.diag.source_function == "check_enable_rls"
        raise meaning(error)(
            f"Postgres refused a statement: {error.diag.message_primary}; "
            f"{FILTERED if filtered else NEEDED_RIGHTS}"
        ) from error
    except (psycopg.errors.ForeignKeyViolation, psycopg.errors.RestrictViolation) as error:
        raise StorageError(
            f"another table refers to these rows by the foreign key "
            f"{error.diag.constraint_name!r}, so they stay ({error.diag.message_primary}); remove "
            "the rows that refer to them, or make the key ON DELETE CASCADE"
        ) from error
    except psycopg.Error as error:
        kind = meaning(error)
        if issubclass(kind, StorageUnavailableError):
            raise kind(
                f"Postgres cannot be used now ({error}); the next sweep tries again"
            ) from error
        raise kind(f"Postgres refused a statement: {error}") from error
