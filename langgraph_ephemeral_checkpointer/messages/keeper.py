"""What retention does to a save and to a load, for whichever saver stores it."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Hashable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.engine.plan import adrive, drive
from langgraph_ephemeral_checkpointer.langgraph_names import DELTA_COUNTERS, END, RUN_CHANNELS
from langgraph_ephemeral_checkpointer.messages.arguments import check_channels, cutoff_at
from langgraph_ephemeral_checkpointer.messages.backlog import Backlog, Thread, held_in
from langgraph_ephemeral_checkpointer.messages.exchanges import (
    facts_in,
    facts_of,
    number,
    openings_in_progress,
    verdicts,
    words_of,
)
from langgraph_ephemeral_checkpointer.messages.first_seen import FirstSeen
from langgraph_ephemeral_checkpointer.messages.hooks import (
    OnBeforeTrim,
    acall_hook,
    call_hook,
    check_calls,
)
from langgraph_ephemeral_checkpointer.messages.naming import known_stamps, names_of
from langgraph_ephemeral_checkpointer.messages.payloads import is_snapshot
from langgraph_ephemeral_checkpointer.messages.result import PurgeResult
from langgraph_ephemeral_checkpointer.messages.stamps import (
    STAMP_KEY,
    Name,
    Place,
    format_stamp,
    is_stamped,
    stamp_of,
    with_stamp,
)
from langgraph_ephemeral_checkpointer.messages.values import (
    may_hold_messages,
    messages_in,
    rebuild,
    rebuilt,
    without_idle_removals,
    written_in,
)
from langgraph_ephemeral_checkpointer.messages.versions import CUSTOMARY

logger = logging.getLogger(__name__)

_REMEMBERED_PAUSES = 10_000
_REMEMBERED_ARCHIVED = 100_000


class _Pause(NamedTuple):
    """A checkpoint that waits for a human's answer."""

    checkpoint_id: str
    openings: frozenset[str]
    """The keys of the messages that opened the exchanges it waits in."""


class Keeper:
    """Stamps messages on their way to storage, and drops the exchanges that are too old.

    It never changes the objects it is given: they belong to the graph. It remembers, within
    bounds, what one save has to know of an earlier one: first stamps, pauses, and what the
    archive has had. One keeper serves every thread of a saver, from several threads at once.

    Args:
        max_age: How long an exchange is kept; None stamps and never drops.
        channels: The channels to look at; None means every list of messages.
        on_before_trim: Receives the thread id and the messages about to go.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        *,
        max_age: timedelta | None,
        channels: Collection[str] | None = None,
        on_before_trim: OnBeforeTrim | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_calls(clock, on_before_trim)
        self.max_age = max_age
        self.channels = check_channels(channels)
        self.on_before_trim = on_before_trim
        self.clock = clock
        self._first_seen = FirstSeen()
        self._backlog = Backlog()
        self._paused: OrderedDict[Hashable, _Pause] = OrderedDict()
        self._archived: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = threading.Lock()

    # -- what a save stores -------------------------------------------------------------

    def outgoing(self, thread: Thread, ns: str, checkpoint: Any, metadata: Any) -> Any:
        """The checkpoint to store in place of this one.

        Raises:
            AsyncRequiredError: The hook is asynchronous.
        """
        self._report_unseen(thread, ns, metadata)
        if not self._concerns(checkpoint):
            return checkpoint
        return drive(
            self._outgoing(thread, ns, checkpoint),
            lambda step: call_hook(self.on_before_trim, *step),
        )

    async def aoutgoing(self, thread: Thread, ns: str, checkpoint: Any, metadata: Any) -> Any:
        """As :meth:`outgoing`, with a hook that may be asynchronous."""
        self._report_unseen(thread, ns, metadata)
        if not self._concerns(checkpoint):
            return checkpoint

        async def perform(step: Any) -> None:
            await acall_hook(self.on_before_trim, *step)

        return await adrive(self._outgoing(thread, ns, checkpoint), perform)

    def outgoing_writes(self, thread: Thread, writes: Sequence[Any]) -> list[Any]:
        """The same writes, with stamps: for a delta channel they are what is stored."""
        now = format_stamp(datetime.fromtimestamp(self.clock(), UTC))
        stamped = []
        for channel, value in writes:
            plain = channel.startswith("__") or not self._selected(channel)
            items = None if plain else written_in(value)
            if items:
                messages = [item for item in items if isinstance(item, BaseMessage)]
                fresh = iter(self._stamped(thread, None, messages, now))
                left = [next(fresh) if isinstance(item, BaseMessage) else item for item in items]
                value = rebuilt(value, left)
            stamped.append((channel, value))
        return stamped

    def _concerns(self, checkpoint: Any) -> bool:
        """Whether a channel may hold messages; cheap, as every save asks it."""
        return any(map(may_hold_messages, checkpoint["channel_values"].values()))

    def _selected(self, channel: str) -> bool:
        return self.channels is None or channel in self.channels

    def _stamped(
        self,
        thread: Thread,
        place: Place | None,
        messages: Sequence[Any],
        now: str,
        *,
        late: bool = False,
    ) -> list[Any]:
        """The messages with stamps: those that are remembered, else ``now``.

        Args:
            thread: The thread.
            place: Which channel's whole value they are. None for what is added to one: that
                is stored once, and how often the channel has the same words already, a write
                does not tell.
            messages: The messages.
            now: The stamp of what is seen for the first time.
            late: Whether messages may have been stored before without a stamp. One that stands
                before others is as old as the first of them at least.
        """
        bare = [
            index
            for index, message in enumerate(messages)
            if not (is_stamped(message) or message.type == "remove")
        ]
        if not bare:
            return list(messages)
        stamped = list(messages)
        names = names_of(messages, place)
        if late:
            self._stamp_late(thread, stamped, names, now)
            return stamped
        known = {index: name for index in bare if (name := names[index]) is not None}
        stamps = dict.fromkeys(bare, now)
        found = self._first_seen.stamps(thread, [*known.values()], now)
        stamps.update(zip(known, found, strict=True))
        for index, stamp in stamps.items():
            stamped[index] = with_stamp(messages[index], stamp)
        return stamped

    def _stamp_late(
        self, thread: Thread, stamped: list[Any], names: Sequence[Name | None], now: str
    ) -> None:
        """Stamp, in place, what has no stamp yet: at the latest as what comes after it."""
        for index in reversed(range(len(stamped))):
            message, name = stamped[index], names[index]
            if message.type == "remove":
                continue
            if not is_stamped(message):
                (stamp,) = self._first_seen.stamps(thread, [name], now) if name else (now,)
                stamped[index] = message = with_stamp(message, stamp)
            if stamp_of(message):
                now = message.response_metadata[STAMP_KEY]

    def _report_unseen(self, thread: Thread, ns: str, metadata: Any) -> None:
        """Report delta channels that hold old exchanges and come without their value.

        LangGraph counts the updates of such a channel in the metadata of every save that
        holds no snapshot of it.
        """
        counters = (metadata or {}).get(DELTA_COUNTERS)
        if counters and self.max_age is not None:
            cutoff = cutoff_at(self.clock(), self.max_age)
            self._backlog.saved(thread, ns, filter(self._selected, counters), cutoff)

    def _outgoing(self, thread: Thread, ns: str, checkpoint: Any) -> Generator[Any, Any, Any]:
        """The checkpoint to store in place of this one; yields what to hand to the hook."""
        seconds = self.clock()
        now = format_stamp(datetime.fromtimestamp(seconds, UTC))
        cutoff = None if self.max_age is None else cutoff_at(seconds, self.max_age)
        with self._lock:
            pause = self._paused.get((*thread, ns))
        stored, trimmed, going = {}, {}, []
        for channel, value in checkpoint["channel_values"].items():
            messages = messages_in(value) if self._selected(channel) else None
            if not messages or channel in RUN_CHANNELS - {END}:
                continue
            stamped = self._stamped(thread, (ns, channel), messages, now, late=is_snapshot(value))
            stored[channel] = rebuilt(value, stamped)
            if cutoff is None or not _anything_older(stamped, cutoff):
                continue
            goes = verdicts(
                facts_in(stamped),
                cutoff,
                keep_last=True,
                protected=pause.openings if pause else frozenset(),
            )
            if any(goes):
                kept = [m for m, gone in zip(stamped, goes, strict=True) if not gone]
                trimmed[channel] = rebuilt(value, kept)
                going += [m for m, gone in zip(stamped, goes, strict=True) if gone]
        if not stored:
            return checkpoint
        if going and (yield from self._archive(thread, going)):
            stored |= trimmed
        for channel, value in stored.items():
            if cutoff is not None and is_snapshot(value):
                self._backlog.trimmed(thread, ns, channel, held_in(messages_in(value) or ()))
        return {**checkpoint, "channel_values": {**checkpoint["channel_values"], **stored}}

    def _archive(self, thread: Thread, going: Sequence[BaseMessage]) -> Generator[Any, Any, bool]:
        """Hand to the hook what it has not had yet; whether trimming may go on.

        The run keeps the old messages to its end, so that every one of its saves trims
        them again: the hook hears of each message once. The same words said again on another
        day are another message, and so is one that was edited.
        """
        if self.on_before_trim is None:
            return True
        keys = [
            (thread, fact.key, fact.stamp, words_of(message).key)
            for fact, message in zip(number(map(facts_of, going)), going, strict=True)
        ]
        with self._lock:
            fresh = [n for n, key in enumerate(keys) if key not in self._archived]
        if not fresh:
            return True
        try:
            yield thread[1], [going[n] for n in fresh]
        except Exception:
            logger.exception("on_before_trim failed; thread %r is stored untrimmed", thread[1])
            return False
        with self._lock:
            self._archived.update((keys[n], None) for n in fresh)
            while len(self._archived) > _REMEMBERED_ARCHIVED:
                self._archived.popitem(last=False)
        return True

    # -- what a load tells --------------------------------------------------------------

    def incoming(
        self, thread: Thread, ns: str, loaded: CheckpointTuple, *, newest: bool
    ) -> CheckpointTuple:
        """The checkpoint that LangGraph gets in place of the stored one.

        Args:
            thread: The thread.
            ns: The namespace it was loaded from.
            loaded: What is stored.
            newest: Whether the newest was asked for, and not one by its id.
        """
        pause = (*thread, ns)
        checkpoint_id = loaded.checkpoint["id"]
        openings: set[str] = set()
        present: dict[str, list[Any]] = {}
        stored: dict[Name, str] = {}
        for channel, value in loaded.checkpoint["channel_values"].items():
            messages = messages_in(value) if self._selected(channel) else None
            if messages is None:
                continue
            present[channel] = messages
            stored |= known_stamps(messages, (ns, channel))
            if self.max_age is not None:
                self._backlog.loaded(thread, ns, channel, checkpoint_id, held_in(messages))
        self._first_seen.remember(thread, stored.items())
        if newest:
            self._first_seen.renew(thread, ns, stored)
        waiting = waits_for_human((write[0], write[1]) for write in loaded.pending_writes or ())
        if waiting:
            for messages in present.values():
                openings |= openings_in_progress(facts_in(messages))
        with self._lock:
            if waiting:
                self._paused[pause] = _Pause(checkpoint_id, frozenset(openings))
                while len(self._paused) > _REMEMBERED_PAUSES:
                    self._paused.popitem(last=False)
            elif newest:
                self._paused.pop(pause, None)
        return without_idle_removals(loaded, present)

    def incoming_history(
        self, thread: Thread, ns: str, checkpoint_id: str, history: Mapping[str, Any]
    ) -> None:
        """Take in what delta channels are rebuilt from: stamps, and what an answer resumes.

        Args:
            thread: The thread.
            ns: The namespace.
            checkpoint_id: The checkpoint at which they are rebuilt.
            history: By channel, what it is rebuilt from.
        """
        for channel, entry in history.items():
            if not self._selected(channel):
                continue
            values = [entry.get("seed"), *(write[2] for write in entry["writes"])]
            messages = rebuild(values, named=channel == CUSTOMARY or self.channels is not None)
            known = known_stamps(messages, (ns, channel))
            self._first_seen.remember(thread, known.items())
            if self.max_age is None or not messages:
                continue
            self._backlog.loaded(thread, ns, channel, checkpoint_id, held_in(messages))
            with self._lock:
                pause = self._paused.get((*thread, ns))
                if pause and pause.checkpoint_id == checkpoint_id:
                    openings = pause.openings | openings_in_progress(facts_in(messages))
                    self._paused[*thread, ns] = pause._replace(openings=openings)

    def untrimmed(self, scope: Hashable) -> dict[str, str]:
        """The threads of a scope that hold old exchanges which no save could drop, and why."""
        return self._backlog.untrimmed(scope)

    def purged(self, scope: Hashable, result: PurgeResult) -> PurgeResult:
        """Take in, and give back, what a purge of the threads of a scope has done."""
        for thread_id in () if result.dry_run else result.purged_thread_ids:
            if thread_id not in result.untrimmed:
                self._backlog.forget((scope, thread_id))
        return result

    def nothing_there(self, thread: Thread, ns: str) -> None:
        """Take in that a namespace holds nothing: what is saved next is said for the first time."""
        self._first_seen.renew(thread, ns, {})

    def forget(self, thread: Thread) -> None:
        """Drop what is known of a thread's messages, because it was deleted."""
        self._first_seen.forget(thread)
        self._backlog.forget(thread)


def _anything_older(messages: Sequence[BaseMessage], cutoff: datetime) -> bool:
    """Whether any exchange may be old enough to go; cheap, as every save asks it."""
    stamps = (stamp_of(message) for message in messages if message.type != "system")
    return any(stamp is not None and stamp < cutoff for stamp in stamps)
