"""The lock by which only one of several instances sweeps the same Postgres tables.

It is a session-level advisory lock, taken before the scan and held on one connection
until the sweep ends; the server releases it when that connection is gone, so a crashed
instance blocks nobody. Its key is ``0x4C474543 << 32 | oid``, with the oid of the table of
checkpoints (for LangGraph's saver the ``checkpoints`` that the search path finds): two schemas
have two keys.

    SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1279739203;

A pooler in transaction mode gives each transaction another session, where a session lock
would be left behind. There the lock is taken in each batch's own transaction instead, so
that two instances never work on a batch at the same time. The same is done behind a pooler in
session mode, where a session lock would do: both kinds tell their clients an invented process id,
and nothing that a client can ask for tells them apart for sure. (That two transactions had the same
session proves nothing, it may have been the only one.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection, ConnectionInfo
from psycopg.conninfo import make_conninfo

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.strategies.postgres.access import (
    arun,
    atransaction,
    errors_mapped,
    run,
    transaction,
)

T = TypeVar("T")

_SPACE = 0x4C474543

_KEY = """
    SELECT pg_catalog.pg_backend_pid(), '{table}'::pg_catalog.regclass::pg_catalog.oid
"""

# A session may take its own lock again, so two sweepers on one connection would both get it.
_TRY = """
    SELECT NOT EXISTS (
        SELECT FROM pg_catalog.pg_locks JOIN pg_catalog.pg_database AS here
            ON here.oid OPERATOR(pg_catalog.=) database
        WHERE locktype OPERATOR(pg_catalog.=) 'advisory'
          AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()
          AND objsubid OPERATOR(pg_catalog.=) 1
          AND here.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
          AND classid OPERATOR(pg_catalog.=) %(space)s::pg_catalog.oid
          AND objid OPERATOR(pg_catalog.=) %(oid)s::pg_catalog.oid
    ) AND pg_catalog.pg_try_advisory_lock(%(key)s)
"""
_UNLOCK = "SELECT pg_catalog.pg_advisory_unlock(%(key)s)"
_TRY_IN_TRANSACTION = "SELECT pg_catalog.pg_try_advisory_xact_lock(%(key)s)"


@dataclass(frozen=True, slots=True)
class Transact:
    """Run a plan of statements in a transaction of the saver's connection."""

    plan: Plan[Statement, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """Run one statement in a transaction; answers its first row and a :class:`Seen`."""

    sql: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a connection says of itself, which a pool may have closed by the time it is used.

    Attributes:
        pid: The process id that the server or a pooler told it.
        conninfo: How to open another one like it.
    """

    pid: int
    conninfo: str = field(repr=False)

    @classmethod
    def of(cls, info: ConnectionInfo) -> Seen:
        """Read it off an open connection."""
        return cls(info.backend_pid, make_conninfo(info.dsn, password=info.password or None))


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection that is no part of a pool."""

    conninfo: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunOn:
    """Run one statement on a connection of one's own; answers its first row."""

    connection: Any
    sql: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection of one's own, and with it release what its session holds."""

    connection: Any


Step = Transact | Look | Connect | RunOn | Close


class SweepLock:
    """The lock of one strategy.

    Args:
        pooled: Whether the saver works on a pool. The lock then has a connection of its
            own: a pool of one would otherwise have none left for the graph.
        table: The table of checkpoints, as a statement names it.
    """

    def __init__(self, *, pooled: bool, table: str = "checkpoints") -> None:
        self._pooled = pooled
        self._look = _KEY.format(table=table.replace("'", "''"))
        self._key: int | None = None
        self._holder: Any = None
        self._per_batch = False

    def acquire(self) -> Plan[Step, bool]:
        """Take the lock; False if another instance has it."""
        (server_pid, oid), seen = yield Look(self._look)
        self._key = _SPACE << 32 | oid
        params = {"key": self._key, "space": _SPACE, "oid": oid}
        # A pooler invents the process id that it tells its clients.
        self._per_batch = seen.pid != server_pid
        if self._per_batch:
            return bool((yield Transact(_first_value(_TRY_IN_TRANSACTION, params))))
        if not self._pooled:
            return bool((yield Transact(_first_value(_TRY, params))))
        self._holder = yield Connect(seen.conninfo)
        taken = False
        try:
            taken = (yield RunOn(self._holder, _TRY, params))[0]
        finally:
            if not taken:
                yield from self._close()
        return bool(taken)

    def release(self) -> Plan[Step, None]:
        """Give the lock back."""
        key, self._key = self._key, None
        if key is None or self._per_batch:
            return
        if self._holder is None:
            yield Transact(_first_value(_UNLOCK, {"key": key}))
            return
        try:
            # By a statement: the server ends a closed session, and what it holds, a while after
            # the client is gone, and the next sweep may come sooner.
            yield RunOn(self._holder, _UNLOCK, {"key": key})
        finally:
            yield from self._close()

    def _close(self) -> Plan[Step, None]:
        holder, self._holder = self._holder, None
        yield Close(holder)

    def in_batch(self, plan: Plan[Statement, T], refused: Callable[[], T]) -> Plan[Statement, T]:
        """Wrap the plan of a writing transaction.

        Args:
            plan: What the batch does.
            refused: Gives the batch's answer where another instance is in a batch.
        """
        if (attempt := self.attempt()) is not None:
            answer = yield attempt
            if not answer[0][0]:
                plan.close()
                return refused()
        return (yield from plan)

    def attempt(self) -> Statement | None:
        """The statement by which a batch takes the lock, where each has to take it itself."""
        if self._per_batch and self._key is not None:
            return Statement(_TRY_IN_TRANSACTION, {"key": self._key})
        return None


def _first_value(sql: str, params: dict[str, Any]) -> Plan[Statement, Any]:
    return (yield Statement(sql, params))[0][0]


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
