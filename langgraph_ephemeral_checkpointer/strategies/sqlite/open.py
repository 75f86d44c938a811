"""Opening the SQLite file that a path names, and creating nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.errors import StorageError
from langgraph_ephemeral_checkpointer.strategies.opening import Address, AddressError, Saver

BUSY_TIMEOUT_SECONDS = 5.0
"""How long another writer of the file is waited for."""

# Columns that the statements of the strategy name: other tables of these names are no
# checkpoints of ours to delete.
_PROBES = (
    "SELECT thread_id, checkpoint_ns, checkpoint_id, checkpoint FROM checkpoints LIMIT 0",
    "SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, channel FROM writes LIMIT 0",
)


@contextmanager
def open_sqlite(address: Address) -> Iterator[Saver]:
    """Open a ``SqliteSaver``.

    Raises:
        AddressError: A URL in place of a path.
        StorageError: There is no such file, or it holds no checkpoints.
    """
    if address.dsn.is_url():
        raise AddressError(
            "--backend sqlite takes the path of a file, not a URL; for a server use another backend"
        )
    path = Path(address.dsn.reveal())
    shown = address.dsn.shown()
    try:
        if not path.exists():
            raise StorageError(f"{shown}: no such file; nothing was created")
        if not path.is_file():
            raise StorageError(f"{shown} is no file")
        # mode=rw: a file that vanishes now is not created either.
        uri = f"{path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(
            uri, uri=True, check_same_thread=False, timeout=BUSY_TIMEOUT_SECONDS
        )
    except (sqlite3.Error, OSError, ValueError) as error:
        raise StorageError(f"{shown} cannot be opened: {error}") from error
    with closing(connection):
        try:
            for sql in _PROBES:
                connection.execute(sql).close()
        except sqlite3.DatabaseError as error:
            raise StorageError(_refusal(shown, error)) from error
        yield SqliteSaver(connection)


def _refusal(shown: str, error: sqlite3.DatabaseError) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    if code == sqlite3.SQLITE_NOTADB:
        return f"{shown} is no SQLite database; nothing was changed"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"{shown} is busy: another process has it locked ({error}); try again"
    if code == sqlite3.SQLITE_ERROR:  # no such table, no such column
        return f"{shown} is no checkpoint database of SqliteSaver ({error}); nothing was changed"
    return f"{shown} cannot be read: {error}"
