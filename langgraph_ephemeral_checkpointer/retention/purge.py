"""purge_messages: old exchanges leave storage, in idle threads too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.engine.steps import is_async_callable
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError, UnsupportedCheckpointerError
from langgraph_ephemeral_checkpointer.messages.arguments import check_age, check_channels
from langgraph_ephemeral_checkpointer.messages.hooks import OnBeforeTrim
from langgraph_ephemeral_checkpointer.messages.purge import (
    BATCH_SIZE,
    PurgeOptions,
    apurge_storage,
    purge_storage,
)
from langgraph_ephemeral_checkpointer.messages.result import PurgeResult
from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage
from langgraph_ephemeral_checkpointer.retention.wrapper import RetainedCheckpointer
from langgraph_ephemeral_checkpointer.strategies.capabilities import PurgesMessages
from langgraph_ephemeral_checkpointer.strategies.registry import check_saver, detect_strategy


def purge_messages(
    saver: BaseCheckpointSaver[Any],
    older_than: timedelta | float,
    *,
    channels: Collection[str] | None = None,
    on_before_trim: OnBeforeTrim | None = None,
    dry_run: bool = False,
    batch_size: int = BATCH_SIZE,
    clock: Callable[[], float] | None = None,
) -> PurgeResult:
    """Take exchanges that are too old out of everything a saver has stored.

    Looks at every thread, the idle ones too. An exchange goes from every checkpoint, from the
    writes, snapshots, inputs, interrupts and answers that belong to it, and from subgraphs
    called in it; the last exchange of a thread goes as well, unless an interrupt waits for it.
    A message without a stamp is taken to be as old as the oldest checkpoint that holds it.
    The space is given back by the database's own VACUUM.

    It works beside running saves, thread by thread, each in a short transaction of its own. A
    run that loaded a thread before and saves after it brings the old messages back with that
    save; the next save by a ``RetainedCheckpointer``, or the next purge, takes them again.

    Args:
        saver: One of LangGraph's savers, or of your own with a registered strategy that
            ``PurgesMessages``; plain, or in a ``RetainedCheckpointer``, whose channels, hook
            and clock are then used unless others are given.
        older_than: Exchanges all of whose messages are older go; a timedelta or seconds.
        channels: The channels to look at; None means every one that holds a list of messages.
        on_before_trim: Receives the thread id and the messages about to go from a thread. If
            it fails, that is reported and nothing of the thread is changed.
        dry_run: Only say what would go; calls no hook.
        batch_size: How many thread ids to read at a time.
        clock: Seconds since the epoch; ``time.time`` where None.

    Returns:
        A :class:`PurgeResult`. A saver with a ``purge_messages`` of its own is asked to do it,
        and its answer is returned.

    Raises:
        TypeError: If ``saver`` is no saver, or another argument of a wrong type.
        ValueError: If ``older_than`` or ``batch_size`` is not positive.
        AsyncRequiredError: If the saver or the hook is asynchronous.
        UnsupportedCheckpointerError: If nothing is known of how the saver stores messages.
        StorageUnusableError: The storage is away, or has to be set up.
    """
    asked = (older_than, channels, on_before_trim, dry_run, batch_size, clock)
    inner, options = _asked(saver, *asked)
    if own := _own_purge(inner):
        if is_async_callable(own):
            raise AsyncRequiredError(
                f"{type(inner).__name__} is asynchronous; use 'await apurge_messages(...)'"
            )
        return _tell(saver, own(options.age, **options.given()))
    return _tell(saver, purge_storage(_storage_of(inner), options))


async def apurge_messages(
    saver: BaseCheckpointSaver[Any],
    older_than: timedelta | float,
    *,
    channels: Collection[str] | None = None,
    on_before_trim: OnBeforeTrim | None = None,
    dry_run: bool = False,
    batch_size: int = BATCH_SIZE,
    clock: Callable[[], float] | None = None,
) -> PurgeResult:
    """As :func:`purge_messages`, on the running event loop, which is never blocked.

    The hook may be asynchronous. A synchronous saver is worked on in a thread.
    """
    asked = (older_than, channels, on_before_trim, dry_run, batch_size, clock)
    inner, options = _asked(saver, *asked)
    own = _own_purge(inner, "apurge_messages", "purge_messages")
    if own is None:
        return _tell(saver, await apurge_storage(_storage_of(inner), options))
    given = options.given()
    if is_async_callable(own):
        return _tell(saver, await own(options.age, **given))
    if options.hook is not None:
        given["on_before_trim"] = _from_a_thread(options.hook)
    return _tell(saver, await asyncio.to_thread(own, options.age, **given))


def _asked(
    saver: Any,
    older_than: timedelta | float,
    channels: Collection[str] | None,
    hook: OnBeforeTrim | None,
    dry_run: bool,
    batch_size: int,
    clock: Callable[[], float] | None,
) -> tuple[Any, PurgeOptions]:
    """The saver inside its wrappers, and the options that these complete."""
    check_saver(saver)
    age = check_age(older_than, "older_than")
    while isinstance(saver, RetainedCheckpointer):
        channels = saver.channels if channels is None else channels
        hook = hook or saver.on_before_trim
        clock = clock or saver.clock
        saver = saver.inner
    found = check_channels(channels)
    return saver, PurgeOptions(age, found, hook, dry_run, batch_size, clock or time.time)


def _tell(saver: Any, result: PurgeResult) -> PurgeResult:
    """Tell the wrappers around a saver, which list threads that are in need of a purge."""
    while isinstance(saver, RetainedCheckpointer):
        if isinstance(result, PurgeResult):  # a saver of others may answer what it likes
            saver.purged(result)
        saver = saver.inner
    return result


def _storage_of(saver: Any) -> MessageStorage:
    """Return how the messages of a saver are read and written back."""
    strategy = detect_strategy(saver)
    if not isinstance(strategy, PurgesMessages):
        raise UnsupportedCheckpointerError(
            f"messages stored by {type(saver).__name__} cannot be purged "
            f"({type(strategy).__name__} does not know how they are stored); wrap it in "
            "RetainedCheckpointer so that its saves trim them"
        )
    return strategy.message_storage()


def _own_purge(saver: Any, *names: str) -> Callable[..., Any] | None:
    """The purge of a saver that brings its own, as the tenant savers do."""
    found = (getattr(saver, name, None) for name in names or ("purge_messages",))
    return next((method for method in found if method is not None), None)


def _from_a_thread(hook: OnBeforeTrim) -> OnBeforeTrim:
    """The hook for a purge in a thread of its own; an asynchronous one runs on this loop."""
    if not is_async_callable(hook):
        return hook
    loop = asyncio.get_running_loop()

    def call(thread_id: str, messages: list[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(hook(thread_id, messages), loop).result()

    return call
