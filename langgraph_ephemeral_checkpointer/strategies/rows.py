"""What the SQL backends share: from aggregated rows to facts. Pure.

A page is one row a thread: the smallest and the greatest checkpoint id, counts, and how
many ids do not look like a UUID version 6. For a thread with none of those, text order
is time order and the two ids tell both times. The others are looked at row by row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import (
    first_id_at,
    is_uuid6,
    time_of_uuid6,
)
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Size
from langgraph_ephemeral_checkpointer.strategies.births import time_of_birth
from langgraph_ephemeral_checkpointer.strategies.payload import first_and_last
from langgraph_ephemeral_checkpointer.strategies.trash import Discard

LIKE_UUID6 = "________-____-6___-____-____________"
"""The form of a UUID version 6, for LIKE: cheap enough to run on every row of a scan. What is
no lower-case hexadecimal is told apart by each backend's own means."""


class ThreadRow(NamedTuple):
    """One thread as a scan aggregates it.

    ``birth`` is the marker that pruning left of the thread's first checkpoint, else None.
    """

    thread_id: str
    first_id: str
    last_id: str
    checkpoints: int
    roots: int
    odd_ids: int
    birth: str | None = None


def is_odd(row: ThreadRow) -> bool:
    """Say whether a thread's two ids do not tell its times."""
    return bool(row.odd_ids) or not (is_uuid6(row.first_id) and is_uuid6(row.last_id))


def times_by_thread(
    rows: Iterable[tuple[str, float | None]],
) -> dict[str, list[float | None]]:
    """Group the times of single checkpoints by thread."""
    times: dict[str, list[float | None]] = defaultdict(list)
    for thread_id, time in rows:
        times[thread_id].append(time)
    return times


def facts_of(
    row: ThreadRow, odd_times: Mapping[str, list[float | None]], interrupted: bool | None = None
) -> ThreadFacts:
    """Make the facts of one thread.

    Args:
        row: The aggregated row.
        odd_times: The time of each checkpoint of the odd threads.
        interrupted: Whether it waits for a human answer, where that was read.
    """
    born_at, newest_at = time_of_uuid6(row.first_id), time_of_uuid6(row.last_id)
    if row.odd_ids or born_at is None or newest_at is None:
        born_at, newest_at = first_and_last(odd_times.get(row.thread_id, [None]))
    noted = time_of_birth(row.birth)
    if noted is not None and born_at is not None:
        born_at = min(noted, born_at)
    return ThreadFacts(row.thread_id, newest_at, born_at, row.checkpoints, row.roots, interrupted)


def spared(
    discard: Discard, rows: Iterable[ThreadRow], restored: Collection[str]
) -> dict[str, Outcome]:
    """Say which threads must not go into the trash now.

    Args:
        discard: How this delete discards.
        rows: The threads as the deleting transaction reads them.
        restored: Threads that came out of the trash less than a grace period ago.
    """
    kept = {}
    for row in rows:
        if row.thread_id in restored:
            kept[row.thread_id] = Outcome(KeepReason.RESTORED)
        elif discard.unfinished(row.roots, row.last_id):
            kept[row.thread_id] = Outcome(KeepReason.UNFINISHED)
    return kept


def id_surely_before(moment: float) -> str:
    """Give an id below which every id of a UUID version 6 is older than a moment, as floats too.

    Ids are compared exactly, and times as floats are rounded to less than a microsecond. A thread
    that is so close to the cut-off is read, and judged as a dry run judges it.
    """
    return first_id_at(moment - 1e-6)


class Cutoffs(NamedTuple):
    """A :class:`Wanted` in the terms of a table: ids to compare as text."""

    newest_before: str | None
    born_before: str | None
    more_checkpoints_than: int | None
    unread_before: str | None = None

    @classmethod
    def of(cls, wanted: Wanted) -> Cutoffs:
        """Translate times to ids."""
        return cls(
            None if wanted.newest_before is None else first_id_at(wanted.newest_before),
            None if wanted.born_before is None else first_id_at(wanted.born_before),
            wanted.more_checkpoints_than,
            None if wanted.unread_before is None else id_surely_before(wanted.unread_before),
        )

    @property
    def only_newest(self) -> bool:
        """Whether nothing but the newest checkpoint of a thread matters."""
        return (
            self.newest_before is not None
            and self.born_before is None
            and self.more_checkpoints_than is None
        )

    def may_be_quiet(self, last_id: str) -> bool:
        """Say whether a thread whose greatest id this is may be expired by the idle rule."""
        return self.newest_before is None or last_id < self.newest_before or not is_uuid6(last_id)

    def matches(self, row: ThreadRow) -> bool:
        """Say whether a row is worth turning into facts; odd ones always are."""
        return (
            is_odd(row)
            or (self.newest_before is not None and row.last_id < self.newest_before)
            or (
                self.born_before is not None
                and (row.birth is not None or row.first_id < self.born_before)
            )
            or (self.more_checkpoints_than is not None and row.roots > self.more_checkpoints_than)
        )


def waiting_threads(writes: Iterable[Sequence[Any]]) -> set[str]:
    """Give the threads that wait for a human answer.

    Args:
        writes: Thread id, task id and channel of each write on each thread's head.
    """
    by_thread: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for thread_id, task_id, channel in writes:
        by_thread[thread_id].append((task_id, channel))
    return {thread_id for thread_id, found in by_thread.items() if waits_for_human(found)}


def sizes_of(by_table: Mapping[str, Iterable[Sequence[Any]]]) -> dict[str, Size]:
    """Put sizes together.

    Args:
        by_table: For each table thread ids, each with its rows and their bytes.
    """
    rows: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(by_table, 0))
    total: dict[str, int] = defaultdict(int)
    for table, found in by_table.items():
        for thread_id, count, size in found:
            rows[thread_id][table] = count
            total[thread_id] += int(size or 0)
    return {thread_id: Size(counts, total[thread_id]) for thread_id, counts in rows.items()}
