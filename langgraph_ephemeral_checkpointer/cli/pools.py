"""The savers of ``run``: one for each sweep, on what outlives a lost connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

from langgraph_ephemeral_checkpointer.cli.backends import (
    CONNECT_TIMEOUT_SECONDS,
    Saver,
    connection_options,
    conninfo_of,
    known_dsn,
    optional,
)
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.settings import Settings

Savers: TypeAlias = Callable[[], AbstractContextManager[Saver]]
"""Opens a saver for one sweep."""

_POOL_SIZE = 2  # the sweep's connection, and one more where a callback reads


@contextmanager
def savers_of(settings: Settings, environ: Mapping[str, str], console: Console) -> Iterator[Savers]:
    """Prepare the storage that the settings name; what it lacks shows at the first sweep.

    An SQLite file is opened for each sweep and closed after it, so that a file that was
    replaced meanwhile is not swept under its old name; so is a tenant saver. Postgres has a
    pool of its own.

    Raises:
        UsageError: No DSN.
        CommandError: A DSN that cannot be read, or a driver that is not installed.
    """
    if settings.backend != "postgres":
        if settings.backend != "memory":
            known_dsn(settings.backend, settings.dsn, environ, console, settings.dsn_variable)
        if settings.backend == "sqlite":
            optional("sqlite", "langgraph.checkpoint.sqlite", "SqliteSaver")
        yield lambda: settings.open(environ, console)
        return
    dsn = known_dsn(settings.backend, settings.dsn, environ, console, settings.dsn_variable)
    saver_class = optional("postgres", "langgraph.checkpoint.postgres", "PostgresSaver")
    from psycopg.conninfo import conninfo_to_dict
    from psycopg_pool import ConnectionPool

    conninfo = conninfo_of(dsn, environ)
    patience = float(conninfo_to_dict(conninfo).get("connect_timeout") or CONNECT_TIMEOUT_SECONDS)

    # Empty while nothing is swept; a connection attempt does not outlive the sweep that
    # wanted it, so that the next one tries afresh.
    pool: ConnectionPool[Any] = ConnectionPool(
        conninfo,
        kwargs=connection_options(),
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
    with pool, nullcontext() if dsn.is_ambiguous() else console.logging("psycopg.pool"):
        yield lambda: nullcontext(saver_class(pool))
