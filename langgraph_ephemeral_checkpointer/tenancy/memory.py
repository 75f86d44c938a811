"""What this process last knew of the threads that only the rule of pruning can prune.

A thread with subgraphs or delta channels is pruned by a decision made here, on facts that
lie in the database: a round trip to read them, another to delete. Whoever saves to a thread
knows what it left there, though. So a save decides beforehand, on what is remembered and
what it adds, and sends the deletes along, guarded: they do nothing unless the thread is as
remembered, down to which transaction wrote each row. What is remembered may thus be wrong
in any way; it costs the round trip that it was to save, and nothing else.

Of a plain thread, which needs no rule, it is remembered that it is one, and whether its saves
came one after the other: then the next can expect its parent to be all there is, as well.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable

from langgraph_ephemeral_checkpointer.decisions.survivors import Key
from langgraph_ephemeral_checkpointer.tenancy.survival import Stored

_REMEMBERED = 20_000


class Memory:
    """The rows of the threads used most recently; of a plain thread only that it is one.

    Args:
        limit: How many rows (and plain threads) to remember at most; the threads used
            least recently are forgotten first, also one that has more rows alone.
    """

    def __init__(self, limit: int = _REMEMBERED) -> None:
        self._limit = limit
        self._count = 0
        self._threads: OrderedDict[Hashable, dict[Key, Stored] | bool] = OrderedDict()
        self._lock = threading.Lock()  # parallel nodes save from several threads at once

    def __len__(self) -> int:
        return self._count

    def plain(self, thread: Hashable) -> bool | None:
        """Whether a thread had neither subgraphs nor delta channels when last looked at.

        Returns:
            None where that is not known; else whether it was saved to by one run at a time.
        """
        with self._lock:
            known = self._get(thread)
            return known if isinstance(known, bool) else None

    def rows(self, thread: Hashable) -> list[Stored]:
        """The rows of a thread; nothing where it is not known, or plain."""
        with self._lock:
            known = self._get(thread)
            return [*known.values()] if isinstance(known, dict) else []

    def learn(self, thread: Hashable, rows: Iterable[Stored]) -> None:
        """Remember a thread as it was just read."""
        with self._lock:
            self._drop(thread)
            self._put(thread, {row.key: row for row in rows})

    def learn_plain(self, thread: Hashable, *, alone: bool) -> None:
        """Remember that a thread is plain, and whether one run at a time saves to it."""
        with self._lock:
            self._drop(thread)
            self._put(thread, alone)

    def saved(self, thread: Hashable, row: Stored, gone: Iterable[Key] = ()) -> None:
        """Take in a row that was saved, and those that went with it."""
        with self._lock:
            known = self._drop(thread)
            # Of a plain thread no rows are known, and this makes it one that is not.
            if isinstance(known, dict):
                self._put(thread, _without({**known, row.key: row}, gone))

    def gone(self, thread: Hashable, keys: Iterable[Key]) -> None:
        """Take in that rows were deleted."""
        with self._lock:
            known = self._drop(thread)
            if isinstance(known, dict):
                self._put(thread, _without(known, keys))

    def forget(self, thread: Hashable) -> None:
        """Know nothing of a thread any more."""
        with self._lock:
            self._drop(thread)

    def _get(self, thread: Hashable) -> dict[Key, Stored] | bool | None:
        known = self._threads.get(thread)
        if known is not None:
            self._threads.move_to_end(thread)
        return known

    def _put(self, thread: Hashable, known: dict[Key, Stored] | bool) -> None:
        self._threads[thread] = known
        self._count += _size(known)
        while self._count > self._limit:
            self._drop(next(iter(self._threads)))

    def _drop(self, thread: Hashable) -> dict[Key, Stored] | bool | None:
        known = self._threads.pop(thread, None)
        if known is not None:
            self._count -= _size(known)
        return known


def _size(known: dict[Key, Stored] | bool) -> int:
    return max(1, len(known)) if isinstance(known, dict) else 1


def _without(rows: dict[Key, Stored], keys: Iterable[Key]) -> dict[Key, Stored]:
    doomed = frozenset(keys)
    return {key: row for key, row in rows.items() if key not in doomed}
