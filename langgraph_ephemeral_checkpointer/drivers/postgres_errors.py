"""What an error of Postgres asks for: one table, for everything that runs statements."""

from __future__ import annotations

import psycopg

from langgraph_ephemeral_checkpointer.errors import (
    StorageError,
    StorageUnavailableError,
    StorageUnusableError,
    ThreadBusyError,
    ThreadMovedError,
)

# By how the SQLSTATE begins; the first that fits counts
# (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_MEANINGS: tuple[tuple[str, type[StorageError]], ...] = (
    ("40001", ThreadMovedError),  # a row has changed since the snapshot
    ("40P01", ThreadBusyError),  # a deadlock
    ("55P03", ThreadBusyError),  # a lock that was not free in time
    ("57014", ThreadBusyError),  # a statement that took too long, or was cancelled
    ("42P01", StorageUnusableError),  # no such table
    ("42501", StorageUnusableError),  # a right is missing, as it is for every thread
    ("53100", StorageUnusableError),  # a full disk
    ("08", StorageUnavailableError),  # unreachable
    ("53", StorageUnavailableError),  # out of memory or connections
    ("57P", StorageUnavailableError),  # going down, or coming up
    ("25006", StorageUnavailableError),  # a replica that only reads, as in a failover
)


def meaning(error: psycopg.Error) -> type[StorageError]:
    """Return the class of ours that says what to do about an error of the driver's."""
    state = error.sqlstate
    if error.diag.source_function == "exec_stmt_raise":  # a trigger's own, about this row
        return StorageError
    if state is None:  # of a lost connection, or of a pool that timed out
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return StorageUnavailableError if lost else StorageError
    return next((kind for start, kind in _MEANINGS if state.startswith(start)), StorageError)
