"""Opening LangGraph's tables on the Postgres server that a connection string names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row, tuple_row
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.common.conninfo import AMBIGUOUS, UNREADABLE
from langgraph_ephemeral_checkpointer.errors import StorageError
from langgraph_ephemeral_checkpointer.strategies.opening import Address, Saver, Savers
from langgraph_ephemeral_checkpointer.strategies.postgres.visibility import LOOK, refuse_hidden

CONNECT_TIMEOUT_SECONDS = 10
"""For each host of a connection string that sets no ``connect_timeout``."""

_POOL_SIZE = 2  # the sweep's connection, and one more where a callback reads

# Nothing is prepared: behind a pooler in transaction mode each transaction has another
# session, which does not know the statement or knows another of its name.
_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "client_encoding": "UTF8",
    "row_factory": dict_row,
}

# Columns that the statements of the strategy name: other tables of these names are no
# checkpoints of ours to delete.
_PROBES = (
    b"SELECT thread_id, checkpoint_ns, checkpoint_id, checkpoint FROM checkpoints LIMIT 0",
    (
        b"SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, channel "
        b"FROM checkpoint_writes LIMIT 0"
    ),
)


@contextmanager
def open_postgres(address: Address) -> Iterator[Saver]:
    """Open a ``PostgresSaver`` on a connection of its own.

    Raises:
        StorageError: The server cannot be used, or has no tables of that saver.
        HiddenRowsError: The tables can hide rows from the role.
    """
    with connected(address) as connection:
        try:
            for sql in _PROBES:
                connection.execute(sql).close()
            with connection.cursor(row_factory=tuple_row) as cursor:
                refuse_hidden(cursor.execute(LOOK.sql).fetchall())
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise StorageError(
                f"the database {connection.info.dbname!r} has no tables of PostgresSaver where the "
                f"search path looks ({error.diag.message_primary}); nothing was created"
            ) from error
        except psycopg.Error as error:
            raise StorageError(
                f"the checkpoints in {connection.info.dbname!r} cannot be read: {error}"
            ) from error
        yield PostgresSaver(connection)


@contextmanager
def pool_postgres(address: Address) -> Iterator[Savers]:
    """Open a pool for the savers of many sweeps.

    Raises:
        StorageError: The connection string cannot be read.
    """
    conninfo = _conninfo(address)
    patience = float(conninfo_to_dict(conninfo).get("connect_timeout") or CONNECT_TIMEOUT_SECONDS)
    # Empty while nothing is swept; a connection attempt does not outlive the sweep that
    # wanted it, so that the next one tries afresh.
    pool: ConnectionPool[Any] = ConnectionPool(
        conninfo,
        kwargs=_OPTIONS,
        min_size=0,
        max_size=_POOL_SIZE,
        timeout=patience,
        reconnect_timeout=patience,
        max_idle=60,
        check=ConnectionPool.check_connection,
        name="langgraph-ephemeral-checkpointer",
        open=False,
    )
    # What the pool logs is why it cannot connect, which its own exception does not tell.
    log = nullcontext() if address.dsn.is_ambiguous() else address.show_log("psycopg.pool")
    with pool, log:
        yield lambda: nullcontext(PostgresSaver(pool))


@contextmanager
def connected(address: Address) -> Iterator[psycopg.Connection[Any]]:
    """Connect to the server of an address.

    Raises:
        StorageError: It cannot be reached; the message shows no part of a password.
    """
    try:
        connection: psycopg.Connection[Any] = psycopg.connect(_conninfo(address), **_OPTIONS)
    except (psycopg.Error, UnicodeError, ValueError) as error:
        if address.dsn.is_ambiguous():
            raise StorageError(AMBIGUOUS) from None
        raise StorageError(f"cannot connect to Postgres: {error}") from error
    with closing(connection):
        yield connection


def _conninfo(address: Address) -> str:
    """Give the connection string, with a time limit and a name for the server's lists."""
    text = address.dsn.reveal()
    try:
        settings = conninfo_to_dict(text)
    except psycopg.Error:
        # The driver's message quotes the string, and so does the error it comes with.
        raise StorageError(UNREADABLE) from None
    defaults: dict[str, Any] = {"fallback_application_name": "langgraph-ephemeral-checkpointer"}
    if "PGCONNECT_TIMEOUT" not in address.environ:
        defaults["connect_timeout"] = CONNECT_TIMEOUT_SECONDS
    return make_conninfo(text, **{**defaults, **settings})
