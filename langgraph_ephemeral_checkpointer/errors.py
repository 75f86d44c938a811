"""Every error this package raises on purpose."""

from __future__ import annotations


class RetentionError(Exception):
    """Something about retention went wrong; nothing was deleted that should not be."""

    def __init__(self, message: str | None = None) -> None:
        """Use the first line of the class docstring where no message is given.

        Where there is none (a class of yours, ``python -OO``), the class names itself.
        """
        lines = (type(self).__doc__ or "").strip().splitlines()
        super().__init__(message or (lines[0] if lines else type(self).__name__))


class StorageError(RetentionError):
    """The checkpoint storage refused a statement; see the cause for what the driver said."""


class StorageUnavailableError(StorageError):
    """The checkpoint storage as a whole cannot be used now (away, or locked); try again later."""


class HiddenRowsError(StorageUnavailableError):
    """Rows of the tables can be hidden from this role, so nothing was read, deleted or counted."""


class UnsupportedCheckpointerError(RetentionError):
    """This checkpointer cannot be swept; subclass Strategy for it and pass strategy=."""


class ColourError(RetentionError):
    """An asynchronous thing was used from synchronous code; use asweep() instead of sweep()."""


class ThreadMovedError(StorageError):
    """A thread changed while it was being worked on; what was done to it was rolled back."""


class NotSetUpError(StorageUnavailableError):
    """grace_seconds needs the trash, which is not set up here; call sweeper.setup() once."""


class NotInTrashError(RetentionError):
    """The thread is not in the trash; trash() lists what is there."""


class ThreadLivesAgainError(RetentionError):
    """The thread id is in use again, so nothing was restored; the trash keeps the old thread."""


class TrashNotEmptyError(RetentionError):
    """The trash still holds threads; restore or empty them first, or force the removal."""


class TenantError(RetentionError):
    """The tenant of a call is not clear; nothing was read or written."""


class TenantRequiredError(TenantError):
    """No tenant: open saver.tenant_scope(...), or give the saver tenant= or tenant_of=."""


class TenantResolutionError(TenantError):
    """tenant_of did not give a tenant for the thread; it must return a non-empty string."""


class CrossTenantError(TenantError):
    """A thread is copied within one tenant only; the two threads belong to different ones."""


class ScopeLostError(TenantError):
    """A tenant scope was left in another context than it was opened in; what ran lacked it."""


class SchemaMismatchError(RetentionError):
    """The tables under that name are not this saver's; choose another table= or schema=."""


class SchemaMissingError(RetentionError):
    """The saver's tables do not exist; run the statements of ddl(), or pass create_schema=True."""


class RowSecurityError(RetentionError):
    """Row-Level Security does not hold for this role; connect as one without BYPASSRLS."""


class ThreadDeletedError(RetentionError):
    """The thread was deleted under a run and cannot be stored whole; nothing was saved."""


class ThreadExistsError(RetentionError):
    """The target thread has checkpoints already; copy to a new thread id, or delete it first."""


class HistoryNeededError(RetentionError):
    """Later checkpoints are rebuilt from what was to be deleted; the thread was left whole."""
