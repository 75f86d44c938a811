"""The birth time of a trimmed thread, kept where LangGraph neither reads nor writes.

A thread's age is that of its first checkpoint, and trimming takes that one away. So the
trim leaves a marker with the oldest root checkpoint it keeps: the id of the first checkpoint,
which carries its time (or the time itself where the id carries none). An earlier marker is
carried over. A marker counts only while the checkpoint it was left with is stored, and it
goes when the thread is deleted, by whatever means. Where it is kept, each storage says in its
own module ``birth``.
"""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_id, time_of_saved


def has_time(checkpoint_id: str) -> bool:
    """Whether a checkpoint id carries its time (a UUID of version 6 or 7)."""
    return time_of_id(checkpoint_id) is not None


def time_of_birth(marker: str | None) -> float | None:
    """Return the time a marker tells, in seconds since the epoch; None where there is none."""
    if marker is None:
        return None
    return time_of_saved(marker, marker)


def birth_of(first_id: str, ts: str | None) -> str:
    """Return what a marker says: an id that carries its time, else the checkpoint's ``ts``.

    Args:
        first_id: The id of the thread's first checkpoint.
        ts: Its ``ts`` (ISO 8601), if known.
    """
    return first_id if has_time(first_id) or not ts else ts
