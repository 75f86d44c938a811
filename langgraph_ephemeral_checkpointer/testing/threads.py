"""Threads of a chosen age in any saver, without a graph and without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at
from langgraph_ephemeral_checkpointer.engine.plan import Plan, adrive, drive
from langgraph_ephemeral_checkpointer.langgraph_names import INTERRUPT, PARENTS, SOURCE, STEP

CHANNEL = "messages"

Write = tuple[str, str, Any]
"""Task id, channel and value of a pending write."""

WAITING: tuple[Write, ...] = (("task-waiting", INTERRUPT, "may I?"),)
"""The writes that a task leaves which waits for a human answer."""

_FORMAT = 4
"""The ``v`` of the checkpoints that LangGraph 1.x writes."""


def checkpoint_id_at(seconds: float, sequence: int = 0) -> str:
    """Make a checkpoint id of a chosen moment.

    Args:
        seconds: Seconds since the Unix epoch.
        sequence: Tells ids of the same moment apart, and orders them.

    Returns:
        The text of a UUID version 6, as LangGraph names its checkpoints.
    """
    return f"{first_id_at(seconds)[:18]}-8000-{sequence:012x}"


@dataclass(frozen=True, slots=True)
class PutCheckpoint:
    """Put one checkpoint and its writes, then hand back the config that names it."""

    config: dict[str, Any]
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: dict[str, Any]
    writes: tuple[Write, ...] = ()

    def by_task(self) -> dict[str, list[tuple[str, Any]]]:
        """Group the writes as ``put_writes`` takes them."""
        grouped: dict[str, list[tuple[str, Any]]] = {}
        for task_id, channel, value in self.writes:
            grouped.setdefault(task_id, []).append((channel, value))
        return grouped


def put(saver: BaseCheckpointSaver[Any], step: PutCheckpoint) -> dict[str, Any]:
    """Carry out a :class:`PutCheckpoint` through the synchronous methods."""
    config = saver.put(cast(Any, step.config), step.checkpoint, step.metadata, step.new_versions)
    for task_id, writes in step.by_task().items():
        saver.put_writes(config, writes, task_id)
    return cast(dict[str, Any], config)


async def aput(saver: BaseCheckpointSaver[Any], step: PutCheckpoint) -> dict[str, Any]:
    """Carry out a :class:`PutCheckpoint` through the asynchronous methods."""
    config = await saver.aput(
        cast(Any, step.config), step.checkpoint, step.metadata, step.new_versions
    )
    for task_id, writes in step.by_task().items():
        await saver.aput_writes(config, writes, task_id)
    return cast(dict[str, Any], config)


def make_step(
    thread_id: Any,
    checkpoint_id: str,
    *,
    ts: str,
    values: dict[str, Any],
    versions: dict[str, Any],
    new_versions: dict[str, Any],
    namespace: str = "",
    parent_id: str | None = None,
    writes: Sequence[Write] = (),
) -> PutCheckpoint:
    """Make the step that puts one checkpoint, in the shape LangGraph gives it."""
    where = {"thread_id": thread_id, "checkpoint_ns": namespace}
    if parent_id is not None:
        where["checkpoint_id"] = parent_id
    checkpoint = {
        "v": _FORMAT,
        "id": checkpoint_id,
        "ts": ts,
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": list(new_versions),
    }
    metadata = {SOURCE: "loop", STEP: 0, PARENTS: {}}
    return PutCheckpoint(
        {"configurable": where},
        cast(Checkpoint, checkpoint),
        cast(CheckpointMetadata, metadata),
        new_versions,
        tuple(writes),
    )


def timestamp(seconds: float) -> str:
    """Write a time as LangGraph writes a checkpoint's ``ts``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _thread(
    saver: BaseCheckpointSaver[Any], thread_id: str, times: Sequence[float], *, waiting: bool
) -> Plan[PutCheckpoint, list[str]]:
    if not times:
        raise ValueError("a thread needs at least one checkpoint: give the time of each in times")
    version: Any = None
    ids: list[str] = []
    for number, moment in enumerate(sorted(times)):
        version = saver.get_next_version(version, None)
        is_head = number == len(times) - 1
        ids.append(checkpoint_id_at(moment, number))
        yield make_step(
            thread_id,
            ids[-1],
            ts=timestamp(moment),
            values={CHANNEL: [f"{thread_id} {number}"]},
            versions={CHANNEL: version},
            new_versions={CHANNEL: version},
            parent_id=ids[-2] if number else None,
            writes=WAITING if waiting and is_head else (),
        )
    return ids


def save_thread(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    times: Sequence[float],
    *,
    waiting: bool = False,
) -> list[str]:
    """Store a thread as old as a test needs it, through the saver's ``put``.

    Args:
        saver: Any synchronous saver.
        thread_id: The thread.
        times: When each of its checkpoints was saved, in seconds since the Unix epoch.
        waiting: Whether the newest checkpoint waits for a human answer.

    Returns:
        The ids of the checkpoints, oldest first.

    Raises:
        ValueError: ``times`` is empty.
    """
    return drive(_thread(saver, thread_id, times, waiting=waiting), lambda step: put(saver, step))


async def asave_thread(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    times: Sequence[float],
    *,
    waiting: bool = False,
) -> list[str]:
    """Store a thread through the saver's ``aput``; otherwise as :func:`save_thread`."""
    return await adrive(
        _thread(saver, thread_id, times, waiting=waiting), lambda step: aput(saver, step)
    )
