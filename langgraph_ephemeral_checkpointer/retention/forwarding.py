"""The methods of a RetainedCheckpointer, one by one, for the classes built from them.

A class is built with those methods only that the inner saver's class implements, because
capabilities are read off the type: ``type(saver).method is not BaseCheckpointSaver.method``.
"""

# The functions below become methods of RetainedCheckpointer, so they may use its internals.
from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver


class Bound:
    """Marks the classes that were built for a class of inner savers."""


def _remember_history(self: Any, config: Any, history: Any) -> Any:
    at = config["configurable"]
    place = (at.get("checkpoint_ns", ""), at.get("checkpoint_id") or "")
    # The config of a checkpoint that a tenant saver has listed knows whose it is.
    scope = getattr(config, "tenant", None) or self._scope(config)
    self._keeper.incoming_history((scope, str(at["thread_id"])), *place, history)
    return history


def get(self: Any, config: Any) -> Any:
    """Load a checkpoint; see the inner saver."""
    loaded = self.get_tuple(config)
    return loaded.checkpoint if loaded else None


async def aget(self: Any, config: Any) -> Any:
    """Load a checkpoint; see the inner saver."""
    loaded = await self.aget_tuple(config)
    return loaded.checkpoint if loaded else None


def get_tuple(self: Any, config: Any) -> Any:
    """Load a checkpoint with all that belongs to it; see the inner saver."""
    return self._incoming(config, self.inner.get_tuple(config))


async def aget_tuple(self: Any, config: Any) -> Any:
    """Load a checkpoint with all that belongs to it; see the inner saver."""
    return self._incoming(config, await self.inner.aget_tuple(config))


def list_(self: Any, config: Any, **options: Any) -> Iterator[Any]:
    """List checkpoints; see the inner saver."""
    return self.inner.list(config, **options)  # type: ignore[no-any-return]  # of any saver


def alist(self: Any, config: Any, **options: Any) -> AsyncIterator[Any]:
    """List checkpoints; see the inner saver."""
    return self.inner.alist(config, **options)  # type: ignore[no-any-return]  # of any saver


def put(self: Any, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
    """Store a checkpoint, its messages stamped and without the exchanges that are too old."""
    checkpoint = self._outgoing(config, checkpoint, metadata)
    return self.inner.put(config, checkpoint, metadata, new_versions)


async def aput(self: Any, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
    """Store a checkpoint, its messages stamped and without the exchanges that are too old."""
    checkpoint = await self._aoutgoing(config, checkpoint, metadata)
    return await self.inner.aput(config, checkpoint, metadata, new_versions)


# LangGraph reads the attribute ``put_writes`` where a run starts and calls what it read
# from threads without the caller's context. A saver may bind what is in scope when the
# attribute is read; so this must read the inner attribute then, and not in the call.


def put_writes(self: Any) -> Callable[..., None]:
    """Store the writes of a task, their messages stamped; see the inner saver."""
    inner = self.inner.put_writes

    def put_writes(config: Any, writes: Sequence[Any], task_id: str, task_path: str = "") -> None:
        inner(config, self._outgoing_writes(config, writes), task_id, task_path)

    def without_path(config: Any, writes: Sequence[Any], task_id: str) -> None:
        inner(config, self._outgoing_writes(config, writes), task_id)

    return put_writes if _takes_path(inner) else without_path


def aput_writes(self: Any) -> Callable[..., Any]:
    """Store the writes of a task, their messages stamped; see the inner saver."""
    inner = self.inner.aput_writes

    async def aput_writes(
        config: Any, writes: Sequence[Any], task_id: str, task_path: str = ""
    ) -> None:
        await inner(config, self._outgoing_writes(config, writes), task_id, task_path)

    async def without_path(config: Any, writes: Sequence[Any], task_id: str) -> None:
        await inner(config, self._outgoing_writes(config, writes), task_id)

    return aput_writes if _takes_path(inner) else without_path


def _takes_path(method: Callable[..., Any]) -> bool:
    """Whether a saver is of the time when writes came with the path of their task."""
    return "task_path" in inspect.signature(method).parameters


def delete_thread(self: Any, thread_id: str) -> None:
    """Delete a thread; see the inner saver."""
    self._keeper.forget((self._scope(), str(thread_id)))
    self.inner.delete_thread(thread_id)


async def adelete_thread(self: Any, thread_id: str) -> None:
    """Delete a thread; see the inner saver."""
    self._keeper.forget((self._scope(), str(thread_id)))
    await self.inner.adelete_thread(thread_id)


def get_delta_channel_history(self: Any, *, config: Any, channels: Sequence[str]) -> Any:
    """What rebuilds delta channels; see the inner saver."""
    history = self.inner.get_delta_channel_history(config=config, channels=channels)
    return _remember_history(self, config, history)


async def aget_delta_channel_history(self: Any, *, config: Any, channels: Sequence[str]) -> Any:
    """What rebuilds delta channels; see the inner saver."""
    history = await self.inner.aget_delta_channel_history(config=config, channels=channels)
    return _remember_history(self, config, history)


def _plain(name: str) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    forward.__name__ = forward.__qualname__ = name
    forward.__doc__ = "As the inner saver's method of this name."
    return forward


def _aplain(name: str) -> Callable[..., Any]:
    async def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.inner, name)(*args, **kwargs)

    forward.__name__ = forward.__qualname__ = name
    forward.__doc__ = "As the inner saver's method of this name."
    return forward


_METHODS: dict[str, Any] = {
    "get": get,
    "aget": aget,
    "get_tuple": get_tuple,
    "aget_tuple": aget_tuple,
    "list": list_,
    "alist": alist,
    "put": put,
    "aput": aput,
    "put_writes": property(put_writes),
    "aput_writes": property(aput_writes),
    "delete_thread": delete_thread,
    "adelete_thread": adelete_thread,
    "get_delta_channel_history": get_delta_channel_history,
    "aget_delta_channel_history": aget_delta_channel_history,
    **{name: _plain(name) for name in ("delete_for_runs", "copy_thread", "prune")},
    **{name: _aplain(name) for name in ("adelete_for_runs", "acopy_thread", "aprune")},
}


def methods_for(inner: type) -> dict[str, Any]:
    """The methods a wrapper class around savers of this class needs.

    Args:
        inner: The class of the inner saver.

    Returns:
        The namespace of the class: what the inner class implements itself. What the base
        class implements on top of the others (``get``, the walk over a delta channel's
        ancestors) works through the wrapper's own methods, so it needs no forwarding.
    """
    return {
        name: method
        for name, method in _METHODS.items()
        if getattr(inner, name, None) is not getattr(BaseCheckpointSaver, name, None)
    }
