"""Hosts whose clocks differ: the id of a checkpoint is a time, and the greatest id counts."""

from __future__ import annotations

import time

from langgraph.checkpoint.base import id as langgraph_ids

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import (
    TICKS_PER_SECOND,
    ticks_at,
    ticks_of,
    time_of_uuid6,
)
from langgraph_ephemeral_checkpointer.errors import ClockBehindError

FOLLOWED_SECONDS = 60
"""How far behind a clock may be for its host to go by the ids that it loads.

What a host saves in the meantime is dated that much too late.
"""

# Each id that LangGraph makes in a process is greater than the last one, which it keeps here.
_LAST = "_last_v6_timestamp"


def follow(checkpoint_id: str) -> None:
    """Let the ids that this process makes sort behind one that it has loaded.

    A run goes on from what it loads. Where the clock here is behind, its checkpoints would sort
    before that: the next run would not see them, and a prune would take them first.

    Args:
        checkpoint_id: The id; nothing is done unless it is a UUID of version 6 from up to
            :data:`FOLLOWED_SECONDS` ahead.
    """
    ticks = ticks_of(checkpoint_id)
    if ticks is None or ticks <= (now := ticks_at(time.time_ns())):
        return
    last = getattr(langgraph_ids, _LAST, ticks)
    if (last is None or last < ticks) and ticks <= now + FOLLOWED_SECONDS * TICKS_PER_SECOND:
        setattr(langgraph_ids, _LAST, ticks)


def check_order(thread_id: str, checkpoint_id: str, parent_id: str | None) -> None:
    """Refuse a checkpoint that would sort before its parent, and so be lost to the next run.

    Raises:
        ClockBehindError: Both ids are times, and it would.
    """
    if parent_id is None or checkpoint_id >= parent_id:
        return
    made, after = time_of_uuid6(checkpoint_id), time_of_uuid6(parent_id)
    if made is not None and after is not None:
        raise ClockBehindError(
            f"checkpoint {checkpoint_id} of thread {thread_id!r} was not saved, because it would "
            f"sort before its parent {parent_id}, where no run looks for it: the clock of this "
            f"host is at least {after - made:.0f} s behind that of the one that saved the parent. "
            "Set the clocks (by NTP, say) and run again"
        )
