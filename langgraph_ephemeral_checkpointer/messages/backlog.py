"""What no save can drop: old exchanges in a DeltaChannel between two of its snapshots.

Such a channel's value reaches a saver now and then only. What a saver is given in between,
the writes, it cannot trim: what they make of the value is known to the graph's reducer
alone. So the thread is reported until a snapshot or a purge has taken them.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_ephemeral_checkpointer.messages.exchanges import is_human, is_summary
from langgraph_ephemeral_checkpointer.messages.stamps import stamp_of

logger = logging.getLogger(__name__)

Thread: TypeAlias = tuple[Hashable, str]
"""A thread id, after the scope (a tenant, or None) in which it is unique."""


class Held(NamedTuple):
    """What a conversation holds that may go one day: every exchange but the last."""

    oldest: datetime | None
    """When the exchange ended that is the first to go, as far as stamps tell."""
    ageless: bool = False
    """Whether an exchange has no stamp, and none comes after it either."""


def held_in(messages: Sequence[BaseMessage]) -> Held:
    """What a conversation holds that may go one day."""
    humans = [index for index, message in enumerate(messages) if is_human(message)]
    starts = [0, *humans[1:]] if humans else range(len(messages))
    spoken = [
        None if message.type == "system" or is_summary(message) else stamp_of(message)
        for message in messages
    ]
    later = max(filter(None, spoken[starts[-1] :]), default=None) if messages else None
    ends = []
    for begin, end in reversed([*pairwise(starts)]):
        if all(message.type == "system" for message in messages[begin:end]):
            continue
        later = max(filter(None, spoken[begin:end]), default=later)
        ends.append(later)
    return Held(min(filter(None, ends), default=None), ageless=None in ends)


class _Loaded(NamedTuple):
    checkpoint_id: str
    held: Held


class Backlog:
    """Remembers, of the threads used most recently, what their delta channels still hold.

    Args:
        limit: How many threads to remember at most.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._loaded: OrderedDict[Thread, dict[str, _Loaded]] = OrderedDict()
        self._reported: OrderedDict[Thread, dict[str, str]] = OrderedDict()
        self._lock = threading.Lock()

    def loaded(self, thread: Thread, ns: str, channel: str, checkpoint_id: str, held: Held) -> None:
        """Take in what a run, or somebody who looks back, has loaded of a channel.

        Args:
            thread: The thread.
            ns: The namespace.
            channel: The channel.
            checkpoint_id: Where it was loaded; the newest checkpoint counts.
            held: What it holds.
        """
        name = _name(ns, channel)
        with self._lock:
            known = self._loaded.setdefault(thread, {})
            self._loaded.move_to_end(thread)
            if name not in known or known[name].checkpoint_id <= checkpoint_id:
                known[name] = _Loaded(checkpoint_id, held)
            while len(self._loaded) > self._limit:
                self._loaded.popitem(last=False)

    def saved(self, thread: Thread, ns: str, channels: Iterable[str], cutoff: datetime) -> None:
        """Report the delta channels of a save that came without their values.

        Args:
            thread: The thread.
            ns: The namespace.
            channels: The channels.
            cutoff: Exchanges that ended before it should have gone.
        """
        for channel in channels:
            name = _name(ns, channel)
            with self._lock:
                known = self._loaded.get(thread, {}).get(name)
                if known is None or not (why := _why_reported(known.held, cutoff)):
                    continue
                reported = self._reported.setdefault(thread, {})
                self._reported.move_to_end(thread)
                if name in reported:
                    continue
                reported[name] = why
                while len(self._reported) > self._limit:
                    self._reported.popitem(last=False)
            logger.warning("thread %r was saved untrimmed: %s: %s", thread[1], name, why)

    def trimmed(self, thread: Thread, ns: str, channel: str, held: Held) -> None:
        """Take in that a snapshot was stored, and what it holds."""
        name = _name(ns, channel)
        with self._lock:
            if loaded := self._loaded.get(thread, {}).get(name):
                self._loaded[thread][name] = loaded._replace(held=held)
            reported = self._reported.get(thread, {})
            if reported.pop(name, None) and not reported:
                del self._reported[thread]

    def forget(self, thread: Thread) -> None:
        """Drop what is known of a thread, because it was purged or deleted."""
        with self._lock:
            self._loaded.pop(thread, None)
            self._reported.pop(thread, None)

    def untrimmed(self, scope: Hashable) -> dict[str, str]:
        """The threads of a scope that hold what no save could drop, and why."""
        with self._lock:
            return {
                thread[1]: "; ".join(f"{name}: {why}" for name, why in sorted(reported.items()))
                for thread, reported in self._reported.items()
                if thread[0] == scope
            }


def _why_reported(held: Held, cutoff: datetime) -> str | None:
    if held.oldest is not None and held.oldest < cutoff:
        return (
            f"exchanges that began before {cutoff:%Y-%m-%d %H:%M} UTC stay in this DeltaChannel "
            "until its next snapshot, as no save in between is given its value; "
            "purge_messages() takes them now"
        )
    if held.ageless:
        return (
            "messages in this DeltaChannel have no stamp, as they were written as text, pairs or "
            "dicts, or by another saver, so that no save can tell how old they are; "
            "purge_messages() goes by the checkpoints"
        )
    return None


def _name(ns: str, channel: str) -> str:
    return f"{ns}/{channel}" if ns else channel
