"""Arrays as Postgres takes them in binary: a save sends nine, and packing them is hot.

psycopg's own dumper looks for the type of a list element by element; here it is known.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import pq
from psycopg.adapt import Dumper

from langgraph_ephemeral_checkpointer.errors import StorageError

T = TypeVar("T")

_HEAD = struct.Struct("!iiIii")  # dimensions, has NULLs, element type, length, lower bound
_ONE = struct.Struct("!iiIiii")  # the same and the length of its one element
_EMPTY = struct.Struct("!iiI")
_LENGTH = struct.Struct("!i").pack
_INT = struct.Struct("!i").pack
_TEXT, _TEXT_ARRAY, _BYTEA, _BYTEA_ARRAY, _INT4, _INT4_ARRAY = 25, 1009, 17, 1001, 23, 1007


class _Array(Generic[T]):
    """Packed when it is sent: a save has its server at work by then."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[T]) -> None:
        self.items = [*items]

    def packed(self) -> bytes:
        """The array in the binary form of the protocol."""
        raise NotImplementedError


class Texts(_Array[str]):
    """A ``text[]`` parameter."""

    __slots__ = ()

    def packed(self) -> bytes:
        """The array in the binary form of the protocol."""
        return _pack([*map(str.encode, self.items)], _TEXT) if self.items else _NO_TEXTS


class Blobs(_Array[bytes]):
    """A ``bytea[]`` parameter."""

    __slots__ = ()

    def packed(self) -> bytes:
        """The array in the binary form of the protocol."""
        return _pack(self.items, _BYTEA)


class Integers(_Array[int]):
    """An ``integer[]`` parameter."""

    __slots__ = ()

    def packed(self) -> bytes:
        """The array in the binary form of the protocol."""
        return _pack([*map(_INT, self.items)], _INT4)


def _pack(items: list[bytes], oid: int) -> bytes:
    if len(items) == 1:
        return _ONE.pack(1, 0, oid, 1, 1, len(items[0])) + items[0]
    if not items:
        return _EMPTY.pack(0, 0, oid)
    parts = [_HEAD.pack(1, 0, oid, len(items), 1)]
    for item in items:
        parts += (_LENGTH(len(item)), item)
    return b"".join(parts)


_NO_TEXTS = _pack([], _TEXT)


class _PackedDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return obj.packed()  # type: ignore[no-any-return]


class _TextsDumper(_PackedDumper):
    oid = _TEXT_ARRAY


class _BlobsDumper(_PackedDumper):
    oid = _BYTEA_ARRAY


class _IntegersDumper(_PackedDumper):
    oid = _INT4_ARRAY


_adapted: weakref.WeakSet[Any] = weakref.WeakSet()


def adapt(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Teach a connection, which may be older than this module, the parameter types.

    Raises:
        StorageError: Its texts are in another encoding than those of the arrays: a channel or
            a thread would have two names.
    """
    if conn not in _adapted:
        if conn.info.encoding != "utf-8":
            raise StorageError(
                f"the connection's client_encoding is {conn.info.encoding!r}: connect with "
                "client_encoding='UTF8', which the server translates to that of the database"
            )
        conn.adapters.register_dumper(Texts, _TextsDumper)
        conn.adapters.register_dumper(Blobs, _BlobsDumper)
        conn.adapters.register_dumper(Integers, _IntegersDumper)
        _adapted.add(conn)
