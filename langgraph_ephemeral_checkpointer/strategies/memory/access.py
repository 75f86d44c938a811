"""How threads are looked up in the dictionaries of an InMemorySaver.

The saver has no lock. Every look at a dictionary is a copy made by one C call, so a graph in
another thread cannot change it under an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

Keys: TypeAlias = tuple[Any, ...]
"""The keys under which a saver has one thread: 5 and "5" are two of one."""


class Stored(NamedTuple):
    """One checkpoint, as it is stored."""

    key: Any
    namespace: str
    checkpoint_id: str
    row: tuple[Any, ...]


def keys_by_text(saver: Any, texts: Sequence[str] | None = None) -> dict[str, Keys]:
    """Map thread ids as text to the keys they are stored under.

    Args:
        saver: The InMemorySaver.
        texts: Ids to look up, or None for all; the answer may have more.
    """
    storage = saver.storage
    if texts is not None and all(type(key) is str for key in list(storage)):
        return {text: (text,) for text in texts if text in storage}
    found: dict[str, Keys] = {}
    for key in list(storage):
        found[str(key)] = (*found.get(str(key), ()), key)
    return found


def checkpoints_of(saver: Any, keys: Keys) -> list[Stored]:
    """List the checkpoints of a thread, of every namespace."""
    return [
        Stored(key, namespace, checkpoint_id, row)
        for key in keys
        for namespace, rows in list(saver.storage.get(key, {}).items())
        for checkpoint_id, row in list(rows.items())
    ]
