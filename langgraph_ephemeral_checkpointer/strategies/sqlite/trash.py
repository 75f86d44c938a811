"""The trash of the SQLite savers: what is done with it. :mod:`.trash_tables` says what it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import starmap

from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.errors import (
    NotSetUpError,
    StorageUnusableError,
    ThreadLivesAgainError,
    TrashNotEmptyError,
)
from langgraph_ephemeral_checkpointer.strategies.base import Outcome
from langgraph_ephemeral_checkpointer.strategies.rows import ThreadRow, spared
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import SqlPlan, in_parts, select
from langgraph_ephemeral_checkpointer.strategies.sqlite.delete import Erase, Removal
from langgraph_ephemeral_checkpointer.strategies.sqlite.trash_tables import (
    KEPT,
    LISTS,
    TABLES,
    TRIGGERS,
    Columns,
    kept_table,
    listed,
    quote,
    restore,
    triggers,
)
from langgraph_ephemeral_checkpointer.strategies.trash import (
    PURGE_BATCH,
    Discard,
    TrashedThread,
    Undo,
    choose,
)

_ENTRY = "thread_id, deleted_at, reason, row_count, keep_until, generation"
_ENTER = """
    INSERT INTO lgec_trash (thread_id, reason, deleted_at, keep_until, row_count)
    SELECT thread_id, ?, ?, ?, count(*)
        + (SELECT count(*) FROM writes AS w WHERE w.thread_id = checkpoints.thread_id)
    FROM checkpoints WHERE thread_id IN ({marks}) GROUP BY thread_id
"""
_GENERATIONS_OF = "SELECT generation FROM lgec_trash WHERE thread_id IN ({marks})"


class SqliteUndo(Undo):
    """The trash beside the tables of a ``SqliteSaver`` or an ``AsyncSqliteSaver``."""

    def ddl(self) -> SqlPlan[list[str]]:
        """Give the statements for the saver's tables as they are."""
        columns = yield from _columns(TABLES)
        _need(columns)
        return [
            *LISTS.values(),
            *(kept_table(table, columns) for table in TABLES),
            *triggers(columns).values(),
        ]

    def setup(self) -> SqlPlan[None]:
        """Create the trash in the saver's file."""
        columns = yield from _columns(TABLES)
        _need(columns)
        made = yield from _made()
        wanted = {**LISTS, **{KEPT[table]: kept_table(table, columns) for table in TABLES}}
        for name, statement in wanted.items():
            if name not in made:
                yield Statement(statement, fetch=False)
        kept = yield from _columns(KEPT.values())
        for table in TABLES:
            for column in columns[table]:
                if column not in kept[KEPT[table]]:
                    default = yield from _default(table, column)
                    yield Statement(
                        f"ALTER TABLE {KEPT[table]} ADD COLUMN {quote(column)} DEFAULT {default}",
                        fetch=False,
                    )
        for name, statement in triggers(columns).items():
            if made.get(name) != statement:
                yield Statement(f"DROP TRIGGER IF EXISTS {name}", fetch=False)
                yield Statement(statement, fetch=False)

    def teardown(self, *, force: bool) -> SqlPlan[None]:
        """Remove triggers and tables."""
        made = yield from _made()
        if not force and "lgec_trash" in made:
            count = (yield Statement("SELECT count(*) FROM lgec_trash"))[0][0]
            if count:
                raise TrashNotEmptyError(
                    f"the trash still holds {count} threads, which would be lost; restore() or "
                    "empty_trash() first, or call teardown(force=True)"
                )
        for name in TRIGGERS:
            yield Statement(f"DROP TRIGGER IF EXISTS {name}", fetch=False)
        for name in (*KEPT.values(), "lgec_restored", "lgec_trash"):
            yield Statement(f"DROP TABLE IF EXISTS {name}", fetch=False)

    def check(self) -> SqlPlan[None]:
        """Compare the schema with what the saver's tables need now."""
        yield from _ready()

    def entries(self, thread_id: str | None = None) -> SqlPlan[list[TrashedThread]]:
        """Read the entries."""
        yield from _ready()
        return (yield from self._entries(thread_id))

    def restore(self, thread_id: str, generation: int | None, now: float) -> SqlPlan[TrashedThread]:
        """Move the rows back."""
        columns = yield from _ready()
        entry = choose((yield from self._entries(thread_id)), thread_id, generation)
        if (yield Statement("SELECT 1 FROM checkpoints WHERE thread_id = ? LIMIT 1", (thread_id,))):
            raise ThreadLivesAgainError(
                f"thread {thread_id!r} has checkpoints again, so it was not restored over them; "
                "delete the new one first. The trash keeps the old one as it is"
            )
        yield Statement(
            "UPDATE lgec_trash SET restoring = 1 WHERE generation = ?",
            (entry.generation,),
            fetch=False,
        )
        for statement in restore(":thread_id", columns):
            yield Statement(statement, {"thread_id": thread_id}, fetch=False)
        yield Statement(
            "UPDATE lgec_restored SET restored_at = ?, keep_until = ? WHERE thread_id = ?",
            (now, now + entry.grace_seconds, thread_id),
            fetch=False,
        )
        return entry

    def purge(self, now: float | None, after: int) -> SqlPlan[tuple[int, int | None]]:
        """Empty generations in order."""
        yield from _ready()
        found = yield Statement(
            "SELECT generation FROM lgec_trash WHERE generation > ? "
            "AND (? IS NULL OR keep_until <= ?) ORDER BY generation LIMIT ?",
            (after, now, now, PURGE_BATCH),
        )
        yield from _erase(found)
        return len(found), found[-1][0] if len(found) == PURGE_BATCH else None

    def protected(self, thread_ids: Sequence[str], now: float) -> SqlPlan[Collection[str]]:
        """Look the notes up."""
        yield from _ready()
        return (yield from _protected(thread_ids, now))

    def note_restored(self, now: float, keep_until: float) -> SqlPlan[None]:
        """Stamp and clear notes."""
        yield from _ready()
        yield Statement("DELETE FROM lgec_restored WHERE keep_until <= ?", (now,), fetch=False)
        yield Statement(
            "UPDATE lgec_restored SET restored_at = ?, keep_until = ? WHERE keep_until IS NULL",
            (now, keep_until),
            fetch=False,
        )

    def _entries(self, thread_id: str | None) -> SqlPlan[list[TrashedThread]]:
        rows = yield Statement(
            f"SELECT {_ENTRY} FROM lgec_trash WHERE ? IS NULL OR thread_id = ? ORDER BY generation",
            (thread_id, thread_id),
        )
        return list(starmap(TrashedThread, rows))


def removal_of(discard: Discard) -> Removal:
    """Return how threads go by way of the trash: into it, or away for good."""
    return EraseEverywhere() if discard.grace_seconds is None else MoveToTrash(discard)


class EraseEverywhere(Removal):
    """Threads go for good, and with them what the trash has of them already."""

    def enter(self) -> SqlPlan[None]:
        """Make sure that the trash is there."""
        yield from _ready()

    def spare(self, rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, Outcome]]:
        """Return none: a grace period that is not over does not keep what is to be erased."""
        yield from ()
        return {}

    def take(self, ids: Sequence[str]) -> SqlPlan[None]:
        """Empty the trash of the threads, then delete their rows."""
        yield from _erase((yield from select(_GENERATIONS_OF, ids)))
        yield from Erase().take(ids)


class MoveToTrash(Removal):
    """Threads go into the trash, out of which a late save brings them back.

    Args:
        discard: When and why.
    """

    def __init__(self, discard: Discard) -> None:
        self._discard = discard
        self._columns: Columns = {}

    def enter(self) -> SqlPlan[None]:
        """Make sure that the trash is there."""
        self._columns = yield from _ready()

    def spare(self, rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, Outcome]]:
        """Return those that came back less than a grace period ago, and runs that only begin."""
        rows = list(rows)
        restored = yield from _protected([row.thread_id for row in rows], self._discard.now)
        return spared(self._discard, rows, restored)

    def take(self, ids: Sequence[str]) -> SqlPlan[None]:
        """Copy every row into the trash, then delete it."""
        last = (yield Statement("SELECT coalesce(max(generation), 0) FROM lgec_trash"))[0][0]
        by_reason: dict[str, list[str]] = defaultdict(list)
        for one in ids:
            by_reason[self._discard.reasons[one]].append(one)
        for reason, some in by_reason.items():
            entry = (reason, self._discard.now, self._discard.keep_until)
            for part, marks in in_parts(some, besides=len(entry)):
                yield Statement(_ENTER.format(marks=marks), (*entry, *part), fetch=False)
        for table in TABLES:
            columns = self._columns[table]
            yield Statement(
                f"INSERT INTO {KEPT[table]} (generation, {listed(columns)}) "
                f"SELECT t.generation, {listed(columns, 'live.')} FROM lgec_trash AS t "
                f"CROSS JOIN {table} AS live ON live.thread_id = t.thread_id "
                "WHERE t.generation > ?",
                (last,),
                fetch=False,
            )
        yield from Erase().take(ids)


def _protected(thread_ids: Sequence[str], now: float) -> SqlPlan[set[str]]:
    found: set[str] = set()
    for part, marks in in_parts(thread_ids, besides=1):
        rows = yield Statement(
            f"SELECT thread_id FROM lgec_restored WHERE thread_id IN ({marks}) "
            "AND (keep_until IS NULL OR keep_until > ?)",
            (*part, now),
        )
        found.update(row[0] for row in rows)
    return found


def _erase(found: Sequence[tuple[int]]) -> SqlPlan[None]:
    """Empty the trash of some generations, as rows of one."""
    generations = [row[0] for row in found]
    for table in (*KEPT.values(), "lgec_trash"):
        for part, marks in in_parts(generations):
            yield Statement(f"DELETE FROM {table} WHERE generation IN ({marks})", part, fetch=False)


def _made() -> SqlPlan[dict[str, str]]:
    rows = yield Statement(
        "SELECT name, sql FROM sqlite_master WHERE name LIKE 'lgec@_%' ESCAPE '@'"
    )
    return dict(rows)


def _columns(tables: Iterable[str]) -> SqlPlan[dict[str, tuple[str, ...]]]:
    found = {}
    for table in tables:
        rows = yield Statement(f"PRAGMA table_info({table})")
        found[table] = tuple(row[1] for row in rows)
    return found


def _default(table: str, column: str) -> SqlPlan[str]:
    rows = yield Statement(f"PRAGMA table_info({table})")
    return next((row[4] for row in rows if row[1] == column and row[4] is not None), "NULL")


def _need(columns: Columns) -> None:
    if not all(columns[table] for table in TABLES):
        raise StorageUnusableError(
            "the SQLite database has no checkpoint tables; call setup() of the saver once"
        )


def _ready() -> SqlPlan[Columns]:
    columns = yield from _columns(TABLES)
    made = yield from _made()
    missing = [name for name in (*LISTS, *KEPT.values()) if name not in made]
    if not missing:
        kept = yield from _columns(KEPT.values())
        missing = [
            KEPT[table] for table in TABLES if not set(columns[table]) <= set(kept[KEPT[table]])
        ]
    missing += [name for name, text in triggers(columns).items() if made.get(name) != text]
    if missing:
        raise NotSetUpError(
            "the trash of the SQLite checkpoint tables is not set up, or was made for another "
            f"version of the tables or of this package ({', '.join(missing)}); call "
            "sweeper.setup() once (on the command line: setup). Nothing was deleted"
        )
    return columns
