"""Sends the steps of plans over psycopg's AsyncConnection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Rollback, errors
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from langgraph_ephemeral_checkpointer.drivers.transactions import amending, atransaction_on
from langgraph_ephemeral_checkpointer.engine.plan import Statement, adrive
from langgraph_ephemeral_checkpointer.tenancy.arrays import adapt
from langgraph_ephemeral_checkpointer.tenancy.driver import (
    DOUBTFUL,
    HAS_PIPELINE,
    PUT_BACK,
    REMEMBER,
    in_transaction,
    isolation,
)
from langgraph_ephemeral_checkpointer.tenancy.plans import Step, Transaction
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch
from langgraph_ephemeral_checkpointer.tenancy.wire import exchange, fits


async def carry_out(conn: AsyncConnection[Any], step: Step) -> Any:
    """Carry out one step of a plan on a connection that nobody else uses meanwhile.

    Args:
        conn: The connection. Where the caller has a transaction open, the step joins it.
        step: Statements that are one transaction, or a plan that is run in one.

    Returns:
        What the statements gave, each its rows or their number; or what the plan gave.

    Raises:
        StorageUnusableError: A transaction is open, and the step has to have its own.
        psycopg.Error: The server or the connection refused.
    """
    if isinstance(step, Transaction):
        return await amending(conn, partial(_transact, conn, step))
    return await _round_trip(conn, step)


async def _transact(conn: AsyncConnection[Any], step: Transaction) -> Any:
    joined = in_transaction(conn, refused=step.alone)
    if conn in DOUBTFUL and not joined:
        await _start_afresh(conn)
    async with atransaction_on(conn):
        if opening := REMEMBER if joined else isolation(conn):
            await _send(conn, [opening])
        answer = await adrive(step.plan, partial(_send, conn))
        if joined:
            await _send(conn, [PUT_BACK])
    return answer


async def _round_trip(conn: AsyncConnection[Any], batch: Batch) -> list[Any]:
    """Run a batch as one transaction, or as part of the caller's where one is open."""
    if HAS_PIPELINE and not in_transaction(conn):
        done = await amending(conn, partial(_by_wire, conn, batch))
        if done is not None:
            return done
    if in_transaction(conn):
        answers = await _send(conn, [REMEMBER, *batch, PUT_BACK])
        return answers[1:-1]
    by_cursors = partial(_by_cursors, conn, batch)
    try:
        return await amending(conn, by_cursors)
    except errors.InvalidSqlStatementName:
        # As in the short way; psycopg does not notice every DISCARD ALL.
        return await amending(conn, by_cursors)


async def _by_wire(conn: AsyncConnection[Any], batch: Batch) -> list[Any] | None:
    async with conn.lock:
        if not fits(batch, conn):
            return None
        work = exchange(conn, batch)
        try:
            return await conn.wait(work)
        finally:
            # A wait that is interrupted twice leaves it half done, and the error
            # would keep it so for as long as somebody holds it.
            work.close()


async def _by_cursors(conn: AsyncConnection[Any], batch: Batch) -> list[Any]:
    if conn in DOUBTFUL:
        await _start_afresh(conn)
    if not HAS_PIPELINE:
        async with atransaction_on(conn):
            return await _send(conn, batch)
    # A plain try, not a context manager: this is on the way of every save.
    own = conn.info.pipeline_status == PipelineStatus.OFF
    by_itself = conn.autocommit
    DOUBTFUL.add(conn)  # beforehand: what comes after a failure may be interrupted
    try:
        if not by_itself:  # the switch is in the client only, BEGIN would be a trip
            await conn.set_autocommit(True)
        # Up to its end a pipeline is one implicit transaction, without BEGIN and COMMIT.
        answers = await _send(conn, batch, alone=True)
        if not by_itself:
            await conn.set_autocommit(False)
    except BaseException:
        if not own and not by_itself:
            await _switch_back(conn)
        raise
    DOUBTFUL.discard(conn)
    return answers


async def _switch_back(conn: AsyncConnection[Any]) -> None:
    """In a pipeline of the caller's, whose statements would each commit by themselves."""
    try:
        with suppress(errors.Error):
            await conn.set_autocommit(False)
    finally:
        if conn.autocommit:
            conn.pgconn.finish()


async def _start_afresh(conn: AsyncConnection[Any]) -> None:
    async with atransaction_on(conn):
        raise Rollback
    DOUBTFUL.discard(conn)


async def _send(
    conn: AsyncConnection[Any], batch: Sequence[Statement], *, alone: bool = False
) -> list[Any]:
    """Send statements at once; ``alone``: they are a transaction, not a part of one."""
    adapt(conn)
    if not HAS_PIPELINE or len(batch) == 1:
        return [await _answer(await _execute(conn, one), one) for one in batch]
    async with conn.pipeline():
        try:
            cursors = [await _execute(conn, one) for one in batch]
        except BaseException:
            if alone:
                # The end of the pipeline would commit the first of them without the last.
                try:
                    with suppress(errors.Error):  # of the server, which commits nothing then
                        await conn.execute("ROLLBACK", prepare=False)
                except BaseException:
                    conn.pgconn.finish()
                    raise
            raise
    return [await _answer(cursor, one) for cursor, one in zip(cursors, batch, strict=True)]


async def _execute(conn: AsyncConnection[Any], statement: Statement) -> AsyncCursor[Any]:
    # Our own cursor, whatever cursor and row factories the connection came with.
    cursor = AsyncCursor(conn, row_factory=tuple_row)
    return await cursor.execute(statement.sql, statement.params, binary=True)


async def _answer(cursor: AsyncCursor[Any], statement: Statement) -> Any:
    return await cursor.fetchall() if statement.fetch else cursor.rowcount
