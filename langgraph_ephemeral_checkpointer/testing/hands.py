"""What the rules of the contract yield, and the hands that carry it out in each colour."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.engine.plan import Plan
from langgraph_ephemeral_checkpointer.engine.steps import AsyncSteps, SyncSteps, Work
from langgraph_ephemeral_checkpointer.messages.purge import (
    PurgeOptions,
    apurge_storage,
    purge_storage,
)
from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper
from langgraph_ephemeral_checkpointer.testing.threads import PutCheckpoint, aput, put

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Put:
    """Have the saver put a checkpoint."""

    step: PutCheckpoint


@dataclass(frozen=True, slots=True)
class PutWrites:
    """Have the saver put writes of one task, whether or not their checkpoint is stored."""

    config: Any
    writes: Sequence[tuple[str, Any]]
    task_id: str


@dataclass(frozen=True, slots=True)
class Get:
    """Have the saver get a checkpoint tuple."""

    config: Any


@dataclass(frozen=True, slots=True)
class Use:
    """Call a method of a sweeper, or its twin with an ``a`` in front."""

    sweeper: TTLSweeper
    method: str
    args: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Purge:
    """Purge a storage of messages."""

    storage: MessageStorage
    options: PurgeOptions


Step: TypeAlias = Work | Put | PutWrites | Get | Use | Purge
Steps: TypeAlias = Plan[Step, T]


class SyncHands:
    """Carry out the steps of a rule as ``sweep()`` would."""

    def __init__(self, saver: BaseCheckpointSaver[Any], strategy: Strategy) -> None:
        self._saver = saver
        self._steps = SyncSteps(strategy)

    def perform(self, step: Step) -> Any:
        """Carry out one step on the calling thread."""
        match step:
            case Put(checkpoint):
                return put(self._saver, checkpoint)
            case PutWrites(config, writes, task_id):
                return self._saver.put_writes(config, writes, task_id)
            case Get(config):
                return self._saver.get_tuple(config)
            case Use(sweeper, method, args, options):
                return getattr(sweeper, method)(*args, **options)
            case Purge(storage, purge):
                return purge_storage(storage, purge)
            case _:
                return self._steps.perform(step)


class AsyncHands:
    """Carry out the steps of a rule as ``asweep()`` would.

    Args:
        saver: The saver.
        strategy: The strategy under test.
        in_thread: Whether the saver has synchronous methods only.
    """

    def __init__(
        self, saver: BaseCheckpointSaver[Any], strategy: Strategy, *, in_thread: bool
    ) -> None:
        self._saver = saver
        self._sync = SyncHands(saver, strategy)
        self._steps = AsyncSteps(strategy)
        self._in_thread = in_thread

    async def perform(self, step: Step) -> Any:
        """Carry out one step on the running event loop, or in a thread where it blocks."""
        if self._in_thread and isinstance(step, Put | PutWrites | Get):
            return await asyncio.to_thread(self._sync.perform, step)
        match step:
            case Put(checkpoint):
                return await aput(self._saver, checkpoint)
            case PutWrites(config, writes, task_id):
                return await self._saver.aput_writes(config, writes, task_id)
            case Get(config):
                return await self._saver.aget_tuple(config)
            case Use(sweeper, method, args, options):
                return await getattr(sweeper, f"a{method}")(*args, **options)
            case Purge(storage, purge):
                return await apurge_storage(storage, purge)
            case _:
                return await self._steps.perform(step)
