"""The trash of the Postgres savers: what is done with it. :mod:`.trash_tables` says what it is."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from itertools import starmap
from typing import Any

from langgraph_ephemeral_checkpointer.drivers.text_arrays import Ids, text_array
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.errors import (
    NotSetUpError,
    StorageUnusableError,
    ThreadLivesAgainError,
    TrashNotEmptyError,
)
from langgraph_ephemeral_checkpointer.strategies.base import Outcome
from langgraph_ephemeral_checkpointer.strategies.postgres.delete import (
    Erase,
    Removal,
    Taken,
    any_left,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import TABLES
from langgraph_ephemeral_checkpointer.strategies.postgres.trash_tables import (
    FIND_LAYOUT,
    Layout,
)
from langgraph_ephemeral_checkpointer.strategies.postgres.trash_trial import try_out
from langgraph_ephemeral_checkpointer.strategies.postgres.visibility import NO_TABLES
from langgraph_ephemeral_checkpointer.strategies.rows import ThreadRow, spared
from langgraph_ephemeral_checkpointer.strategies.trash import (
    PURGE_BATCH,
    Discard,
    SqlPlan,
    TrashedThread,
    Undo,
    choose,
)

# One at a time: CREATE ... IF NOT EXISTS of two sessions at once is an error. The saver's
# tables are locked only for the moment of (un)hooking the triggers, and not waited for long,
# since saves queue up behind whoever waits.
_DDL_GUARD = (
    "SELECT set_config('lock_timeout', '5s', true), "
    "pg_advisory_xact_lock(hashtextextended('langgraph_ephemeral_checkpointer.undo', 0))"
)
_RESTORE_WAIT = "SELECT set_config('lock_timeout', '5s', true)"

_ENTRY = "thread_id, deleted_at, reason, row_count, keep_until, generation"


class PostgresUndo(Undo):
    """The trash beside the tables of a ``PostgresSaver`` or an ``AsyncPostgresSaver``."""

    def ddl(self) -> SqlPlan[list[str]]:
        """Give the statements for the schema where the search path finds the saver's tables."""
        layout = yield from _layout()
        return layout.ddl()

    def setup(self) -> SqlPlan[None]:
        """Create the trash in the saver's schema, once for every process that asks."""
        yield Statement(_DDL_GUARD)
        layout = yield from _layout()
        _refuse_unkept(layout)
        if layout.missing is None:
            return
        for statement in layout.create():
            yield Statement(statement, fetch=False)
        yield from try_out((yield from _ready()))

    def teardown(self, *, force: bool) -> SqlPlan[None]:
        """Unhook the triggers first, so that no thread comes in while the rest is removed."""
        yield Statement(_DDL_GUARD)
        layout = yield from _layout()
        for statement in layout.drop_triggers():
            yield Statement(statement, fetch=False)
        if not force and layout.has_trash:
            count = (yield Statement(layout.fill("SELECT count(*) FROM {trash}")))[0][0]
            if count:
                raise TrashNotEmptyError(
                    f"the trash still holds {count} threads, which would be lost; restore() or "
                    "empty_trash() first, or call teardown(force=True)"
                )
        for statement in layout.drop_rest():
            yield Statement(statement, fetch=False)

    def check(self) -> SqlPlan[None]:
        """Compare the catalog with what the saver's tables need now."""
        _refuse_unkept((yield from _ready()))

    def entries(self, thread_id: str | None = None) -> SqlPlan[list[TrashedThread]]:
        """Read the entries."""
        layout = yield from _ready()
        return (yield from self._entries(layout, thread_id))

    def restore(self, thread_id: str, generation: int | None, now: float) -> SqlPlan[TrashedThread]:
        """Wait for saves of the thread, then move its rows back."""
        yield Statement(_RESTORE_WAIT)
        layout = yield from _ready()
        yield Statement(
            layout.fill("SELECT pg_advisory_xact_lock({key})"), {"thread_id": thread_id}
        )
        entry = choose((yield from self._entries(layout, thread_id)), thread_id, generation)
        alive = yield Statement(
            layout.fill("SELECT 1 FROM {checkpoints} WHERE thread_id = %s LIMIT 1"), (thread_id,)
        )
        if alive:
            raise ThreadLivesAgainError(
                f"thread {thread_id!r} has checkpoints again, so it was not restored over them; "
                "delete the new one first. The trash keeps the old one as it is"
            )
        yield Statement(layout.fill("SELECT {restore}(ARRAY[%s::bigint])"), (entry.generation,))
        yield Statement(
            layout.fill(
                "UPDATE {restored} SET restored_at = %s, keep_until = %s WHERE thread_id = %s"
            ),
            (now, now + entry.grace_seconds, thread_id),
            fetch=False,
        )
        return entry

    def purge(self, now: float | None, after: int) -> SqlPlan[tuple[int, int | None]]:
        """Empty generations in order, passing by those that a save or a restore holds now."""
        layout = yield from _ready()
        found = yield Statement(
            layout.fill(
                "SELECT generation, thread_id FROM {trash} "
                "WHERE generation > %(after)s "
                "AND (%(now)s::float8 IS NULL OR keep_until <= %(now)s) "
                "ORDER BY generation LIMIT %(limit)s"
            ),
            {"after": after, "now": now, "limit": PURGE_BATCH},
        )
        free = yield from _enter(layout, Ids(thread_id for _, thread_id in found))
        doomed = [generation for generation, thread_id in found if thread_id in free]
        gone = (yield from _erase(layout, "generation = ANY(%s)", doomed)) if doomed else 0
        return gone, found[-1][0] if len(found) == PURGE_BATCH else None

    def protected(self, thread_ids: Sequence[str], now: float) -> SqlPlan[Collection[str]]:
        """Look the notes up."""
        layout = yield from _ready()
        return (yield from _protected(layout, Ids(thread_ids), now))

    def note_restored(self, now: float, keep_until: float) -> SqlPlan[None]:
        """Stamp and clear notes, passing by those that a save is writing now."""
        layout = yield from _ready()
        yield Statement(
            layout.fill("DELETE FROM {restored} WHERE keep_until <= %s"), (now,), fetch=False
        )
        yield Statement(
            layout.fill(
                "UPDATE {restored} SET restored_at = %s, keep_until = %s WHERE thread_id IN "
                "(SELECT thread_id FROM {restored} WHERE keep_until IS NULL "
                "FOR UPDATE SKIP LOCKED)"
            ),
            (now, keep_until),
            fetch=False,
        )

    def _entries(self, layout: Layout, thread_id: str | None) -> SqlPlan[list[TrashedThread]]:
        rows = yield Statement(
            layout.fill(
                f"SELECT {_ENTRY} FROM {{trash}} "
                "WHERE %(id)s::text IS NULL OR thread_id = %(id)s ORDER BY generation"
            ),
            {"id": thread_id},
        )
        return list(starmap(TrashedThread, rows))


def removal_of(discard: Discard) -> Removal:
    """Return how threads go by way of the trash: into it, or away for good."""
    kind = EraseEverywhere if discard.grace_seconds is None else MoveToTrash
    return kind(discard)


class _ByTheTrash(Removal):
    """What two removals share: the trash is there, and no save holds the threads.

    Args:
        discard: When and why.
    """

    def __init__(self, discard: Discard) -> None:
        self._discard = discard
        self._layout: Layout

    def enter(self, ids: Ids) -> SqlPlan[Container[str]]:
        """Take the threads that no save holds, until the transaction ends.

        The locks are tried in a statement of their own, since the next statement's snapshot
        must come after them: then it sees everything that those saves committed.
        """
        self._layout = yield from self._find()
        return (yield from _enter(self._layout, ids))

    def _find(self) -> SqlPlan[Layout]:
        return (yield from _ready())


class EraseEverywhere(_ByTheTrash):
    """Threads go for good, and with them what the trash has of them already."""

    def spare(self, rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, Outcome]]:
        """Return none: a grace period that is not over does not keep what is to be erased."""
        yield from ()
        return {}

    def take(self, ids: Ids) -> SqlPlan[Taken]:
        """Empty the trash of the threads, then delete their rows."""
        yield from _erase(self._layout, "thread_id = ANY(%s::text[])", ids.array)
        return (yield from Erase().take(ids))


class MoveToTrash(_ByTheTrash):
    """Threads go into the trash, out of which a late save brings them back."""

    def _find(self) -> SqlPlan[Layout]:
        layout = yield from _ready()
        _refuse_unkept(layout)
        return layout

    def spare(self, rows: Iterable[ThreadRow]) -> SqlPlan[dict[str, Outcome]]:
        """Return those that came back less than a grace period ago, and runs that only begin."""
        rows = list(rows)
        ids = Ids(row.thread_id for row in rows)
        restored = yield from _protected(self._layout, ids, self._discard.now)
        return spared(self._discard, rows, restored)

    def take(self, ids: Ids) -> SqlPlan[Taken]:
        """Move every row, each table in one statement, and last what others may refer to.

        So what is deleted is what is kept, whatever commits beside it.
        """
        layout, discard = self._layout, self._discard
        made = yield Statement(
            layout.fill(
                "INSERT INTO {trash} (thread_id, reason, deleted_at, keep_until) "
                "SELECT *, %s::float8, %s::float8 FROM unnest(%s::text[], %s::text[]) "
                "RETURNING generation, thread_id"
            ),
            (
                discard.now,
                discard.keep_until,
                ids.array,
                text_array(discard.reasons[one] for one in ids),
            ),
        )
        generations, owners = [row[0] for row in made], Ids(row[1] for row in made)
        total = dict.fromkeys(owners, 0)
        moved = {}
        for table in reversed(TABLES):
            whose = (ids.array, generations, owners.array)
            moved[table] = yield Statement(layout.move(table), whose)
            for thread_id, count, _ in moved[table]:
                total[thread_id] += count
        yield Statement(
            layout.fill(
                "UPDATE {trash} AS t SET row_count = n.row_count "
                "FROM unnest(%s::bigint[], %s::bigint[]) AS n (generation, row_count) "
                "WHERE t.generation = n.generation"
            ),
            (generations, list(total.values())),
            fetch=False,
        )
        # Last, since other sweeps that move threads wait here until this one commits.
        yield Statement(layout.fill("SELECT {trash_grew}(%s::bigint[])"), (generations,))
        checkpoints = moved["checkpoints"]
        return Taken(
            sum(row[1] for row in checkpoints),
            sum(row[2] for row in checkpoints),
            questions=None,
            left=(yield from any_left(ids)),
        )


def _layout() -> SqlPlan[Layout]:
    rows = yield Statement(FIND_LAYOUT)
    if len(rows) != len(TABLES):
        raise StorageUnusableError(NO_TABLES)
    return Layout.of(rows)


def _ready() -> SqlPlan[Layout]:
    layout = yield from _layout()
    if layout.missing is not None:
        raise NotSetUpError(
            f"the trash of the checkpoint tables in schema {layout.schema!r} is not set up "
            f"({layout.missing}); call sweeper.setup() once (on the command line: setup), as "
            "the owner of those tables. Nothing was deleted"
        )
    return layout


def _refuse_unkept(layout: Layout) -> None:
    """Refuse a table of somebody else's whose rows would change with the saver's.

    Raises:
        StorageUnusableError: There is one.
    """
    if layout.unkept:
        raise StorageUnusableError(
            f"the foreign key {layout.unkept} deletes or changes rows there when a thread goes, "
            "and the trash could not put those back. Nothing was deleted; make the key ON DELETE "
            "NO ACTION, or sweep without grace_seconds"
        )


def _enter(layout: Layout, ids: Ids) -> SqlPlan[set[str]]:
    """Try the lock of each thread; what is taken is held until the transaction ends."""
    if not ids:
        return set()
    rows = yield Statement(
        layout.fill(
            "SELECT thread_id FROM unnest(%(ids)s::text[]) AS wanted (thread_id) "
            "WHERE pg_try_advisory_xact_lock({key_of_row})"
        ),
        {"ids": ids.array},
    )
    return {row[0] for row in rows}


def _erase(layout: Layout, where: str, value: Any) -> SqlPlan[int]:
    """Empty the trash of what is there; return how many generations that were."""
    gone = yield Statement(
        layout.fill(f"DELETE FROM {{trash}} WHERE {where} RETURNING generation"), (value,)
    )
    generations = [row[0] for row in gone]
    for table in TABLES:
        yield Statement(
            layout.fill("DELETE FROM {kept} WHERE generation = ANY(%s)", kept=layout.kept(table)),
            (generations,),
            fetch=False,
        )
    return len(generations)


def _protected(layout: Layout, ids: Ids, now: float) -> SqlPlan[set[str]]:
    rows = yield Statement(
        layout.fill(
            "SELECT thread_id FROM {restored} WHERE thread_id = ANY(%s::text[]) "
            "AND (keep_until IS NULL OR keep_until > %s)"
        ),
        (ids.array, now),
    )
    return {row[0] for row in rows}
