"""The savers of ``run``: one for each sweep, on what outlives a lost connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from langgraph_ephemeral_checkpointer.cli.backends import known_dsn, open_pool, optional
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.settings import Settings
from langgraph_ephemeral_checkpointer.strategies.opening import Savers
from langgraph_ephemeral_checkpointer.strategies.registry import storage_named


@contextmanager
def savers_of(settings: Settings, environ: Mapping[str, str], console: Console) -> Iterator[Savers]:
    """Prepare the storage that the settings name; what it lacks shows at the first sweep.

    A storage with a pool keeps it over all sweeps. Any other is opened for each sweep and closed
    after it, so that a file that was replaced meanwhile is not swept under its old name.

    Raises:
        UsageError: No DSN.
        CommandError: What the storage needs is not installed.
        StorageError: A DSN that cannot be read.
    """
    storage = storage_named(settings.backend)
    variable = settings.dsn_variable
    if storage.pool is not None:
        with open_pool(storage, settings.dsn, environ, console, variable=variable) as savers:
            yield savers
        return
    if storage.needs_dsn:
        known_dsn(storage, settings.dsn, environ, console, variable)
    optional(storage, storage.opener)
    yield lambda: settings.open(environ, console)
