"""Saves of a small chat, one after the other, through any saver."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

SAVES = 25


def save(saver: Any, thread_id: str, count: int = SAVES) -> None:
    """Put checkpoints of which each brings a new value of ``messages``."""
    where: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    for number in range(count):
        version = f"{number + 1:032}.0123456789"
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": ["x" * 200] * 10}
        checkpoint["channel_versions"] = {"messages": version}
        metadata: Any = {"source": "loop", "step": number, "parents": {}}
        where = saver.put(where, checkpoint, metadata, {"messages": version})


def load(saver: Any, thread_id: str, count: int) -> None:
    """Read the newest checkpoint again and again."""
    for _ in range(count):
        found = saver.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
        assert len(found.checkpoint["channel_values"]["messages"]) == 10
