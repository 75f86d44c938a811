"""Where message retention takes hold of what a saver stores and loads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from langgraph.checkpoint.base import Checkpoint, CheckpointTuple

from langgraph_ephemeral_checkpointer.tenancy.rows import Target

Writes: TypeAlias = Sequence[tuple[str, Any]]


class MessageKeeper(Protocol):
    """Stamps messages on their way to storage, and drops those that are too old.

    It gets objects that belong to LangGraph, and gives others in their place: it never
    changes them.
    """

    def outgoing(self, target: Target, checkpoint: Checkpoint) -> Checkpoint:
        """Give the checkpoint to store in place of this one."""
        ...

    def outgoing_writes(self, target: Target, writes: Writes) -> Writes:
        """Give the writes to store in place of these."""
        ...

    def incoming(self, target: Target, loaded: CheckpointTuple) -> CheckpointTuple:
        """Give the checkpoint that LangGraph gets in place of the stored one."""
        ...

    def incoming_history(self, target: Target, history: Mapping[str, Any]) -> Mapping[str, Any]:
        """Give the delta channel history that LangGraph gets in place of the stored one."""
        ...


class Untouched:
    """The keeper that keeps everything as it is."""

    def outgoing(self, target: Target, checkpoint: Checkpoint) -> Checkpoint:
        """Give the same checkpoint."""
        return checkpoint

    def outgoing_writes(self, target: Target, writes: Writes) -> Writes:
        """Give the same writes."""
        return writes

    def incoming(self, target: Target, loaded: CheckpointTuple) -> CheckpointTuple:
        """Give the same checkpoint."""
        return loaded

    def incoming_history(self, target: Target, history: Mapping[str, Any]) -> Mapping[str, Any]:
        """Give the same history."""
        return history


def keeper_for(max_age: timedelta | None, channels: Collection[str] | None) -> MessageKeeper:
    """The keeper for a saver's options.

    Raises:
        NotImplementedError: Messages shall age, and nothing here lets them.
    """
    if max_age is not None or channels is not None:
        raise NotImplementedError("message_retention is not available yet")
    return Untouched()
