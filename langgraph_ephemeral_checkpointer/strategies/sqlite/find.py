"""What is read of threads in the tables of the SQLite savers, by key and without their state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import is_uuid6
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.strategies.base import Page
from langgraph_ephemeral_checkpointer.strategies.payload import time_of_checkpoint
from langgraph_ephemeral_checkpointer.strategies.rows import (
    LIKE_UUID6,
    Cutoffs,
    ThreadRow,
    facts_of,
    is_odd,
    times_by_thread,
    waiting_threads,
)
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import SqlPlan, in_parts, select
from langgraph_ephemeral_checkpointer.strategies.sqlite.birth import sqlite_birth_of

_HAS_TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'checkpoints'"

# An upper-case id may lie between two others in the order of text, not of time. What else is no
# lower-case UUID of version 6 is told by a look at the ids themselves, before a thread is deleted:
# GLOB would tell it here, at seven times the cost of LIKE on every row of a scan.
_ODD = f"(checkpoint_id NOT LIKE '{LIKE_UUID6}' OR checkpoint_id <> lower(checkpoint_id))"

_AGGREGATES = """
    SELECT thread_id, min(checkpoint_id), max(checkpoint_id), count(*),
           sum(checkpoint_ns = ''), {odd}, {birth}
    FROM checkpoints
"""
_BIRTH = sqlite_birth_of("checkpoints.thread_id")

ALL_IDS = f"""
    CASE WHEN max(length(checkpoint_id)) = {len(LIKE_UUID6)} THEN group_concat(checkpoint_id) END
"""
"""An aggregate for :func:`are_uuid6`: none is so long that it could hold a comma and be two."""

_DIGITS = str.maketrans("0123456789abcdef", "_" * 16)
_OUTLINE = LIKE_UUID6.replace("6", "_") + ","
_VERSION = LIKE_UUID6.index("6")

# A page follows the primary key, so it costs what it returns, wherever it begins.
_PAGED = "{what} WHERE thread_id > ? GROUP BY thread_id ORDER BY thread_id LIMIT ?"
_PAGED_FROM_START = "{what} GROUP BY thread_id ORDER BY thread_id LIMIT ?"

# For the idle rule alone the greatest id is enough of a thread that lives: the other
# aggregates cost several times as much.
_QUIET = "SELECT thread_id, max(checkpoint_id) FROM checkpoints"

_SCANNED = _AGGREGATES.format(odd=f"sum({_ODD})", birth=_BIRTH)
_ROWS_OF = f"""
    {_AGGREGATES.format(odd=ALL_IDS, birth=_BIRTH)}
    WHERE thread_id IN ({{marks}}) GROUP BY thread_id
"""

_HEX = "[0-9a-fA-F]"
_TIMED = "-".join((_HEX * 8, _HEX * 4, "[67]" + _HEX * 3, _HEX * 4, _HEX * 12))

# A checkpoint whose id holds its time is not read further.
_ODD_ROWS_OF = f"""
    SELECT thread_id, checkpoint_id, type,
           CASE WHEN checkpoint_id NOT GLOB '{_TIMED}' THEN checkpoint END
    FROM checkpoints WHERE thread_id IN ({{marks}})
"""

_HEAD_WRITES_OF = """
    SELECT w.thread_id, w.task_id, w.channel
    FROM (
        SELECT thread_id, max(checkpoint_id) AS checkpoint_id
        FROM checkpoints WHERE checkpoint_ns = '' AND thread_id IN ({marks}) GROUP BY thread_id
    ) AS head
    CROSS JOIN writes AS w
    WHERE w.thread_id = head.thread_id AND w.checkpoint_ns = ''
      AND w.checkpoint_id = head.checkpoint_id
"""


def scan(wanted: Wanted | None, after: str | None, limit: int) -> SqlPlan[Page]:
    """Read the next page of threads, behind a thread id."""
    if (yield Statement(_HAS_TABLES))[0][0] == 0:
        return Page((), 0)  # never set up: the saver makes its tables at first use
    cutoffs = None if wanted is None else Cutoffs.of(wanted)
    unread: list[tuple[str, str]] = []
    if cutoffs is not None and cutoffs.only_newest:
        page = yield _page(_QUIET, after, limit)
        quiet = []
        for thread_id, last_id in page:
            if _is_old(last_id, cutoffs.unread_before):
                unread.append((thread_id, last_id))
            elif cutoffs.may_be_quiet(last_id):
                quiet.append(thread_id)
        threads = yield from read_threads(quiet)
    else:
        page = yield _page(_SCANNED, after, limit)
        rows = [ThreadRow(*row) for row in page]
        matching = [row for row in rows if cutoffs is None or cutoffs.matches(row)]
        odd = yield from odd_times(matching)
        threads = [facts_of(row, odd) for row in matching]
    return Page(threads, len(page), page[-1][0] if len(page) == limit else None, unread=unread)


def read_threads(ids: Sequence[str]) -> SqlPlan[list[ThreadFacts]]:
    """Read the facts of some threads."""
    rows = yield from read_rows(ids)
    odd = yield from odd_times(rows.values())
    waiting = yield from find_interrupted(ids)
    return [facts_of(row, odd, thread_id in waiting) for thread_id, row in rows.items()]


def read_rows(ids: Sequence[str]) -> SqlPlan[dict[str, ThreadRow]]:
    """Read some threads in full, and each of their ids."""
    rows = {}
    for part, marks in in_parts(ids):
        for one, first, last, count, roots, found, birth in (
            yield Statement(_ROWS_OF.format(marks=marks), part)
        ):
            odd = int(not are_uuid6(found))
            rows[one] = ThreadRow(one, first, last, count, roots, odd, birth)
    return rows


def are_uuid6(found: str | None) -> bool:
    """Say whether every checkpoint id of a thread is a lower-case UUID of version 6.

    As :func:`.is_uuid6` says of each, in a fraction of the time.

    Args:
        found: What :data:`ALL_IDS` gave; of several threads with commas between.
    """
    if not found or "_" in found:
        return False
    count = (len(found) + 1) // len(_OUTLINE)
    is_outlined = f"{found},".translate(_DIGITS) == _OUTLINE * count
    return is_outlined and found[_VERSION :: len(_OUTLINE)] == "6" * count


def odd_times(rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, list[float | None]]]:
    """Read the time of each checkpoint of those threads whose two ids do not tell it."""
    found = yield from select(_ODD_ROWS_OF, (row.thread_id for row in rows if is_odd(row)))
    return times_by_thread((thread_id, time_of_checkpoint(*rest)) for thread_id, *rest in found)


def find_interrupted(ids: Sequence[str]) -> SqlPlan[set[str]]:
    """Return which threads wait for a human answer."""
    return waiting_threads((yield from select(_HEAD_WRITES_OF, ids)))


def _page(what: str, after: str | None, limit: int) -> Statement:
    if after is None:
        return Statement(_PAGED_FROM_START.format(what=what), (limit,))
    return Statement(_PAGED.format(what=what), (after, limit))


def _is_old(last_id: str, before: str | None) -> bool:
    return before is not None and last_id < before and is_uuid6(last_id)
