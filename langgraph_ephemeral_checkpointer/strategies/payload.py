"""The little that is read out of a serialized checkpoint: its ``ts``.

Only checkpoints whose id holds no time are looked into, and never further than
msgpack itself: extension types, which carry the application's classes, are skipped
as bytes. Encrypted or otherwise serialized checkpoints tell no time.
"""

from __future__ import annotations

import json
from typing import Any

import ormsgpack

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_id, time_of_ts


def _skip_extension(_code: int, _data: bytes) -> None:
    return None


def time_in_checkpoint(type_: str | None, blob: bytes | str | None) -> float | None:
    """Read ``ts`` of a checkpoint as a serializer wrote it.

    Args:
        type_: The serializer's type tag.
        blob: The serialized checkpoint.

    Returns:
        Seconds since the epoch, or None where it cannot be known without the serializer.
    """
    checkpoint = decoded_checkpoint(type_, blob)
    return None if checkpoint is None else time_of_ts(checkpoint.get("ts"))


def decoded_checkpoint(type_: str | None, blob: bytes | str | None) -> dict[Any, Any] | None:
    """Read a checkpoint as far as it goes without the application's classes.

    Args:
        type_: The serializer's type tag.
        blob: The serialized checkpoint.

    Returns:
        The checkpoint, its values unusable; None where the serializer is needed.
    """
    if blob is None:
        return None
    try:
        if type_ == "msgpack":
            checkpoint = ormsgpack.unpackb(
                blob.encode() if isinstance(blob, str) else blob,
                ext_hook=_skip_extension,
                option=ormsgpack.OPT_NON_STR_KEYS,
            )
        elif type_ == "json":
            checkpoint = json.loads(blob)
        else:
            return None
    except (ValueError, TypeError, RecursionError):  # not theirs, no bytes at all, or too deep
        return None
    return checkpoint if isinstance(checkpoint, dict) else None


def time_of_checkpoint(checkpoint_id: str, type_: str | None, blob: bytes | None) -> float | None:
    """Tell a checkpoint's time by its id, or where that holds none by its ``ts``."""
    known = time_of_id(checkpoint_id)
    return known if known is not None else time_in_checkpoint(type_, blob)


def first_and_last(times: list[float | None]) -> tuple[float | None, float | None]:
    """Give the earliest and the latest of a thread's times; None, None if any is unknown."""
    known = [time for time in times if time is not None]
    if not known or len(known) < len(times):
        return None, None
    return min(known), max(known)
