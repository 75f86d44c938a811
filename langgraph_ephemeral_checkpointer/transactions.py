"""A transaction of psycopg that is ended also where its beginning is interrupted.

Before 3.3, psycopg leaves the transaction open if a cancellation (or Ctrl-C) arrives while
BEGIN is under way: what was not entered is not exited. Every later statement on the
connection would then belong to a transaction that nobody commits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any

from psycopg import AsyncConnection, AsyncTransaction, Connection, Transaction
from psycopg.pq import PipelineStatus

# The mark by which psycopg 3.3 knows how far a transaction has come, and ends it itself.
_ENDS_ITSELF = hasattr(Transaction, "Status")


@contextmanager
def transaction_on(connection: Connection[Any]) -> Iterator[None]:
    """Run the body in a transaction of a connection, or in a savepoint of the open one."""
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
