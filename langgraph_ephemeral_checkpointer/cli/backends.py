"""Opening the storage that the command line names, and creating nothing.

Every failure is one line: no such file, no checkpoint database, a server that is away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.failures import CommandError, UsageError
from langgraph_ephemeral_checkpointer.cli.options import TenantPlace
from langgraph_ephemeral_checkpointer.cli.secrets import Dsn
from langgraph_ephemeral_checkpointer.common.conninfo import AMBIGUOUS, UNREADABLE
from langgraph_ephemeral_checkpointer.common.lazy import remedy
from langgraph_ephemeral_checkpointer.errors import SchemaMissingError

Saver: TypeAlias = BaseCheckpointSaver[Any]

_PACKAGE = "langgraph_ephemeral_checkpointer"
DSN_VARIABLE = "LGEC_DSN"
CONNECT_TIMEOUT_SECONDS = 10
"""For each host of a Postgres connection string that sets no ``connect_timeout``."""
BUSY_TIMEOUT_SECONDS = 5.0
"""How long another writer of an SQLite file is waited for."""

# Columns that the statements of the strategies name: other tables of these names are no
# checkpoints of ours to delete.
_LAYOUT = {
    "checkpoints": "thread_id, checkpoint_ns, checkpoint_id, checkpoint",
    "{writes}": "thread_id, checkpoint_ns, checkpoint_id, task_id, channel",
}


@contextmanager
def open_saver(
    backend: str,
    dsn: Dsn | None,
    environ: Mapping[str, str],
    console: Console,
    *,
    variable: str = DSN_VARIABLE,
    place: TenantPlace | None = None,
) -> Iterator[Saver]:
    """Open a saver for one command.

    Args:
        backend: One of ``options.BACKENDS``.
        dsn: From the command line.
        environ: The environment; empty there counts as not set.
        console: Is told what it must not show.
        variable: Where in the environment the DSN is, if it is not on the line.
        place: The tables and the tenant, for a tenant saver.

    Raises:
        UsageError: No DSN, or one of another backend.
        CommandError: The storage cannot be opened or holds no checkpoints.
    """
    if backend == "memory":
        if dsn is not None:
            console.message("warning: --dsn has no meaning for --backend memory; nothing is opened")
        from langgraph.checkpoint.memory import InMemorySaver

        yield InMemorySaver()
        return
    dsn = known_dsn(backend, dsn, environ, console, variable)
    opened = _OPENERS[backend](dsn, environ) if place is None else open_tenants(dsn, environ, place)
    with opened as saver:
        yield saver


def known_dsn(
    backend: str, dsn: Dsn | None, environ: Mapping[str, str], console: Console, variable: str
) -> Dsn:
    """Find out where the storage is, and have the console keep it to itself.

    Raises:
        UsageError: Neither the line nor the environment tells.
    """
    dsn = dsn or Dsn(environ.get(variable, ""))
    if not dsn:
        raise UsageError(
            f"--dsn is required for --backend {backend}, or the environment variable {variable}"
        )
    console.hide(dsn.secrets())
    return dsn


@contextmanager
def _open_sqlite(dsn: Dsn, _environ: Mapping[str, str]) -> Iterator[Saver]:
    if dsn.is_url():
        raise UsageError(
            "--backend sqlite takes the path of a file, not a URL; for a server use another backend"
        )
    saver_class = optional("sqlite", "langgraph.checkpoint.sqlite", "SqliteSaver")
    path = Path(dsn.reveal())
    shown = dsn.shown()
    try:
        if not path.exists():
            raise CommandError(f"{shown}: no such file; nothing was created")
        if not path.is_file():
            raise CommandError(f"{shown} is no file")
        # mode=rw: a file that vanishes now is not created either.
        uri = f"{path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(
            uri, uri=True, check_same_thread=False, timeout=BUSY_TIMEOUT_SECONDS
        )
    except (sqlite3.Error, OSError, ValueError) as error:
        raise CommandError(f"{shown} cannot be opened: {error}") from error
    with closing(connection):
        try:
            for sql in _probes(writes="writes"):
                connection.execute(sql).close()
        except sqlite3.DatabaseError as error:
            raise CommandError(_sqlite_refusal(shown, error)) from error
        yield saver_class(connection)


def _sqlite_refusal(shown: str, error: sqlite3.DatabaseError) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    if code == sqlite3.SQLITE_NOTADB:
        return f"{shown} is no SQLite database; nothing was changed"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"{shown} is busy: another process has it locked ({error}); try again"
    if code == sqlite3.SQLITE_ERROR:  # no such table, no such column
        return f"{shown} is no checkpoint database of SqliteSaver ({error}); nothing was changed"
    return f"{shown} cannot be read: {error}"


def conninfo_of(dsn: Dsn, environ: Mapping[str, str]) -> str:
    """Give the connection string of Postgres, with a time limit and a name for the server's lists.

    Raises:
        CommandError: It cannot be read.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        settings = conninfo_to_dict(dsn.reveal())
    except psycopg.Error:
        # The driver's message quotes the string, and so does the error it comes with.
        raise CommandError(UNREADABLE) from None
    defaults: dict[str, Any] = {"fallback_application_name": "langgraph-ephemeral-checkpointer"}
    if "PGCONNECT_TIMEOUT" not in environ:
        defaults["connect_timeout"] = CONNECT_TIMEOUT_SECONDS
    return make_conninfo(dsn.reveal(), **{**defaults, **settings})


def connection_options() -> dict[str, Any]:
    """Give what every connection to Postgres is opened with.

    Nothing is prepared: behind a pooler in transaction mode each transaction has another
    session, which does not know the statement or knows another of its name.
    """
    from psycopg.rows import dict_row

    return {
        "autocommit": True,
        "prepare_threshold": None,
        "client_encoding": "UTF8",
        "row_factory": dict_row,
    }


@contextmanager
def open_postgres(dsn: Dsn, environ: Mapping[str, str]) -> Iterator[Saver]:
    """Open LangGraph's own saver.

    Raises:
        CommandError: The server cannot be used, or has no tables of that saver.
        HiddenRowsError: The tables can hide rows from the role.
    """
    saver_class = optional("postgres", "langgraph.checkpoint.postgres", "PostgresSaver")
    import psycopg
    from psycopg.rows import tuple_row

    from langgraph_ephemeral_checkpointer.strategies.postgres.visibility import LOOK, refuse_hidden

    with _connected(dsn, environ) as connection:
        try:
            for sql in _probes(writes="checkpoint_writes"):
                connection.execute(sql.encode()).close()
            with connection.cursor(row_factory=tuple_row) as cursor:
                refuse_hidden(cursor.execute(LOOK.sql).fetchall())
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise CommandError(
                f"the database {connection.info.dbname!r} has no tables of PostgresSaver where the "
                f"search path looks ({error.diag.message_primary}); nothing was created"
            ) from error
        except psycopg.Error as error:
            raise CommandError(
                f"the checkpoints in {connection.info.dbname!r} cannot be read: {error}"
            ) from error
        yield saver_class(connection)


@contextmanager
def open_tenants(
    dsn: Dsn, environ: Mapping[str, str], place: TenantPlace, *, create: bool = False
) -> Iterator[Any]:
    """Open a tenant saver.

    Args:
        dsn: How to reach the server.
        environ: The environment.
        place: The tables, and the tenant where no scope is open.
        create: Make tables that are missing.

    Raises:
        UsageError: A name that cannot be one.
        CommandError: The server cannot be used, or has no tables of that saver.
    """
    saver_class = optional("postgres", f"{_PACKAGE}.tenancy", "TenantPostgresSaver")
    with _connected(dsn, environ) as connection:
        try:
            saver = saver_class(
                connection,
                table=place.table,
                schema=place.schema,
                tenant=place.tenant,
                create_schema=create,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
        try:
            saver.setup()
        except SchemaMissingError as error:
            raise CommandError(
                f"the database {connection.info.dbname!r} has not all tables of a tenant saver "
                f"named {place.table!r} in the schema {place.schema!r}; nothing was created ('ddl' "
                "writes the statements that do)"
            ) from error
        yield saver


@contextmanager
def _connected(dsn: Dsn, environ: Mapping[str, str]) -> Iterator[Any]:
    import psycopg

    try:
        connection: psycopg.Connection[Any] = psycopg.connect(
            conninfo_of(dsn, environ), **connection_options()
        )
    except (psycopg.Error, UnicodeError, ValueError) as error:
        if dsn.is_ambiguous():
            raise CommandError(AMBIGUOUS) from None
        raise CommandError(f"cannot connect to Postgres: {error}") from error
    with closing(connection):
        yield connection


_OPENERS: dict[str, Callable[[Dsn, Mapping[str, str]], AbstractContextManager[Saver]]] = {
    "sqlite": _open_sqlite,
    "postgres": open_postgres,
}


def _probes(*, writes: str) -> Iterator[str]:
    for table, columns in _LAYOUT.items():
        yield f"SELECT {columns} FROM {table.format(writes=writes)} LIMIT 0"


def optional(extra: str, module: str, name: str) -> Any:
    """Import something of a package that need not be there.

    Raises:
        CommandError: It is not; the message names the extra of this package to install.
    """
    from importlib import import_module

    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise CommandError(remedy("this command", extra, error)) from error
