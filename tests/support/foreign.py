"""Savers that this package has never heard of, in each colour: what the GenericStrategy is for."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver


class _Foreign(BaseCheckpointSaver[Any]):
    """Keeps its checkpoints where only it can find them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = InMemorySaver()

    def get_next_version(self, current: Any, channel: Any = None) -> Any:
        return self.hidden.get_next_version(current, channel)


class _SyncMethods(_Foreign):
    def get_tuple(self, config):
        return self.hidden.get_tuple(config)

    def list(self, config, *, filter=None, before=None, limit=None):  # noqa: A002
        yield from self.hidden.list(config, filter=filter, before=before, limit=limit)

    def put(self, config, checkpoint, metadata, new_versions):
        return self.hidden.put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config, writes, task_id, task_path=""):
        self.hidden.put_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id):
        self.hidden.delete_thread(thread_id)


class _AsyncMethods(_Foreign):
    async def aget_tuple(self, config):
        return self.hidden.get_tuple(config)

    async def alist(self, config, *, filter=None, before=None, limit=None):  # noqa: A002
        for found in self.hidden.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(self, config, checkpoint, metadata, new_versions):
        return self.hidden.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config, writes, task_id, task_path=""):
        self.hidden.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id):
        self.hidden.delete_thread(thread_id)


class SyncForeignSaver(_SyncMethods):
    """Synchronous methods only."""


class AsyncForeignSaver(_AsyncMethods):
    """Asynchronous methods only."""


class ForeignSaver(_SyncMethods, _AsyncMethods):
    """Both."""
