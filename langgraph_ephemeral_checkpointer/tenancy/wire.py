"""The hot statements on the wire: one pipeline, straight from parameters to messages.

A save is a handful of statements whose text, types and results are known. psycopg's
cursors find all that out again at every execution, write to the socket once for each
statement, and take longer than the server does. Here a batch is prepared by name once for
a connection, packed in binary, written at once and read to its end. Everything else goes
through cursors; :func:`fits` tells when this may be used.
"""

from __future__ import annotations

import hashlib
import re
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeGuard

import psycopg
from psycopg import errors, pq
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.tenancy.arrays import Blobs, Integers, Texts

Connection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_BINARY = 1
_COMMAND_OK, _FATAL = pq.ExecStatus.COMMAND_OK, pq.ExecStatus.FATAL_ERROR
_SYNC, _IDLE = pq.ExecStatus.PIPELINE_SYNC, pq.TransactionStatus.IDLE
_NO_SUCH_STATEMENT, _DUPLICATE_STATEMENT = b"26000", b"42P05"
_PIPELINE_OFF, _BAD = pq.PipelineStatus.OFF, pq.ConnStatus.BAD
_INT8 = struct.Struct("!q").pack
_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


class Query:
    """A statement in the shape the wire wants it: numbered parameters, bytes, a name.

    Every parameter carries a cast that tells its type: ``text``, ``bigint`` (whatever
    column an integer goes to), ``bool``, ``timestamptz``, ``bytea``, or an array of text
    or bytea.

    Args:
        text: The statement as psycopg takes it, with named placeholders.
    """

    __slots__ = ("formats", "name", "order", "text")

    def __init__(self, text: str) -> None:
        order: list[str] = []

        def number(found: re.Match[str]) -> str:
            name = found[1]
            if name is None:
                return "%"
            if name not in order:
                order.append(name)
            return f"${order.index(name) + 1}"

        self.text = _PLACEHOLDER.sub(number, text).encode()
        self.order = tuple(order)
        self.formats = [_BINARY] * len(order)
        digest = hashlib.blake2b(self.text, digest_size=12).hexdigest()
        self.name = f"lgec_{digest}".encode()


@dataclass(frozen=True, slots=True)
class Hot(Statement):
    """A statement that can also go the short way; its parameters are a mapping.

    ``ahead``: as the first of a batch it is sent at once, for the server to work while the
    others are packed. That pays where they take as long as to wake the server once more.
    """

    query: Query = field(kw_only=True)
    ahead: bool = field(kw_only=True, default=False)

    def packed(self) -> list[bytes | None]:
        """The parameters in binary, in the order of their numbers."""
        values = [*map(self.params.__getitem__, self.query.order)]
        try:
            return [_PACKERS[type(value)](value) for value in values]
        except KeyError:
            return [_pack_odd(value) for value in values]


def _micros(moment: datetime) -> bytes:
    return _INT8((moment - _POSTGRES_EPOCH) // _MICROSECOND)


_PACKERS: dict[type, Callable[[Any], bytes | None]] = {
    type(None): lambda value: None,
    str: str.encode,
    bytes: bytes,
    bytearray: bytes,
    memoryview: bytes,
    int: _INT8,
    bool: (b"\0", b"\1").__getitem__,
    datetime: _micros,
    Texts: Texts.packed,
    Blobs: Blobs.packed,
    Integers: Integers.packed,
}


def _pack_odd(value: Any) -> bytes | None:
    """Pack what may be of a subclass, an id that is more than text for one."""
    for kind in type(value).__mro__:
        if kind in _PACKERS:
            return _PACKERS[kind](value)
    raise TypeError(f"no statement takes a {type(value).__name__}")


_prepared: weakref.WeakKeyDictionary[Connection, set[bytes]] = weakref.WeakKeyDictionary()


def fits(batch: Sequence[Statement], conn: Connection) -> TypeGuard[Sequence[Hot]]:
    """Whether a batch can go the short way; to be asked while the connection's lock is held.

    It can where nothing is open on the connection, so that the batch is one transaction of
    its own, and where text is UTF-8, as it is packed here.
    """
    pgconn = conn.pgconn
    return (
        all(type(one) is Hot for one in batch)
        and pgconn.transaction_status == _IDLE
        and pgconn.pipeline_status == _PIPELINE_OFF
        and pgconn.parameter_status(b"client_encoding") == b"UTF8"
    )


def exchange(conn: Connection, batch: Sequence[Hot]) -> PQGen[list[Any]]:
    """Run a batch in one transaction and one round trip.

    To be given to the connection's ``wait()``, while its lock is held.

    Args:
        conn: The connection, idle.
        batch: The statements, which :func:`fits`.

    Returns:
        What each statement gave: its rows, or the number of them where it fetches none.

    Raises:
        psycopg.Error: What the server refused; nothing of the batch is done then.
    """
    known = None if conn.prepare_threshold is None else _prepared.setdefault(conn, set())
    attempts = len(batch) + 1
    while True:
        try:
            results = yield from _pipeline(conn.pgconn, batch, known)
            break
        except (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement):
            # Somebody has sent DEALLOCATE ALL or DISCARD ALL, as psycopg itself does at times.
            # Nothing of the batch is done, and it is known better now what is prepared.
            attempts -= 1
            if known is None or not attempts:
                raise
    return [
        _rows(conn, result) if one.fetch else result.command_tuples or 0
        for result, one in zip(results, batch, strict=True)
    ]


def _pipeline(
    pgconn: PGconn, batch: Sequence[Hot], known: set[bytes] | None
) -> PQGen[list[PGresult]]:
    """Send everything, read everything; gives the results of the statements themselves."""
    asked: list[bytes | None] = []  # for each result to come: what it prepares
    whole = False
    unsent: Exception | None = None
    values = batch[0].packed()
    try:
        pgconn.enter_pipeline_mode()
        _ask(pgconn, batch[0], values, known, asked)
        if batch[0].ahead and pgconn.flush():
            yield from _flush(pgconn)
        # All of them are packed before one is sent: what was sent is done, and the first
        # alone comes to nothing.
        try:
            packed = [one.packed() for one in batch[1:]]
        except Exception as error:  # noqa: BLE001 - raised below, with the connection in order
            unsent = error
        else:
            for one, values in zip(batch[1:], packed, strict=True):
                _ask(pgconn, one, values, known, asked)
        pgconn.pipeline_sync()
        if pgconn.flush():
            yield from _flush(pgconn)
        results = yield from _results(pgconn)
        whole = True
    finally:
        # What is left half read cannot be told apart from what comes next.
        if whole:
            pgconn.exit_pipeline_mode()
        else:
            pgconn.finish()
    failed = _failed(results)
    if known is not None and (failed is not None or len(asked) > len(batch)):
        _note(known, asked, results, failed)
    _notified(pgconn)
    if failed is not None:
        raise errors.error_from_result(failed)
    if unsent is not None:
        raise unsent
    return [result for name, result in zip(asked, results, strict=True) if name is None]


def _ask(
    pgconn: PGconn,
    one: Hot,
    values: list[bytes | None],
    known: set[bytes] | None,
    asked: list[bytes | None],
) -> None:
    query = one.query
    if known is None:
        pgconn.send_query_params(query.text, values, None, query.formats, _BINARY)
    else:
        if query.name not in known and query.name not in asked:
            pgconn.send_prepare(query.name, query.text)
            asked.append(query.name)
        pgconn.send_query_prepared(query.name, values, query.formats, _BINARY)
    asked.append(None)


def _note(
    known: set[bytes],
    asked: Sequence[bytes | None],
    results: Sequence[PGresult],
    failed: PGresult | None,
) -> None:
    """Keep in mind what the connection has prepared, for good, whatever the transaction became."""
    state = None if failed is None else failed.error_field(pq.DiagnosticField.SQLSTATE)
    if state == _NO_SUCH_STATEMENT:
        known.clear()  # one is gone, so all may be; but not those that were made just now
    # A commit that fails gives one result more than was asked for.
    for name, result in zip(asked, results, strict=False):
        exists = result is failed and state == _DUPLICATE_STATEMENT
        if name and (exists or result.status == _COMMAND_OK):
            known.add(name)


def _flush(pgconn: PGconn) -> PQGen[None]:
    while pgconn.flush():
        # The server may have to be rid of its answers before it takes more. A wait that was
        # interrupted begins anew, and then nothing is sent into here, not even a state.
        while not (ready := (yield Wait.RW)):
            pass
        if ready & Ready.R:
            pgconn.consume_input()


def _results(pgconn: PGconn) -> PQGen[list[PGresult]]:
    results: list[PGresult] = []
    try:
        yield from _read(pgconn, results)
    except psycopg.OperationalError:
        # A server that ends a connection says why before it does.
        if failed := _failed(results):
            raise errors.error_from_result(failed) from None
        raise
    return results


def _read(pgconn: PGconn, results: list[PGresult]) -> PQGen[None]:
    while True:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == _BAD:
                raise psycopg.OperationalError("the connection was lost")
        elif result.status == _SYNC:
            return
        else:
            results.append(result)


def _failed(results: Sequence[PGresult]) -> PGresult | None:
    for result in results:
        if result.status == _FATAL:
            return result
    return None


def _notified(pgconn: PGconn) -> None:
    """Hand on the notifications that came with the answers: nobody would look for them again."""
    while notice := pgconn.notifies():
        if pgconn.notify_handler:
            pgconn.notify_handler(notice)


def _rows(conn: Connection, result: PGresult) -> list[Any]:
    reader: Any = Transformer(conn)
    reader.set_pgresult(result)
    rows: list[Any] = reader.load_rows(0, result.ntuples, tuple)
    return rows
