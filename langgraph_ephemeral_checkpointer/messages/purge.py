"""The plan of a purge, whatever the storage: read a thread, decide, write back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

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
    AsyncRequiredError,
    RetentionError,
    StorageUnusableError,
    ThreadMovedError,
)
from langgraph_ephemeral_checkpointer.messages.arguments import cutoff_at
from langgraph_ephemeral_checkpointer.messages.hooks import OnBeforeTrim, acall_hook, check_calls
from langgraph_ephemeral_checkpointer.messages.payloads import revive
from langgraph_ephemeral_checkpointer.messages.result import PurgeResult
from langgraph_ephemeral_checkpointer.messages.scrubbing import Scrub, decide
from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage, count_rows

logger = logging.getLogger(__name__)

BATCH_SIZE = 200
"""How many thread ids a purge reads at a time."""

_ATTEMPTS = 3  # at a thread that somebody saves to meanwhile


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
        AsyncRequiredError: The storage or the hook is asynchronous.
        StorageUnusableError: The storage is away, or has to be set up.
    """
    if not storage.strategy.runs_sync:
        raise AsyncRequiredError(
            f"{type(storage.saver).__name__} is asynchronous; use 'await apurge_messages(...)'"
        )
    if options.hook is not None and is_async_callable(options.hook):
        raise AsyncRequiredError("on_before_trim is asynchronous; use 'await apurge_messages(...)'")
    return drive(_purge(storage, options), SyncSteps(storage.strategy).perform)


async def apurge_storage(storage: MessageStorage, options: PurgeOptions) -> PurgeResult:
    """Purge one storage on the running event loop; otherwise as :func:`purge_storage`."""
    if options.hook is not None:  # an archive may be slow: a plain one runs off the event loop
        options = replace(options, hook=partial(acall_hook, options.hook))
    return await adrive(_purge(storage, options), AsyncSteps(storage.strategy).perform)


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
            except StorageUnusableError:
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
        scrub = decide(image, cutoff, options.channels)
        result.kept.pop(thread_id, None)  # of an attempt before this one
        result.untrimmed.pop(thread_id, None)
        _report(thread_id, scrub, result)
        unseen -= scrub.channels_seen
        if not scrub.changes:
            return
        if not options.dry_run:
            # Outside any transaction and any lock: an archive may be slow, or use the same pool.
            fresh = [node for key, node in scrub.going.items() if key not in handed_over]
            if options.hook is not None and fresh:
                yield from _archive(options.hook, thread_id, revive(storage.saver.serde, fresh))
                handed_over |= scrub.going.keys()
            try:
                yield Work(partial(storage.write, image, scrub.changes))
            except ThreadMovedError:
                if attempt < _ATTEMPTS - 1:
                    continue
                result.kept[thread_id] = "it was being saved to; the next purge takes it"
                return
        result.purged_thread_ids.append(thread_id)
        result.message_count += len(scrub.going)
        result.row_count += count_rows(scrub.changes)
        return


def _archive(hook: OnBeforeTrim, thread_id: str, messages: list[Any]) -> Generator[Any, Any, None]:
    try:
        yield Ask(hook, (thread_id, messages))
    except AsyncRequiredError as error:
        raise AsyncRequiredError(
            "on_before_trim is asynchronous; use 'await apurge_messages(...)'; nothing was trimmed"
        ) from error
    except Exception as error:
        raise RetentionError(f"on_before_trim failed ({error}); nothing was trimmed") from error


def _report(thread_id: str, scrub: Scrub, result: PurgeResult) -> None:
    if scrub.untrimmed:
        result.untrimmed[thread_id] = "; ".join(
            f"{channel}: {reason}" for channel, reason in sorted(scrub.untrimmed.items())
        )
    if scrub.reasons.interrupted:
        result.kept[thread_id] = "an interrupt waits for an answer"
    elif scrub.reasons.unknown_age:
        result.kept[thread_id] = "nothing tells how old it is"
    elif scrub.reasons.going_on:
        result.kept[thread_id] = "an exchange that began long ago goes on: not all of it is old"
