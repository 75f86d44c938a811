"""When each message of the threads in use was first seen, remembered by one process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.messages.stamps import Name


class FirstSeen:
    """Remembers the first stamp of every message of the threads used most recently.

    A run keeps its own, unstamped message objects, and hands them to the saver at every
    superstep; this is what gives them the same stamp each time.

    A message is named by its id, or where that names no single message by the pair of the
    place that holds it and its words. The same words may be said again another day, so such
    names only hold until the place is loaded again.

    Args:
        limit: How many messages to remember at most. The least recently used threads are
            forgotten first; their messages carry stamps in storage by then.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._count = 0
        self._threads: OrderedDict[Hashable, dict[Name, str]] = OrderedDict()
        self._lock = threading.Lock()  # parallel nodes save from several threads at once

    def __len__(self) -> int:
        return self._count

    def stamps(self, thread: Hashable, keys: Sequence[Name], default: str) -> list[str]:
        """The stamps of these messages of a thread; those never seen get ``default``."""
        with self._lock:
            known = self._threads.setdefault(thread, {})
            self._threads.move_to_end(thread)
            before = len(known)
            stamps = [known.setdefault(key, default) for key in keys]
            self._count += len(known) - before
            self._evict(thread)
            return stamps

    def renew(self, thread: Hashable, ns: str, stored: Mapping[Name, str]) -> None:
        """Forget what has no id in a namespace, because a run may begin that says it anew.

        Args:
            thread: The thread.
            ns: The namespace.
            stored: The stamps that are stored there. These are kept, where they are known:
                somebody may look at a run that is under way.
        """
        with self._lock:
            known = self._threads.get(thread, {})
            stale = [
                name
                for name, stamp in known.items()
                if isinstance(name, tuple) and name[0][0] == ns and stored.get(name) != stamp
            ]
            for name in stale:
                del known[name]
            self._count -= len(stale)

    def remember(self, thread: Hashable, stamps: Iterable[tuple[Name, str]]) -> None:
        """Take in the stamps of messages with ids that were read from storage."""
        with self._lock:
            known = self._threads.setdefault(thread, {})
            self._threads.move_to_end(thread)
            before = len(known)
            for key, stamp in stamps:
                if isinstance(key, str):
                    known.setdefault(key, stamp)
            self._count += len(known) - before
            self._evict(thread)

    def forget(self, thread: Hashable) -> None:
        """Drop what is known of a thread, because it was deleted."""
        with self._lock:
            self._count -= len(self._threads.pop(thread, {}))

    def _evict(self, current: Hashable) -> None:
        while self._count > self._limit:
            thread = next(iter(self._threads))
            if thread != current:
                self._count -= len(self._threads.pop(thread))
                continue
            known: dict[Any, Any] = self._threads[thread]
            for key in list(known)[: self._count - self._limit]:
                del known[key]
            self._count = len(known)
