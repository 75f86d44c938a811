"""Stored values from one serializer to another: as bytes, so that no object is made of them.

A stored value can name any function for the serializer to call. Whoever moves it need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ephemeral_checkpointer.messages.documents import (
    UnreadableValueError,
    pack,
    unpack,
)

Typed: TypeAlias = tuple[str, bytes]
"""A type tag and bytes."""


@dataclass(frozen=True, slots=True)
class Recoding:
    """From the serializer of one saver to that of another.

    Both of LangGraph's own serializers are understood here, the encrypting one too. A serializer
    of the application's alone knows what its bytes mean, and has to make objects of them.

    Attributes:
        source: Has stored the values.
        target: Shall load them.
    """

    source: Any
    target: Any

    def value(self, kind: str, data: bytes) -> Typed:
        """Give a value as the target stores it."""
        if self._moves_bytes:
            return _encrypted(self.target, *_decrypted(self.source, kind, data))
        return _dumped(self.target, self.source.loads_typed((kind, data)))

    def items(self, stored: Sequence[Typed]) -> Typed:
        """Give values, one after the other, as the target stores the list of them.

        Raises:
            UnreadableValueError: They are stored in forms that do not go into one list.
        """
        if not self._moves_bytes:
            return _dumped(self.target, [self.source.loads_typed(one) for one in stored])
        plain = [_decrypted(self.source, *one) for one in stored]
        match {kind for kind, _ in plain}:
            case kinds if kinds == {"msgpack"}:
                joined = pack([unpack(data) for _, data in plain])
            case kinds if kinds == {"json"}:
                joined = b"[" + b",".join(data for _, data in plain) + b"]"
            case kinds:
                raise UnreadableValueError(
                    f"the pending sends of a checkpoint are stored in two forms ({sorted(kinds)}), "
                    "and were not decoded: load the thread with the old saver and run it on there"
                )
        return _encrypted(self.target, plain[0][0], joined)

    @property
    def _moves_bytes(self) -> bool:
        return _innermost(self.source) is _innermost(self.target) is JsonPlusSerializer


def _innermost(serde: Any) -> type:
    # A subclass may have its own idea of what a tag means.
    while type(serde) is EncryptedSerializer:
        serde = serde.serde
    return type(serde)


def _decrypted(serde: Any, kind: str, data: bytes) -> Typed:
    while type(serde) is EncryptedSerializer:
        if "+" in kind:  # what was stored before encryption was switched on has none
            kind, cipher = kind.split("+", 1)
            data = serde.cipher.decrypt(cipher, data)
        serde = serde.serde
    return kind, data


def _encrypted(serde: Any, kind: str, data: bytes) -> Typed:
    if type(serde) is not EncryptedSerializer:
        return kind, data
    kind, data = _encrypted(serde.serde, kind, data)
    name, encrypted = serde.cipher.encrypt(data)
    return f"{kind}+{name}", encrypted


def _dumped(serde: Any, value: Any) -> Typed:
    kind, data = serde.dumps_typed(value)
    return kind, data
