"""What is to be done about an error is told by its class, and by its message."""

from __future__ import annotations

import psycopg
import pytest

from langgraph_ephemeral_checkpointer import errors
from langgraph_ephemeral_checkpointer.cli.failures import told
from langgraph_ephemeral_checkpointer.drivers.postgres_errors import meaning
from langgraph_ephemeral_checkpointer.errors import (
    ClockBehindError,
    RetentionError,
    RetryableError,
    RowSecurityError,
    StorageError,
    StorageUnavailableError,
    StorageUnusableError,
    ThreadBusyError,
    ThreadMovedError,
)

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, RetentionError)
]


@pytest.mark.parametrize("kind", ALL)
def test_an_error_says_to_try_again_if_and_only_if_that_may_help(kind: type[RetentionError]):
    assert ("try again" in str(kind())) == issubclass(kind, RetryableError)


def test_what_is_retryable_is_away_or_busy_or_has_moved_or_waits_for_a_clock():
    retryable = {kind for kind in ALL if issubclass(kind, RetryableError)} - {RetryableError}
    assert retryable == {
        ClockBehindError,
        StorageUnavailableError,
        ThreadBusyError,
        ThreadMovedError,
    }


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.SerializationFailure, ThreadMovedError),
        (psycopg.errors.DeadlockDetected, ThreadBusyError),
        (psycopg.errors.LockNotAvailable, ThreadBusyError),
        (psycopg.errors.QueryCanceled, ThreadBusyError),
        (psycopg.errors.AdminShutdown, StorageUnavailableError),
        (psycopg.errors.TooManyConnections, StorageUnavailableError),
        (psycopg.errors.ConnectionFailure, StorageUnavailableError),
        (psycopg.errors.ReadOnlySqlTransaction, StorageUnavailableError),
        (psycopg.OperationalError, StorageUnavailableError),
        (psycopg.InterfaceError, StorageUnavailableError),
        (psycopg.errors.UndefinedTable, StorageUnusableError),
        (psycopg.errors.DiskFull, StorageUnusableError),
        (psycopg.errors.InsufficientPrivilege, StorageUnusableError),
        (psycopg.errors.ProgramLimitExceeded, StorageError),
        (psycopg.errors.UniqueViolation, StorageError),
        (psycopg.ProgrammingError, StorageError),
    ],
)
def test_an_error_of_postgres_means_what_is_to_be_done(
    error: type[psycopg.Error], kind: type[StorageError]
):
    assert meaning(error("no")) is kind


def test_the_command_line_says_whether_to_try_again_or_to_change_something():
    assert told(StorageUnavailableError("it is away")) == "it is away; try again"
    assert told(StorageUnavailableError("the next sweep tries again")).count("again") == 1
    assert told(RowSecurityError("no")) == "no"
    assert told(StorageUnavailableError("it is away"), repeats=True) == "it is away"
    assert (
        told(RowSecurityError("no"), repeats=True) == "no; every sweep fails until that is changed"
    )
