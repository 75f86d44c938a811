"""The birth time of a trimmed thread: in an attribute of ours on the saver."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_MEMORY_ATTRIBUTE = "_lgec_births"


def memory_birth_of(saver: Any, thread_id: Hashable) -> str | None:
    """Return the birth of a thread, or None where it has no marker that counts.

    Args:
        saver: The InMemorySaver.
        thread_id: The thread, as the saver's own key.
    """
    marker = getattr(saver, _MEMORY_ATTRIBUTE, {}).get(thread_id)
    # Looked up without subscripts: the saver's dictionaries make what they lack.
    if marker is None or marker[0] not in saver.storage.get(thread_id, {}).get("", {}):
        return None
    birth: str = marker[1]
    return birth


def forget_memory(saver: Any, thread_id: Hashable) -> None:
    """Drop the marker of a thread that was deleted."""
    getattr(saver, _MEMORY_ATTRIBUTE, {}).pop(thread_id, None)


def mark_memory(saver: Any, thread_id: Hashable, oldest_root_id: str, birth: str) -> None:
    """Leave the marker of a thread, in place of an earlier one; as :func:`mark_sqlite`."""
    births = getattr(saver, _MEMORY_ATTRIBUTE, None)
    if births is None:
        births = {}
        setattr(saver, _MEMORY_ATTRIBUTE, births)
    births[thread_id] = (oldest_root_id, birth)
