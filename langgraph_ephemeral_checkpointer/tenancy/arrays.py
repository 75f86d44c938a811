"""Arrays as Postgres takes them in binary: a save sends nine, and packing them is hot.

psycopg's own dumper looks for the type of a list element by element; here it is known.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable
from typing import Any, ClassVar

import psycopg
from psycopg import pq
from psycopg.adapt import Dumper

from langgraph_ephemeral_checkpointer.errors import StorageError

_HEAD = struct.Struct("!iiIii")  # dimensions, has NULLs, element type, length, lower bound
_ONE = struct.Struct("!iiIiii")  # the same and the length of its one element
_LENGTH = struct.Struct("!i").pack
_INT = struct.Struct("!i").pack
_TEXT, _TEXT_ARRAY, _BYTEA, _BYTEA_ARRAY, _INT4, _INT4_ARRAY = 25, 1009, 17, 1001, 23, 1007
_EMPTY = {oid: struct.pack("!iiI", 0, 0, oid) for oid in (_TEXT, _BYTEA, _INT4)}


class _Array:
    """Packed when it is sent: a save has its server at work by then."""

    __slots__ = ("items",)

    oid: ClassVar[int]
    items: list[bytes]

    def packed(self) -> bytes:
        """The array in the binary form of the protocol."""
        return _pack(self.items, self.oid)


class Texts(_Array):
    """A ``text[]`` parameter."""

    __slots__ = ()

    oid = _TEXT

    def __init__(self, items: Iterable[str]) -> None:
        self.items = [*map(str.encode, items)]


class Blobs(_Array):
    """A ``bytea[]`` parameter."""

    __slots__ = ()

    oid = _BYTEA

    def __init__(self, items: Iterable[bytes]) -> None:
        self.items = [*items]


class Integers(_Array):
    """An ``integer[]`` parameter."""

    __slots__ = ()

    oid = _INT4

    def __init__(self, items: Iterable[int]) -> None:
        self.items = [*map(_INT, items)]


def _pack(items: list[bytes], oid: int) -> bytes:
    if len(items) == 1:
        return _ONE.pack(1, 0, oid, 1, 1, len(items[0])) + items[0]
    if not items:
        return _EMPTY[oid]
    parts = [_HEAD.pack(1, 0, oid, len(items), 1)]
    for item in items:
        parts += (_LENGTH(len(item)), item)
    return b"".join(parts)


class _PackedDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return obj.packed()  # type: ignore[no-any-return]  # psycopg types it so


class _TextsDumper(_PackedDumper):
    oid = _TEXT_ARRAY


class _BlobsDumper(_PackedDumper):
    oid = _BYTEA_ARRAY


class _IntegersDumper(_PackedDumper):
    oid = _INT4_ARRAY


_adapted: weakref.WeakSet[Any] = weakref.WeakSet()


def adapt(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Teach a connection, which may be older than this module, the parameter types.

    To be called before each batch: the encoding can be changed at any time, and the server tells of
    it at once.

    Raises:
        StorageError: Its texts are in another encoding than those of the arrays: a channel or
            a thread would have two names.
    """
    if conn.pgconn.parameter_status(b"client_encoding") != b"UTF8":
        raise StorageError(
            f"the connection's client_encoding is {conn.info.encoding!r}: connect with "
            "client_encoding='UTF8', which the server translates to that of the database, and "
            "leave it so"
        )
    if conn not in _adapted:
        conn.adapters.register_dumper(Texts, _TextsDumper)
        conn.adapters.register_dumper(Blobs, _BlobsDumper)
        conn.adapters.register_dumper(Integers, _IntegersDumper)
        _adapted.add(conn)
