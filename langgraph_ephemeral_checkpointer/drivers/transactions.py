"""Work on a connection of psycopg that is brought to its end wherever it is interrupted.

Before 3.3, psycopg leaves the transaction open if a cancellation (or Ctrl-C) arrives while
BEGIN is under way: what was not entered is not exited. Up to now, it leaves a pipeline open if one
arrives as the pipeline is entered (the ROLLBACK after it then waits in that pipeline), and a
failed transaction if one arrives during COMMIT. Every later statement on the connection would
then belong to a transaction that nobody commits. Nor does it forget a pipeline that it was about to
enter, or a transaction it was about to count, and refuses every later statement.

Whoever mends can be interrupted too. So there are two layers: the inner one mends, and the outer
one closes what is still not in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncTransaction, Connection, Transaction
from psycopg.pq import PipelineStatus, TransactionStatus

# The mark by which psycopg 3.3 knows how far a transaction has come, and ends it itself.
_ENDS_ITSELF = hasattr(Transaction, "Status")

_MENDING_SECONDS = 5.0

T = TypeVar("T")


def mending(connection: Connection[Any], work: Callable[[], T]) -> T:
    """Do work on a connection, and leave it at rest, or closed, if it fails and was at rest.

    A connection that cannot be mended is closed: its pool opens another, and without one the
    next call fails, instead of being lost. Where a transaction or pipeline of the caller's is
    open, nothing is done: it is theirs to end.

    Args:
        connection: The connection.
        work: What to do.
    """
    found, autocommit = _is_at_rest(connection), connection.autocommit
    try:
        try:
            return work()
        except BaseException:
            if found:
                _mend(connection, autocommit)
            raise
    except BaseException:
        if found:
            _close_unless(connection, autocommit)
        raise


async def amending(connection: AsyncConnection[Any], work: Callable[[], Awaitable[T]]) -> T:
    """As :func:`mending`, to its end also where the task is cancelled a second time."""
    found, autocommit = _is_at_rest(connection), connection.autocommit
    try:
        try:
            return await work()
        except BaseException:
            if found:
                await _amend_to_its_end(connection, autocommit)
            raise
    except BaseException:
        if found:
            _close_unless(connection, autocommit)
        raise


def _mend(connection: Connection[Any], autocommit: bool) -> None:
    if _is_as(connection, autocommit):
        return
    # An open pipeline is not left in an orderly way: that may wait for answers without end.
    if connection._pipeline is None:
        with suppress(Exception):  # what is still wrong with it ends it
            connection.rollback()
            connection.autocommit = autocommit
    _close_unless(connection, autocommit)


async def _amend_to_its_end(connection: AsyncConnection[Any], autocommit: bool) -> None:
    if _is_as(connection, autocommit):
        return
    mending = asyncio.create_task(_amend(connection, autocommit))
    while not mending.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(mending)


async def _amend(connection: AsyncConnection[Any], autocommit: bool) -> None:
    try:
        async with asyncio.timeout(_MENDING_SECONDS):
            if (pipeline := connection._pipeline) is not None:
                await pipeline.__aexit__(None, None, None)
                connection._pipeline = None
            await connection.rollback()
            await connection.set_autocommit(autocommit)
    except Exception:  # noqa: BLE001, S110 - what is still wrong with it ends it
        pass
    finally:
        _close_unless(connection, autocommit)


def _close_unless(connection: Connection[Any] | AsyncConnection[Any], autocommit: bool) -> None:
    if not _is_as(connection, autocommit):
        connection.pgconn.finish()


def _is_as(connection: Connection[Any] | AsyncConnection[Any], autocommit: bool) -> bool:
    return connection.closed or (_is_at_rest(connection) and connection.autocommit is autocommit)


def _is_at_rest(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    return (
        connection.pgconn.transaction_status == TransactionStatus.IDLE
        and connection.pgconn.pipeline_status == PipelineStatus.OFF
        and connection._pipeline is None
        and not connection._num_transactions
    )


@contextmanager
def transaction_on(connection: Connection[Any]) -> Iterator[None]:
    """Run the body in a transaction of a connection, or in a savepoint of the open one."""
    found, autocommit = _is_at_rest(connection), connection.autocommit
    try:
        try:
            with _transaction_on(connection):
                yield
        except BaseException:
            if found:
                _mend(connection, autocommit)
            raise
    except BaseException:
        if found:
            _close_unless(connection, autocommit)
        raise


@contextmanager
def _transaction_on(connection: Connection[Any]) -> Iterator[None]:
    if _ENDS_ITSELF:
        with connection.transaction():
            yield
        return
    with ExitStack() as stack:
        piped = connection.info.pipeline_status != PipelineStatus.OFF
        if piped:  # as connection.transaction() does
            stack.enter_context(connection.pipeline())
        opened = Transaction(connection)
        try:
            stack.enter_context(opened)
        except BaseException as error:
            if _is_half_open(opened):
                opened.__exit__(type(error), error, error.__traceback__)
            raise
        if piped:
            stack.enter_context(connection.pipeline())
        yield


@asynccontextmanager
async def atransaction_on(connection: AsyncConnection[Any]) -> AsyncIterator[None]:
    """Run the body in a transaction of an asynchronous connection; as :func:`transaction_on`."""
    found, autocommit = _is_at_rest(connection), connection.autocommit
    try:
        try:
            async with _atransaction_on(connection):
                yield
        except BaseException:
            if found:
                await _amend_to_its_end(connection, autocommit)
            raise
    except BaseException:
        if found:
            _close_unless(connection, autocommit)
        raise


@asynccontextmanager
async def _atransaction_on(connection: AsyncConnection[Any]) -> AsyncIterator[None]:
    if _ENDS_ITSELF:
        async with connection.transaction():
            yield
        return
    async with AsyncExitStack() as stack:
        piped = connection.info.pipeline_status != PipelineStatus.OFF
        if piped:
            await stack.enter_async_context(connection.pipeline())
        opened = AsyncTransaction(connection)
        try:
            await stack.enter_async_context(opened)
        except BaseException as error:
            if _is_half_open(opened):
                await opened.__aexit__(type(error), error, error.__traceback__)
            raise
        if piped:
            await stack.enter_async_context(connection.pipeline())
        yield


def _is_half_open(transaction: Transaction | AsyncTransaction) -> bool:
    return getattr(transaction, "_entered", False) and not getattr(transaction, "_exited", True)
