"""Opening the storage that the command line names, by its row in the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.failures import CommandError, UsageError
from langgraph_ephemeral_checkpointer.common.lazy import remedy
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.strategies.opening import (
    Address,
    AddressError,
    Saver,
    Savers,
    TenantPlace,
)
from langgraph_ephemeral_checkpointer.strategies.registry import Storage, load, storage_named

DSN_VARIABLE = "LGEC_DSN"


@contextmanager
def open_saver(
    backend: str,
    dsn: Dsn | None,
    environ: Mapping[str, str],
    console: Console,
    *,
    variable: str = DSN_VARIABLE,
    place: TenantPlace | None = None,
    create: bool = False,
) -> Iterator[Saver]:
    """Open a saver for one command.

    Args:
        backend: The name of a storage in the registry.
        dsn: From the command line.
        environ: The environment; empty there counts as not set.
        console: Is told what it must not show.
        variable: Where in the environment the DSN is, if it is not on the line.
        place: The tables and the tenant, for a storage that has tenants.
        create: Make tables that are missing.

    Raises:
        UsageError: No DSN, or one of another backend.
        CommandError: What the storage needs is not installed.
        StorageError: The storage cannot be opened or holds no checkpoints.
    """
    storage = storage_named(backend)
    address = Address(
        known_dsn(storage, dsn, environ, console, variable), environ, place or TenantPlace(), create
    )
    opener = optional(storage, storage.opener)
    with ExitStack() as stack:
        try:
            saver = stack.enter_context(opener(address))
        except AddressError as error:
            raise UsageError(str(error)) from error
        yield saver


@contextmanager
def open_pool(
    storage: Storage,
    dsn: Dsn | None,
    environ: Mapping[str, str],
    console: Console,
    *,
    variable: str = DSN_VARIABLE,
) -> Iterator[Savers]:
    """Open what the savers of many sweeps share; otherwise as :func:`open_saver`."""
    address = Address(
        known_dsn(storage, dsn, environ, console, variable), environ, show_log=console.logging
    )
    with optional(storage, storage.pool)(address) as savers:
        yield savers


def known_dsn(
    storage: Storage, dsn: Dsn | None, environ: Mapping[str, str], console: Console, variable: str
) -> Dsn:
    """Find out where the storage is, and have the console keep it to itself.

    Raises:
        UsageError: Neither the line nor the environment tells.
    """
    if not storage.needs_dsn:
        if dsn is not None:
            console.message(
                f"warning: --dsn has no meaning for --backend {storage.name}; nothing is opened"
            )
        return Dsn("")
    dsn = dsn or Dsn(environ.get(variable, ""))
    if not dsn:
        raise UsageError(
            f"--dsn is required for --backend {storage.name}, or the environment variable "
            f"{variable}"
        )
    console.hide(dsn.secrets())
    return dsn


def optional(storage: Storage, path: str | None) -> Any:
    """Import something of a storage that needs packages which need not be there.

    Args:
        storage: Its row in the registry.
        path: ``module:name``.

    Raises:
        CommandError: They are not; the message names the extra of this package to install.
    """
    try:
        return load(path or "")
    except ImportError as error:
        if storage.extra is None:
            raise
        raise CommandError(remedy("this command", storage.extra, error)) from error
