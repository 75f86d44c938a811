"""Every error this package raises on purpose.

What a retry may mend is a RetryableError. All others come again until something is changed: the
call, the set-up or the configuration; each message says what.
"""

from __future__ import annotations


class RetentionError(Exception):
    """Something about retention went wrong; nothing was deleted that should not be."""

    def __init__(self, message: str | None = None) -> None:
        """Use the first line of the class docstring where no message is given.

        Where there is none (a class of yours, ``python -OO``), the class names itself.
        """
        lines = (type(self).__doc__ or "").strip().splitlines()
        super().__init__(message or (lines[0] if lines else type(self).__name__))


class RetryableError(RetentionError):
    """It may pass by itself: try again, with nothing changed."""


class StorageError(RetentionError):
    """The storage refused a statement; see the cause for what the driver said, and change that."""


class StorageUnusableError(StorageError):
    """The storage as a whole cannot be used until something about it or its set-up is changed."""


class StorageUnavailableError(StorageUnusableError, RetryableError):
    """The storage as a whole cannot be used now (away, full or locked); try again later."""


class NotSetUpError(StorageUnusableError):
    """grace_seconds needs the trash, which is not set up here; call sweeper.setup() once."""


class ThreadBusyError(StorageError, RetryableError):
    """A lock on the thread was not free in time; try again."""


class ThreadMovedError(StorageError, RetryableError):
    """The thread changed while it was worked on, and that was rolled back; try again."""


class HiddenRowsError(StorageUnusableError):
    """Rows of the tables can be hidden from this role, so nothing was read, deleted or counted."""


class UnsupportedCheckpointerError(RetentionError):
    """This checkpointer cannot be swept; subclass Strategy for it and pass strategy=."""


class AsyncRequiredError(RetentionError):
    """An asynchronous thing was used from synchronous code; use asweep() instead of sweep()."""


class NotInTrashError(RetentionError):
    """The thread is not in the trash; trash() lists what is there."""


class ThreadLivesAgainError(RetentionError):
    """The thread id is in use again, so nothing was restored; the trash keeps the old thread."""


class TrashNotEmptyError(RetentionError):
    """The trash still holds threads; restore or empty them first, or force the removal."""


class TenantError(RetentionError):
    """The tenant of a call is not clear, so nothing was read or written; give the call one."""


class TenantRequiredError(TenantError):
    """No tenant: open saver.tenant_scope(...), or give the saver tenant= or tenant_of=."""


class TenantResolutionError(TenantError):
    """tenant_of did not give a tenant for the thread; it must return a non-empty string."""


class CrossTenantError(TenantError):
    """The two threads belong to different tenants; copy a thread within one tenant only."""


class ScopeLostError(TenantError):
    """A scope was left in another context than it was opened in; open it around the calls."""


class SchemaMismatchError(RetentionError):
    """The tables under that name are not this saver's; choose another table= or schema=."""


class SchemaMissingError(RetentionError):
    """The saver's tables do not exist; run the statements of ddl(), or pass create_schema=True."""


class RowSecurityError(RetentionError):
    """Row-Level Security does not hold for this role; connect as one without BYPASSRLS."""


class ThreadDeletedError(RetentionError):
    """The thread was deleted under this run, so nothing was saved; run it from the beginning."""


class ClockBehindError(RetryableError):
    """What this host saves would sort before what it follows: set its clock right, try again."""


class ThreadExistsError(RetentionError):
    """The target thread has checkpoints already; copy to a new thread id, or delete it first."""


class HistoryNeededError(RetentionError):
    """Later checkpoints are rebuilt from what was to be deleted; the thread was left whole."""
