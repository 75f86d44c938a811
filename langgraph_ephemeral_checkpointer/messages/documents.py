"""Stored values, opened and closed: a type tag and bytes on one side, a tree on the other.

What a tree does not show stays as opaque as it was stored, so that closing it again changes
nothing but what was changed: classes that are gone, or that only the application has, do not
matter.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ephemeral_checkpointer.errors import RetentionError


class UnreadableValueError(RetentionError):
    """A stored value could not be opened with the saver's serializer; it is left as it is."""


_LOSSLESS = frozenset({"null", "bytes", "bytearray", "empty"})  # tags that hold no message


class Extension:
    """A msgpack extension that has not been looked into."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data


def unpack(data: bytes) -> Any:
    """A tree from msgpack, without looking into its extensions."""
    return ormsgpack.unpackb(data, ext_hook=Extension, option=ormsgpack.OPT_NON_STR_KEYS)


def pack(tree: Any) -> bytes:
    """The msgpack of a tree."""
    return ormsgpack.packb(tree, default=_pack_extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _pack_extension(node: Any) -> ormsgpack.Ext:
    if isinstance(node, Extension):
        return ormsgpack.Ext(node.code, node.data)
    raise TypeError(f"{type(node).__name__} is no part of a stored value")


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A stored value, opened."""

    tree: Any
    close: Callable[[Any], tuple[str, bytes]]
    """Turn a tree made from this one into a type tag and bytes, as the value was stored."""


def open_value(serde: Any, kind: str, data: bytes | None) -> Document:
    """Open a stored value.

    Args:
        serde: The saver's serializer, encrypting ones included.
        kind: The type tag.
        data: The bytes.

    Returns:
        The opened value.

    Raises:
        UnreadableValueError: If the serializer cannot read it.
    """
    try:
        return _open(serde, kind, bytes(data) if data is not None else b"")
    except Exception as error:
        raise UnreadableValueError(
            f"a value stored as {kind!r} could not be opened with {type(serde).__name__}: "
            f"{type(error).__name__}; it was left as it is"
        ) from error


def _open(serde: Any, kind: str, data: bytes) -> Document:
    # A subclass may have its own idea of what a tag means; then only it can read the bytes.
    loads = getattr(type(serde), "loads_typed", None)
    if loads is EncryptedSerializer.loads_typed:
        if "+" not in kind:  # stored before encryption was switched on
            return _open(serde.serde, kind, data)
        tag, cipher = kind.split("+", 1)
        inner = _open(serde.serde, tag, serde.cipher.decrypt(cipher, data))
        return Document(inner.tree, partial(_encrypt, serde.cipher, inner.close))
    if kind in _LOSSLESS:
        return Document(None, lambda tree: ("msgpack", pack(tree)))
    if loads is JsonPlusSerializer.loads_typed:
        if kind == "msgpack":
            return Document(unpack(data), lambda tree: (kind, pack(tree)))
        if kind == "json":
            return Document(json.loads(data), lambda tree: (kind, json.dumps(tree).encode()))
    return Document(serde.loads_typed((kind, data)), serde.dumps_typed)


def _encrypt(
    cipher: Any, close: Callable[[Any], tuple[str, bytes]], tree: Any
) -> tuple[str, bytes]:
    tag, data = close(tree)
    name, encrypted = cipher.encrypt(data)
    return f"{tag}+{name}", encrypted
