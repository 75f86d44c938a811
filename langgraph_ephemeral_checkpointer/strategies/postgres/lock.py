"""Carrying out the steps of the sweep lock (:mod:`.sweep_lock`) on a saver's connection."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection, Connection

from langgraph_ephemeral_checkpointer.strategies.postgres.access import (
    arun,
    atransaction,
    errors_mapped,
    run,
    transaction,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.sweep_lock import (
    Close,
    Connect,
    Look,
    RunOn,
    Seen,
    Step,
    Transact,
)


def perform(saver: Any, step: Step) -> Any:
    """Carry out one step of taking or giving back the lock, on a synchronous saver."""
    with errors_mapped():
        match step:
            case Transact(plan):
                return run(saver, plan)
            case Look(sql):
                with transaction(saver) as cursor:
                    return cursor.execute(sql).fetchone(), Seen.of(cursor.connection.info)
            case Connect(conninfo):
                return Connection.connect(conninfo, autocommit=True)
            case RunOn(connection, sql, params):
                return connection.execute(sql, params).fetchone()
            case Close(connection):
                return connection.close()


async def aperform(saver: Any, step: Step) -> Any:
    """Carry out one step on an asynchronous saver; otherwise as :func:`perform`."""
    with errors_mapped():
        match step:
            case Transact(plan):
                return await arun(saver, plan)
            case Look(sql):
                async with atransaction(saver) as cursor:
                    await cursor.execute(sql)
                    return await cursor.fetchone(), Seen.of(cursor.connection.info)
            case Connect(conninfo):
                return await AsyncConnection.connect(conninfo, autocommit=True)
            case RunOn(connection, sql, params):
                return await (await connection.execute(sql, params)).fetchone()
            case Close(connection):
                return await connection.close()
