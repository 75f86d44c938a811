"""purge_messages: old exchanges leave storage, in idle threads too."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.common.arguments import checked_count, checked_flag
from langgraph_ephemeral_checkpointer.engine.plan import adrive, drive
from langgraph_ephemeral_checkpointer.engine.steps import (
    Ask,
    AsyncSteps,
    SyncSteps,
    Work,
    is_async_callable,
)
from langgraph_ephemeral_checkpointer.errors import (
    ColourError,
    RetentionError,
    StorageUnavailableError,
    ThreadMovedError,
)
from langgraph_ephemeral_checkpointer.messages.arguments import (
    OnBeforeTrim,
    acall_hook,
    check_age,
    check_calls,
    check_channels,
    cutoff_at,
)
from langgraph_ephemeral_checkpointer.messages.payloads import revive
from langgraph_ephemeral_checkpointer.messages.result import PurgeResult
from langgraph_ephemeral_checkpointer.messages.scrubbing import Outcome, decide
from langgraph_ephemeral_checkpointer.retention.storages import (
    MessageStorage,
    count_rows,
    storage_of,
)
from langgraph_ephemeral_checkpointer.retention.wrapper import RetainedCheckpointer
from langgraph_ephemeral_checkpointer.strategies.registry import check_saver

logger = logging.getLogger(__name__)

BATCH_SIZE = 200
"""How many thread ids a purge reads at a time."""

_ATTEMPTS = 3  # at a thread that somebody saves to meanwhile


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
    """Take exchanges that began too long ago out of everything a saver has stored.

    Looks at every thread, the idle ones too. An exchange goes from every checkpoint, from the
    writes, snapshots, inputs, interrupts and answers that belong to it, and from subgraphs
    called in it; the last exchange of a thread goes as well, unless an interrupt waits for it.
    A message without a stamp is taken to be as old as the oldest checkpoint that holds it.
    The space is given back by the database's own VACUUM.

    It works beside running saves, thread by thread, each in a short transaction of its own. A
    run that loaded a thread before and saves after it brings the old messages back with that
    save; the next save by a ``RetainedCheckpointer``, or the next purge, takes them again.

    Args:
        saver: One of LangGraph's savers, plain or in a ``RetainedCheckpointer``, whose
            channels, hook and clock are then used unless others are given.
        older_than: Exchanges that began longer ago go; a timedelta or seconds.
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
        ColourError: If the saver or the hook is asynchronous.
        UnsupportedCheckpointerError: If nothing is known of how the saver stores messages.
        StorageUnavailableError: If the storage is away.
    """
    asked = (older_than, channels, on_before_trim, dry_run, batch_size, clock)
    inner, options = _asked(saver, *asked)
    if own := _own_purge(inner):
        if is_async_callable(own):
            raise ColourError(
                f"{type(inner).__name__} is asynchronous; use 'await apurge_messages(...)'"
            )
        return _tell(saver, own(options.age, **options.given()))
    return _tell(saver, purge_storage(storage_of(inner), options))


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
        return _tell(saver, await apurge_storage(storage_of(inner), options))
    given = options.given()
    if is_async_callable(own):
        return _tell(saver, await own(options.age, **given))
    if options.hook is not None:
        given["on_before_trim"] = _from_a_thread(options.hook)
    return _tell(saver, await asyncio.to_thread(own, options.age, **given))


@dataclass(frozen=True)
class PurgeOptions:
    """What a purge is asked to do; see :func:`purge_messages`."""

    age: timedelta
    channels: frozenset[str] | None = None
    hook: OnBeforeTrim | None = None
    dry_run: bool = False
    batch_size: int = BATCH_SIZE
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        checked_flag("dry_run", self.dry_run)
        checked_count("batch_size", self.batch_size)
        check_calls(self.clock, self.hook)

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, as arguments for a saver's own purge.

        A purge that knows none of them can still be asked for what it does.
        """
        values = {
            "channels": self.channels,
            "on_before_trim": self.hook,
            "dry_run": self.dry_run or None,
            "batch_size": None if self.batch_size == BATCH_SIZE else self.batch_size,
            "clock": None if self.clock is time.time else self.clock,
        }
        return {name: value for name, value in values.items() if value is not None}


def purge_storage(storage: MessageStorage, options: PurgeOptions) -> PurgeResult:
    """Purge one storage from the calling thread.

    Raises:
        ColourError: The storage or the hook is asynchronous.
        StorageUnavailableError: The storage is away.
    """
    if not storage.strategy.runs_sync:
        raise ColourError(
            f"{type(storage.saver).__name__} is asynchronous; use 'await apurge_messages(...)'"
        )
    if options.hook is not None and is_async_callable(options.hook):
        raise ColourError("on_before_trim is asynchronous; use 'await apurge_messages(...)'")
    return drive(_purge(storage, options), SyncSteps(storage.strategy).perform)


async def apurge_storage(storage: MessageStorage, options: PurgeOptions) -> PurgeResult:
    """Purge one storage on the running event loop; otherwise as :func:`purge_storage`."""
    if options.hook is not None:  # an archive may be slow: a plain one runs off the event loop
        options = replace(options, hook=partial(acall_hook, options.hook))
    return await adrive(_purge(storage, options), AsyncSteps(storage.strategy).perform)


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


def _purge(storage: MessageStorage, options: PurgeOptions) -> Generator[Any, Any, PurgeResult]:
    result = PurgeResult(dry_run=options.dry_run)
    started = time.monotonic()
    cutoff = cutoff_at(options.clock(), options.age)
    unseen = set(options.channels or ())
    after = None
    while True:
        page = yield Work(partial(storage.page, after, options.batch_size))
        for thread_id in page:
            result.thread_count += 1
            try:
                yield from _purge_thread(storage, thread_id, cutoff, options, result, unseen)
            except StorageUnavailableError:
                raise
            except Exception as error:  # noqa: BLE001 - one bad thread must not keep the others
                logger.warning("thread %r was not purged: %s", thread_id, error)
                result.errors[thread_id] = str(error) or type(error).__name__
        if len(page) < options.batch_size:
            break
        after = page[-1]
    if unseen and result.thread_count and not result.errors:
        logger.warning("no thread has a channel named %s: nothing of it was purged", sorted(unseen))
    result.duration_seconds = time.monotonic() - started
    return result


def _purge_thread(
    storage: MessageStorage,
    thread_id: str,
    cutoff: datetime,
    options: PurgeOptions,
    result: PurgeResult,
    unseen: set[str],
) -> Generator[Any, Any, None]:
    handed_over: set[str] = set()
    for attempt in range(_ATTEMPTS):
        image = yield Work(partial(storage.read, thread_id))
        outcome = decide(image, cutoff, options.channels)
        result.kept.pop(thread_id, None)  # of an attempt before this one
        result.untrimmed.pop(thread_id, None)
        _report(thread_id, outcome, result)
        unseen -= outcome.channels_seen
        if not outcome.changes:
            return
        if not options.dry_run:
            # Outside any transaction and any lock: an archive may be slow, or use the same pool.
            fresh = [node for key, node in outcome.going.items() if key not in handed_over]
            if options.hook is not None and fresh:
                yield from _archive(options.hook, thread_id, revive(storage.saver.serde, fresh))
                handed_over |= outcome.going.keys()
            try:
                yield Work(partial(storage.write, image, outcome.changes))
            except ThreadMovedError:
                if attempt < _ATTEMPTS - 1:
                    continue
                result.kept[thread_id] = "it was being saved to; the next purge takes it"
                return
        result.purged_thread_ids.append(thread_id)
        result.message_count += len(outcome.going)
        result.row_count += count_rows(outcome.changes)
        return


def _archive(hook: OnBeforeTrim, thread_id: str, messages: list[Any]) -> Generator[Any, Any, None]:
    try:
        yield Ask(hook, (thread_id, messages))
    except ColourError as error:
        raise ColourError(
            "on_before_trim is asynchronous; use 'await apurge_messages(...)'; nothing was trimmed"
        ) from error
    except Exception as error:
        raise RetentionError(f"on_before_trim failed ({error}); nothing was trimmed") from error


def _report(thread_id: str, outcome: Outcome, result: PurgeResult) -> None:
    if outcome.untrimmed:
        result.untrimmed[thread_id] = "; ".join(
            f"{channel}: {reason}" for channel, reason in sorted(outcome.untrimmed.items())
        )
    if outcome.interrupted:
        result.kept[thread_id] = "an interrupt waits for an answer"
    elif outcome.unknown_age:
        result.kept[thread_id] = "nothing tells how old it is"
