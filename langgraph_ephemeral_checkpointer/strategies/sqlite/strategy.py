"""SqliteSaver and AsyncSqliteSaver: one text of statements, two ways to run them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import is_uuid6
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan, Statement
from langgraph_ephemeral_checkpointer.errors import StorageError
from langgraph_ephemeral_checkpointer.langgraph_names import INTERRUPT
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import (
    Outcome,
    Page,
    PruneOutcome,
    Recheck,
    Size,
    Strategy,
)
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    FindsOrphans,
    HasTrash,
    LeavesUnread,
    MeasuresSizes,
    Prunes,
    PurgesMessages,
)
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.payload import time_of_checkpoint
from langgraph_ephemeral_checkpointer.strategies.rows import (
    LIKE_UUID6,
    Cutoffs,
    ThreadRow,
    facts_of,
    id_surely_before,
    is_odd,
    sizes_of,
    spared,
    times_by_thread,
    waiting_threads,
)
from langgraph_ephemeral_checkpointer.strategies.sqlite import orphans as sqlite_orphans
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import aread, awrite, read, write
from langgraph_ephemeral_checkpointer.strategies.sqlite.birth import sqlite_birth_of
from langgraph_ephemeral_checkpointer.strategies.sqlite.prune import prune_sqlite
from langgraph_ephemeral_checkpointer.strategies.sqlite.purge import SqliteStorage
from langgraph_ephemeral_checkpointer.strategies.sqlite.trash import SqliteBin, SqliteUndo
from langgraph_ephemeral_checkpointer.strategies.trash import Discard

T = TypeVar("T")
SqlPlan = Plan[Statement, T]

# SQLite takes at most so many "?" in one statement: 999 on old builds, and a connection may
# be set lower. (json_each would need only one, but cuts an id at a NUL.)
_VARIABLES = 100

_TABLES = ("checkpoints", "writes")

_HAS_TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'checkpoints'"

# An upper-case id may lie between two others in the order of text, not of time. (GLOB would
# tell everything that is no hexadecimal, at seven times the cost of LIKE on every row.)
_ODD = f"(checkpoint_id NOT LIKE '{LIKE_UUID6}' OR checkpoint_id <> lower(checkpoint_id))"

_AGGREGATES = f"""
    SELECT thread_id, min(checkpoint_id), max(checkpoint_id), count(*),
           sum(checkpoint_ns = ''), sum({_ODD}), {sqlite_birth_of("checkpoints.thread_id")}
    FROM checkpoints
"""

# A page follows the primary key, so it costs what it returns, wherever it begins.
_PAGED = "{what} WHERE thread_id > ? GROUP BY thread_id ORDER BY thread_id LIMIT ?"
_PAGED_FROM_START = "{what} GROUP BY thread_id ORDER BY thread_id LIMIT ?"

# For the idle rule alone the greatest id is enough of a thread that lives: the other
# aggregates cost several times as much.
_QUIET = "SELECT thread_id, min(checkpoint_id), max(checkpoint_id) FROM checkpoints"

_ROWS_OF = f"{_AGGREGATES} WHERE thread_id IN ({{ids}}) GROUP BY thread_id"

_HEX = "[0-9a-fA-F]"
_TIMED = "-".join((_HEX * 8, _HEX * 4, "[67]" + _HEX * 3, _HEX * 4, _HEX * 12))

# A checkpoint whose id holds its time is not read further.
_ODD_ROWS_OF = f"""
    SELECT thread_id, checkpoint_id, type,
           CASE WHEN checkpoint_id NOT GLOB '{_TIMED}' THEN checkpoint END
    FROM checkpoints WHERE thread_id IN ({{ids}})
"""

_HEAD_WRITES_OF = """
    SELECT w.thread_id, w.task_id, w.channel
    FROM (
        SELECT thread_id, max(checkpoint_id) AS checkpoint_id
        FROM checkpoints WHERE checkpoint_ns = '' AND thread_id IN ({ids}) GROUP BY thread_id
    ) AS head
    CROSS JOIN writes AS w
    WHERE w.thread_id = head.thread_id AND w.checkpoint_ns = ''
      AND w.checkpoint_id = head.checkpoint_id
"""

# The length of a BLOB is in the header of its row: the value itself is not read.
_SIZES_OF = {
    "checkpoints": "coalesce(length(checkpoint), 0) + coalesce(length(metadata), 0)",
    "writes": "coalesce(length(value), 0)",
}
_SIZE_OF = """
    SELECT thread_id, count(*), sum({size}) FROM {table}
    WHERE thread_id IN ({{ids}}) GROUP BY thread_id
"""

# The threads of which it is not certain that they are there, that every checkpoint is older than
# the cut-off, and that no interrupt is on the head: as a rule none. It costs a third of the
# aggregates and of the look at the writes.
_UNSURE = f"""
    SELECT t.column1 FROM (VALUES {{ids}}) AS t
    WHERE (
        SELECT EXISTS (
            SELECT 1 FROM writes AS w
            WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = ''
              AND w.checkpoint_id = c.checkpoint_id AND w.channel = '{INTERRUPT}')
        FROM checkpoints AS c WHERE c.thread_id = t.column1 AND c.checkpoint_ns = ''
        ORDER BY c.checkpoint_id DESC LIMIT 1
    ) IS NOT 0
    OR EXISTS (
        SELECT 1 FROM checkpoints
        WHERE thread_id = t.column1 AND (checkpoint_id >= ? OR {_ODD}))
"""

_DELETE = "DELETE FROM {table} WHERE thread_id IN ({ids})"

_TRIGGERS = """
    SELECT 1 FROM sqlite_master WHERE type = 'trigger'
    UNION ALL SELECT 1 FROM sqlite_temp_master WHERE type = 'trigger' LIMIT 1
"""
_LEFT = "SELECT 1 FROM {table} WHERE thread_id IN ({ids}) LIMIT 1"


def _by_ids(sql: str, ids: Iterable[str], **names: str) -> Iterator[Statement]:
    """Make the statements that run ``sql`` over all ids, each within the variable limit."""
    rest = iter(ids)
    while chunk := tuple(islice(rest, _VARIABLES)):
        marks = ", ".join("?" * len(chunk))
        yield Statement(sql.format(ids=marks, **names), chunk)


def _select(sql: str, ids: Iterable[str]) -> SqlPlan[list[tuple[Any, ...]]]:
    rows = []
    for statement in _by_ids(sql, ids):
        rows += yield statement
    return rows


def _odd_times(rows: Sequence[ThreadRow]) -> SqlPlan[dict[str, list[float | None]]]:
    found = yield from _select(_ODD_ROWS_OF, [row.thread_id for row in rows if is_odd(row)])
    return times_by_thread((thread_id, time_of_checkpoint(*rest)) for thread_id, *rest in found)


def _scan(wanted: Wanted | None, after: str | None, limit: int) -> SqlPlan[Page]:
    if (yield Statement(_HAS_TABLES))[0][0] == 0:
        return Page((), 0)  # never set up: the saver makes its tables at first use
    cutoffs = None if wanted is None else Cutoffs.of(wanted)
    unread: list[tuple[str, str]] = []
    if cutoffs is not None and cutoffs.only_newest:
        page = yield _page(_QUIET, after, limit)
        quiet = []
        for thread_id, first_id, last_id in page:
            if _is_old(first_id, last_id, cutoffs.unread_before):
                unread.append((thread_id, last_id))
            elif cutoffs.may_be_quiet(last_id):
                quiet.append(thread_id)
        threads = yield from _read_threads(quiet)
    else:
        page = yield _page(_AGGREGATES, after, limit)
        rows = [ThreadRow(*row) for row in page]
        matching = [row for row in rows if cutoffs is None or cutoffs.matches(row)]
        odd = yield from _odd_times(matching)
        threads = [facts_of(row, odd) for row in matching]
    return Page(threads, len(page), page[-1][0] if len(page) == limit else None, unread=unread)


def _is_old(first_id: str, last_id: str, before: str | None) -> bool:
    return before is not None and last_id < before and is_uuid6(last_id) and is_uuid6(first_id)


def _read_threads(ids: Sequence[str]) -> SqlPlan[list[ThreadFacts]]:
    rows = [ThreadRow(*row) for row in (yield from _select(_ROWS_OF, ids))]
    odd = yield from _odd_times(rows)
    waiting = yield from _find_interrupted(ids)
    return [facts_of(row, odd, row.thread_id in waiting) for row in rows]


def _page(what: str, after: str | None, limit: int) -> Statement:
    if after is None:
        return Statement(_PAGED_FROM_START.format(what=what), (limit,))
    return Statement(_PAGED.format(what=what), (after, limit))


def _find_interrupted(ids: Sequence[str]) -> SqlPlan[set[str]]:
    return waiting_threads((yield from _select(_HEAD_WRITES_OF, ids)))


def _measure(ids: Sequence[str]) -> SqlPlan[dict[str, Size]]:
    found = {}
    for table, size in _SIZES_OF.items():
        found[table] = yield from _select(_SIZE_OF.format(table=table, size=size), ids)
    return sizes_of(found)


def _delete(
    ids: Sequence[str], recheck: Recheck | None, discard: Discard | None = None
) -> SqlPlan[dict[str, Outcome]]:
    trash = None if discard is None else SqliteBin(discard)
    if trash is not None:
        yield from trash.enter()
    rows = {row[0]: ThreadRow(*row) for row in (yield from _select(_ROWS_OF, ids))}
    outcomes = dict.fromkeys(ids, Outcome(KeepReason.GONE))
    if recheck is not None:
        odd = yield from _odd_times(list(rows.values()))
        waiting = yield from _find_interrupted(list(rows))
        for thread_id in ids:
            row = rows.get(thread_id)
            facts = row and facts_of(row, odd, thread_id in waiting)
            outcomes[thread_id] = Outcome(recheck(thread_id, facts))
    else:
        outcomes.update(dict.fromkeys(rows, Outcome()))
    if discard is not None and trash is not None:
        restored = yield from trash.spare(list(rows))
        outcomes.update(spared(discard, rows.values(), restored))
    doomed = [thread_id for thread_id, outcome in outcomes.items() if outcome.kept is None]
    if trash is not None:
        yield from trash.take(doomed)
    yield from _erase(doomed)
    return outcomes


def _delete_unread(ids: Sequence[str], before: float) -> SqlPlan[list[str]]:
    cutoff = id_surely_before(before)
    unsure: set[str] = set()
    rest = iter(ids)
    while chunk := tuple(islice(rest, _VARIABLES - 1)):
        marks = ", ".join(["(?)"] * len(chunk))
        rows = yield Statement(_UNSURE.format(ids=marks), (*chunk, cutoff))
        unsure.update(row[0] for row in rows)
    doomed = [thread_id for thread_id in ids if thread_id not in unsure]
    yield from _erase(doomed)
    return doomed


def _erase(ids: Sequence[str]) -> SqlPlan[None]:
    for table in _TABLES:
        for statement in _by_ids(_DELETE, ids, table=table):
            yield Statement(statement.sql, statement.params, fetch=False)
    # Nobody else writes meanwhile, so only a trigger can have held rows back without an error.
    if not (yield Statement(_TRIGGERS)):
        return
    for table in _TABLES:
        for statement in _by_ids(_LEFT, ids, table=table):
            if (yield statement):
                raise StorageError(
                    "SQLite did not delete every row; look for a trigger with RAISE(IGNORE) on "
                    f"the table {table}"
                )


class SqliteBase(
    Strategy, Prunes, HasTrash, FindsOrphans, PurgesMessages, MeasuresSizes, LeavesUnread
):
    """What both colours do; each runs plans on its own kind of connection."""

    undo = SqliteUndo()

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Maybe[Page]:
        """Read the next page of threads; the cursor is the last thread id."""
        return self._read(_scan(wanted, after, limit))

    def find_interrupted(self, thread_ids: Sequence[str]) -> Maybe[Collection[str]]:
        """Look at the writes of each thread's newest root checkpoint."""
        return self._read(_find_interrupted(thread_ids))

    def measure_threads(self, thread_ids: Sequence[str]) -> Maybe[Mapping[str, Size]]:
        """Add up the lengths of what is stored."""
        return self._read(_measure(thread_ids))

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Maybe[Mapping[str, Outcome]]:
        """Delete threads in one immediate transaction, which no other writer can enter."""
        return self._write(_delete(thread_ids, recheck))

    def delete_unread(self, thread_ids: Sequence[str], before: float) -> Maybe[Collection[str]]:
        """Delete threads in one immediate transaction that asks one question about all."""
        return self._write(_delete_unread(thread_ids, before))

    def read_threads(self, thread_ids: Sequence[str]) -> Maybe[Sequence[ThreadFacts]]:
        """Read threads in full."""
        return self._read(_read_threads(thread_ids))

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Maybe[Mapping[str, PruneOutcome]]:
        """Trim threads in one immediate transaction."""
        plan = prune_sqlite(thread_ids, keep, dry_run=dry_run)
        return self._read(plan) if dry_run else self._write(plan)

    def discard_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None, discard: Discard
    ) -> Maybe[Mapping[str, Outcome]]:
        """Take threads away like :meth:`delete_threads`, by way of the trash."""
        return self._write(_delete(thread_ids, recheck, discard))

    def find_orphans(self, before: float, now: float, after: Any, limit: int) -> Maybe[OrphanPage]:
        """Look through the next part of the tables."""
        return self._read(sqlite_orphans.find(before, after, limit))

    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> Maybe[int]:
        """Delete in one transaction what is still an orphan."""
        return self._write(sqlite_orphans.delete(orphans))

    def query(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan that only reads."""
        return self._read(plan)

    def transact(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan in one immediate transaction."""
        return self._write(plan)

    def message_storage(self) -> SqliteStorage:
        """Return how a purge reads and writes the tables."""
        return SqliteStorage(self)

    @abstractmethod
    def _read(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan that only reads."""

    @abstractmethod
    def _write(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan in one immediate transaction."""


class SqliteStrategy(SqliteBase):
    """Sweep a ``SqliteSaver``, on its connection and under its lock."""

    def set_up(self) -> None:
        """Have the saver make its tables, as it does at first use."""
        with self.checkpointer.lock:
            self.checkpointer.setup()

    def _read(self, plan: SqlPlan[T]) -> T:
        return read(self.checkpointer, plan)

    def _write(self, plan: SqlPlan[T]) -> T:
        return write(self.checkpointer, plan)


class AsyncSqliteStrategy(SqliteBase):
    """Sweep an ``AsyncSqliteSaver``, on its connection and under its lock."""

    runs_sync = False
    blocks = False

    async def set_up(self) -> None:
        """Have the saver make its tables, as it does at first use."""
        await self.checkpointer.setup()

    async def _read(self, plan: SqlPlan[T]) -> T:
        return await aread(self.checkpointer, plan)

    async def _write(self, plan: SqlPlan[T]) -> T:
        return await awrite(self.checkpointer, plan)
