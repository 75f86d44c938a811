"""psycopg's errors as ours, and what both colours share about connections."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from langgraph_ephemeral_checkpointer.common.conninfo import AMBIGUOUS, UNREADABLE, is_ambiguous
from langgraph_ephemeral_checkpointer.drivers.postgres_errors import meaning
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.errors import (
    RetryableError,
    RowSecurityError,
    StorageError,
    StorageUnavailableError,
    StorageUnusableError,
)
from langgraph_ephemeral_checkpointer.tenancy.proof import Role

L = TypeVar("L")

logger = logging.getLogger("langgraph_ephemeral_checkpointer.tenancy")

HAS_PIPELINE = psycopg.Pipeline.is_supported()
# The caller's settings, for the time that a call is a part of their transaction.
_SET = ("langgraph.tenant", "search_path", "plan_cache_mode")


def _copies(pairs: Iterable[tuple[str, str]]) -> Statement:
    copied = (
        f"pg_catalog.set_config('{name}', "
        f"coalesce(pg_catalog.current_setting('{of}', true), ''), true)"
        for name, of in pairs
    )
    return Statement(f"SELECT {', '.join(copied)}", fetch=False)


REMEMBER = _copies((f"langgraph.callers_{name.rpartition('.')[2]}", name) for name in _SET)
PUT_BACK = _copies((name, f"langgraph.callers_{name.rpartition('.')[2]}") for name in _SET)
"""Around what joins a transaction of the caller's: that goes on as if nobody had set anything."""

_OPEN = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

DOUBTFUL: weakref.WeakSet[Any] = weakref.WeakSet()
"""Connections on which a pipeline outside a transaction failed, or was interrupted.

Where a statement came to be prepared in it, psycopg may take it for prepared from then on,
although the server never got to it. It starts afresh after a transaction is rolled back.
"""


_locks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def lock_of(conn: Any, make: Callable[[], L]) -> L:
    """The lock under which savers use a connection: one for all that have the same.

    What one of them does in a transaction would be a part of another's otherwise.

    Args:
        conn: The connection, or a pool.
        make: Makes the lock.
    """
    lock: L = _locks.setdefault(conn, make())
    return lock


class storage_errors:  # noqa: N801 - a context manager; as a class, since each save enters it
    """Give psycopg's errors this package's names.

    Args:
        doing: What was tried, for the message.

    Raises:
        StorageUnavailableError: The connection or the server is gone, or a wait was too long.
        StorageUnusableError: A table or space is missing.
        StorageError: Anything else that Postgres or psycopg refused.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnicodeEncodeError):
            raise StorageError(f"{self._doing} failed: {_said(error)}") from error
        if not isinstance(error, psycopg.Error):
            return
        kind = meaning(error)
        if issubclass(kind, RetryableError):  # whatever was in the way: the same call again
            kind = StorageUnavailableError
        dropped = " Was it dropped?" if isinstance(error, psycopg.errors.UndefinedTable) else ""
        raise kind(f"{self._doing} failed: {_said(error)}{dropped}") from error


class SetUp:
    """Whether the tables have been seen to be right; shared by the clones of a saver."""

    done = False


@contextmanager
def connecting(conn_string: str) -> Iterator[None]:
    """Connect in the block, and let no error show the password.

    Raises:
        StorageUnavailableError: The server cannot be reached.
        StorageError: The connection string cannot be read, or something else went wrong.
    """
    try:
        conninfo_to_dict(conn_string)
    except psycopg.Error:  # which quotes the string, and so does the error it comes with
        raise StorageError(UNREADABLE) from None
    try:
        with storage_errors("connecting"):
            yield
    except StorageError:
        if is_ambiguous(conn_string):
            raise StorageUnavailableError(AMBIGUOUS) from None
        raise


def _said(error: Exception) -> str:
    # The primary message alone: the detail of a key conflict would quote stored values.
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return f"{primary or error} ({type(error).__name__})"


def joins(conn: object) -> bool:
    """Whether what is done on a connection, or on one of a pool, joins the caller's transaction.

    Asked before a call, while another may be under way on the same connection: that one is
    no transaction.
    """
    return isinstance(conn, psycopg.BaseConnection) and conn.pgconn.transaction_status in _OPEN


def in_transaction(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], *, refused: bool = False
) -> bool:
    """Whether the caller has opened a transaction, which then stays theirs to end.

    Raises:
        StorageUnusableError: There is one, and it is ``refused``.
    """
    opened = conn.info.transaction_status != pq.TransactionStatus.IDLE
    if opened and refused:
        raise StorageUnusableError(
            "the connection has a transaction open that is not the sweeper's, so a delete would "
            "not be committed; end it first, or give the saver a pool"
        )
    return opened


def isolation(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> Statement | None:
    """What a transaction has to begin with on a connection that was set to another level."""
    level = conn.isolation_level
    if level in (None, psycopg.IsolationLevel.READ_COMMITTED):
        return None
    return Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", fetch=False)


def check_isolation(role: Role) -> None:
    """Refuse a database or a role whose transactions see one snapshot from their beginning.

    What a save finds once it has the thread's lock has to be what is there then: it would
    take a thread that was deleted while it waited for one that is there, and store half of it.

    Raises:
        StorageError: It is one.
    """
    if role.isolation not in {"read committed", "read uncommitted"}:
        raise StorageError(
            f"default_transaction_isolation is {role.isolation!r} here, and the locks of threads "
            "need 'read committed': set it so for this role (ALTER ROLE ... SET), or connect with "
            r"options='-c default_transaction_isolation=read\ committed'"
        )


def check_role(role: Role, *, required: bool) -> None:
    """Warn of, or refuse, a role for which Row-Level Security is void.

    Raises:
        RowSecurityError: It is void and ``required``.
    """
    if required and role.maintains:
        raise RowSecurityError(
            f"role {role.name!r} is one of the maintenance policy's, which shows it every tenant: "
            "connect as a role that the policy is not for, or drop the policy"
        )
    if not role.bypasses_rls:
        return
    message = (
        f"role {role.name!r} is a superuser or has BYPASSRLS: Row-Level Security does not hold "
        "for it, and only the filters of this saver keep tenants apart. "
        "Connect as a role made with NOSUPERUSER NOBYPASSRLS"
    )
    if required:
        raise RowSecurityError(message)
    logger.warning(message)
