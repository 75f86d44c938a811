"""Deleting a thread: read, judge and unlink under the lock that saves take."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer import KeepReason
from langgraph_ephemeral_checkpointer.strategies import Outcome, Recheck
from tests.storages.folder.access import Files
from tests.storages.folder.find import facts_of


def delete(files: Files, thread_id: str, recheck: Recheck | None) -> Outcome:
    """Delete one thread unless the recheck keeps it."""
    try:
        with files.changing(thread_id) as thread:
            there = len(thread.rows)
            if recheck is not None:
                kept = recheck(thread_id, facts_of(thread) if there else None)
                if kept is not None:
                    return Outcome(kept)
            elif not there:
                return Outcome(KeepReason.GONE)
            thread.rows.clear()
            thread.writes.clear()
    except Exception as error:  # noqa: BLE001 - nothing was stored: the block did not end
        return Outcome(KeepReason.FAILED, str(error))
    return Outcome(rows={"checkpoints": there})
