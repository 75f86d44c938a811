"""Reads and immediate transactions on the connection of an SQLite saver, under its lock.

Never through the saver's ``cursor()``: that commits also when its body raises.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement, adrive, drive
from langgraph_ephemeral_checkpointer.errors import (
    RetentionError,
    StorageError,
    StorageUnavailableError,
    StorageUnusableError,
)

T = TypeVar("T")
SqlPlan: TypeAlias = Plan[Statement, T]

VARIABLES = 100
"""Values in one statement.

SQLite takes 999 on old builds, and a connection may be set lower. (json_each would need only one
for all, but cuts an id at a NUL.)
"""


def in_parts(
    values: Iterable[T], mark: str = "?", *, besides: int = 0, at_most: int | None = None
) -> Iterator[tuple[tuple[T, ...], str]]:
    """Cut values into what goes into one statement, each part with its marks.

    Args:
        values: The values; those of one row after those of the other where ``mark`` is a row.
        mark: ``?`` for ``IN (...)``, or a row for ``VALUES ...``: ``(?)``, ``(?, ?)``.
        besides: How many other values the statement has.
        at_most: Values in one part, where less than fit are wanted.
    """
    width = mark.count("?")
    size = VARIABLES - besides if at_most is None else min(at_most, VARIABLES - besides)
    rest = iter(values)
    while part := tuple(islice(rest, size // width * width)):
        yield part, ", ".join([mark] * (len(part) // width))


def select(sql: str, values: Iterable[Any]) -> Plan[Statement, list[tuple[Any, ...]]]:
    """Read the rows of a statement over any number of values.

    Args:
        sql: The statement, with ``{marks}`` where they stand.
        values: The values.
    """
    rows = []
    for part, marks in in_parts(values):
        rows += yield Statement(sql.format(marks=marks), part)
    return rows


def read(saver: Any, plan: Plan[Statement, T]) -> T:
    """Run a plan that only reads, on a ``SqliteSaver``."""
    with errors_mapped(), saver.lock:
        return _run(saver, plan)


def write(saver: Any, plan: Plan[Statement, T]) -> T:
    """Run a plan in one immediate transaction of a ``SqliteSaver``.

    Raises:
        StorageError: The transaction was rolled back.
    """
    connection = saver.conn
    with errors_mapped(), saver.lock:
        _refuse_open_transaction(connection.in_transaction)
        # By statements: commit() and rollback() do nothing on a connection that was opened with
        # autocommit=True.
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = _run(saver, plan)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result


def _run(saver: Any, plan: Plan[Statement, T]) -> T:
    _refuse_bytes(saver.conn)
    cursor = saver.conn.cursor()
    cursor.row_factory = None

    def perform(step: Statement) -> Any:
        cursor.execute(step.sql, step.params)
        return cursor.fetchall() if step.fetch else cursor.rowcount

    try:
        return drive(plan, perform)
    finally:
        cursor.close()


async def aread(saver: Any, plan: Plan[Statement, T]) -> T:
    """Run a plan that only reads, on an ``AsyncSqliteSaver``."""
    async with _locked(saver):
        return await _arun(saver, plan)


async def awrite(saver: Any, plan: Plan[Statement, T]) -> T:
    """Run a plan in one immediate transaction of an ``AsyncSqliteSaver``; as :func:`write`."""
    async with _locked(saver) as connection:
        _refuse_open_transaction(connection.in_transaction)
        try:
            await connection.execute("BEGIN IMMEDIATE")
            result = await _arun(saver, plan)
            await connection.execute("COMMIT")
        except BaseException:
            # Not asked for first: a BEGIN that was cancelled may still be in the queue.
            with suppress(sqlite3.OperationalError):  # no transaction is active
                await connection.execute("ROLLBACK")
            raise
        return result


@asynccontextmanager
async def _locked(saver: Any) -> AsyncIterator[Any]:
    """Hold the saver's lock, with its connection open.

    A connection that nobody has awaited yet is opened as the saver would do it. Not by its
    setup(), which writes the tables.
    """
    with errors_mapped():
        async with saver.lock:
            try:
                _ = saver.conn.total_changes
            except ValueError:  # what aiosqlite raises while it has no connection
                try:
                    await saver.conn
                except RuntimeError as error:  # its thread has been and gone
                    raise StorageUnusableError(
                        "the SQLite connection cannot be used: it is closed; open a new one and "
                        "make a new saver and sweeper on it"
                    ) from error
            yield saver.conn


async def _arun(saver: Any, plan: Plan[Statement, T]) -> T:
    _refuse_bytes(saver.conn)
    async with saver.conn.cursor() as cursor:
        cursor.row_factory = None

        async def perform(step: Statement) -> Any:
            await cursor.execute(step.sql, step.params)
            return list(await cursor.fetchall()) if step.fetch else cursor.rowcount

        return await adrive(plan, perform)


def _refuse_bytes(connection: Any) -> None:
    if connection.text_factory is bytes:
        raise StorageUnusableError(
            "the SQLite connection gives bytes for text, to the saver too; give the saver a "
            "connection of its own (with text_factory=str, the default)"
        )


def _refuse_open_transaction(is_open: bool) -> None:
    if is_open:
        raise StorageUnusableError(
            "the SQLite connection has a transaction open that is not the sweeper's; commit it, "
            "or give the saver a connection of its own (in the default autocommit mode)"
        )


_LATER = "the next sweep tries again"
_ADVICE = {
    sqlite3.SQLITE_BUSY: _LATER,
    sqlite3.SQLITE_LOCKED: _LATER,
    sqlite3.SQLITE_PERM: "this process needs the right to write to the file and its folder",
    sqlite3.SQLITE_AUTH: "the connection's authorizer has to allow the sweeper what it does",
    sqlite3.SQLITE_READONLY: (
        "this process needs the right to write to the file and its folder, and a connection that "
        "is not opened read-only"
    ),
    sqlite3.SQLITE_IOERR: _LATER,
    sqlite3.SQLITE_CORRUPT: "put a backup in its place, or repair it with '.recover' of sqlite3",
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_CANTOPEN: "this process needs the right to read and write its folder and files",
    sqlite3.SQLITE_NOTADB: "give the saver the path of another file, or the key of this one",
}
"""Errors of the database as a whole, and what is to be done."""


@contextmanager
def errors_mapped() -> Iterator[None]:
    """Turn the driver's errors into ours, telling a bad thread from a bad database."""
    try:
        yield
    except RetentionError:
        raise
    except sqlite3.ProgrammingError as error:  # closed, or used from another thread
        remedy = (
            "for asweep() open it with check_same_thread=False"
            if "thread" in str(error)
            else "open a new one and make a new saver and sweeper on it"
        )
        raise StorageUnusableError(
            f"the SQLite connection cannot be used ({error}); {remedy}"
        ) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        # The low byte is the primary code, the rest says more.
        if code is not None and (advice := _ADVICE.get(code & 0xFF)):
            kind = StorageUnavailableError if advice == _LATER else StorageUnusableError
            raise kind(f"the SQLite database cannot be used now ({error}); {advice}") from error
        raise StorageError(f"SQLite refused a statement: {error}") from error
