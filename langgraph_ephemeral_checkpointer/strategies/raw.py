"""Reading serialized values without making any object of them.

What a prune has to know of a checkpoint is which channels it names, which of them hold
a value, and which of those are snapshots of a delta channel. None of it needs the
application's classes, which may be gone. So extension values are never interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ormsgpack

from langgraph_ephemeral_checkpointer.decisions.survivors import Contents, LeaveWholeError
from langgraph_ephemeral_checkpointer.langgraph_names import (
    DELTA_COUNTERS,
    DELTA_MARK,
    PARENTS,
    SNAPSHOT_CODE,
)


@dataclass(frozen=True, slots=True)
class Extension:
    """A value of an application's or LangGraph's type, not interpreted."""

    code: int


def unpack(kind: str | None, data: bytes) -> Any:
    """Return a serialized value as plain data with :class:`Extension` in it.

    Args:
        kind: The type tag it was stored with.
        data: The bytes.

    Raises:
        LeaveWholeError: If it is encrypted, pickled, damaged or of an unknown kind.
    """
    try:
        if kind == "msgpack":
            return ormsgpack.unpackb(
                data, ext_hook=lambda code, _: Extension(code), option=ormsgpack.OPT_NON_STR_KEYS
            )
        if kind == "json":
            return json.loads(data)
    except ValueError as error:
        raise LeaveWholeError(f"a checkpoint stored as {kind} cannot be read: {error}") from error
    raise LeaveWholeError(f"a checkpoint stored as {kind!r} cannot be read without its serializer")


def is_snapshot(value: Any) -> bool:
    """Whether an unpacked value is the snapshot of a delta channel."""
    return isinstance(value, Extension) and value.code == SNAPSHOT_CODE


def holds_snapshot(kind: str, data: bytes) -> bool:
    """Whether a serialized value is the snapshot of a delta channel; it is not unpacked."""
    if kind != "msgpack" or len(data) < 3:
        return False
    first = data[0]
    if 0xC7 <= first <= 0xC9:  # the length is 1, 2 or 4 bytes long, and the code follows
        at = 1 + (1 << (first - 0xC7))
    elif 0xD4 <= first <= 0xD8:  # the length is in the first byte
        at = 1
    else:
        return False
    return len(data) > at and data[at] == SNAPSHOT_CODE


def mapping(value: Any, what: str) -> Mapping[Any, Any]:
    """Return a value that has to be a mapping.

    Raises:
        LeaveWholeError: If it is something else.
    """
    if not isinstance(value, dict):
        raise LeaveWholeError(f"{what} is no mapping")
    return value


def contents(
    parent: str | None,
    metadata: Mapping[str, Any],
    versions: Mapping[str, Any],
    stored: frozenset[str],
    snapshots: frozenset[str],
) -> Contents:
    """Return what the rule needs of a checkpoint whose parts have been read.

    Args:
        parent: The parent's id.
        metadata: The checkpoint's metadata.
        versions: Its ``channel_versions``.
        stored: The channels it holds a value of.
        snapshots: Those of them that hold a snapshot.
    """
    counters = mapping(metadata.get(DELTA_COUNTERS) or {}, DELTA_COUNTERS)
    return Contents(
        parent=parent,
        stored=stored,
        unstored=frozenset(versions) - stored,
        delta=snapshots | frozenset(counters),
        all_delta=DELTA_MARK in metadata,
    )


def callers(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return ``metadata["parents"]``: the checkpoints whose steps made a subgraph call."""
    parents = mapping(metadata.get(PARENTS) or {}, f"metadata.{PARENTS}")
    return {
        space: caller
        for space, caller in parents.items()
        if isinstance(space, str) and isinstance(caller, str)
    }
