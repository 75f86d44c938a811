"""PostgresSaver and AsyncPostgresSaver: one text of statements, two ways to run them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection
from psycopg.errors import LockNotAvailable

from langgraph_ephemeral_checkpointer.birth import postgres_birth
from langgraph_ephemeral_checkpointer.checkpoint_ids import time_of_id, time_of_ts
from langgraph_ephemeral_checkpointer.coordination import Step, SweepLock
from langgraph_ephemeral_checkpointer.errors import StorageUnavailableError, ThreadMovedError
from langgraph_ephemeral_checkpointer.expiry import Wanted
from langgraph_ephemeral_checkpointer.orphans import Orphan, OrphanPage
from langgraph_ephemeral_checkpointer.orphans import postgres as postgres_orphans
from langgraph_ephemeral_checkpointer.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.pruning.outcome import PruneOutcome
from langgraph_ephemeral_checkpointer.pruning.postgres import SNAPSHOT, prune_postgres
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import (
    Maybe,
    Outcome,
    Page,
    Recheck,
    Size,
    Strategy,
)
from langgraph_ephemeral_checkpointer.strategies.postgres_access import arun, run, text_array
from langgraph_ephemeral_checkpointer.strategies.postgres_lock import aperform, perform
from langgraph_ephemeral_checkpointer.strategies.sql import (
    LIKE_UUID6,
    Cutoffs,
    ThreadRow,
    facts_of,
    is_odd,
    sizes_of,
    spared,
    times_by_thread,
    waiting_threads,
)
from langgraph_ephemeral_checkpointer.trash.model import Discard
from langgraph_ephemeral_checkpointer.trash.postgres import PostgresBin, PostgresUndo

T = TypeVar("T")
SqlPlan = Plan[Statement, T]

# Shorter than deadlock_timeout (1 s by default): a batch gives way before the server would
# have to choose a victim, which might be the graph.
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', '500ms', true)"

# What the first delete would take. Asked for first, it tells a table that somebody has locked as
# a whole, on which every thread would fail after its own wait, from a thread with a locked row.
_LOCK_TABLES = "LOCK TABLE checkpoints, checkpoint_blobs, checkpoint_writes IN ROW EXCLUSIVE MODE"

# An id that is no lower-case hexadecimal may lie between two others in the order of text,
# not of time. (One regular expression for all of it costs five times as much on every row.)
_IS_ODD = f"({{id}} NOT LIKE '{LIKE_UUID6}' OR {{id}} ~ '[^0-9a-f-]')"
_ODD = _IS_ODD.format(id="checkpoint_id")

_AGGREGATES = f"""
    thread_id, min(checkpoint_id) AS first_id, max(checkpoint_id) AS last_id,
    count(*) AS checkpoints,
    count(*) FILTER (WHERE checkpoint_ns = '') AS roots,
    count(*) FILTER (WHERE {_ODD}) AS odd_ids
"""

# What pruning noted of a thread's birth stands with its oldest root checkpoint. It is looked
# up only where it matters: it is not in the index that the aggregates come from.
_BIRTH = """
    (
        SELECT {birth} FROM checkpoints AS oldest
        WHERE oldest.thread_id = threads.thread_id AND oldest.checkpoint_ns = ''
        ORDER BY oldest.checkpoint_id LIMIT 1
    )
""".format(birth=postgres_birth("oldest.type"))

# A page follows the primary key, so it costs what it looks at, wherever it begins. Only
# the threads that matter are sent; the last row tells where the page ends.
_PAGE = f"""
    WITH page AS MATERIALIZED (
        SELECT {_AGGREGATES} FROM checkpoints
        WHERE %(after)s::text IS NULL OR thread_id > %(after)s
        GROUP BY thread_id ORDER BY thread_id LIMIT %(limit)s
    )
    SELECT * FROM (
        SELECT *, CASE WHEN %(births)s THEN {_BIRTH} END AS birth FROM page AS threads
    ) AS threads
    WHERE %(all)s OR odd_ids > 0
       OR last_id < %(newest_before)s OR first_id < %(born_before)s
       OR roots > %(more_than)s OR birth IS NOT NULL
    UNION ALL
    SELECT max(thread_id), NULL, NULL, count(*), NULL, NULL, NULL FROM page
"""

# For the idle rule alone the greatest id is enough of a thread that lives: each aggregate
# more costs half as much again. What may be expired is then looked at in full.
_QUIET_PAGE = f"""
    WITH page AS MATERIALIZED (
        SELECT thread_id, max(checkpoint_id) AS last_id
        FROM checkpoints
        WHERE %(after)s::text IS NULL OR thread_id > %(after)s
        GROUP BY thread_id ORDER BY thread_id LIMIT %(limit)s
    )
    SELECT thread_id, NULL FROM page
    WHERE last_id < %(newest_before)s OR {_IS_ODD.format(id="last_id")}
    UNION ALL
    SELECT max(thread_id), count(*) FROM page
"""

# The last column is the head, at which interrupts stand.
_ROWS_OF = f"""
    SELECT {_AGGREGATES}, max(checkpoint_id) FILTER (WHERE checkpoint_ns = '') AS head
    FROM checkpoints WHERE thread_id = ANY(%s::text[]) GROUP BY thread_id
"""

_TIMED = "^[0-9a-f]{8}-[0-9a-f]{4}-[67][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$"

# A checkpoint whose id holds its time is not read further.
_ODD_ROWS_OF = f"""
    SELECT thread_id, checkpoint_id,
           CASE WHEN checkpoint_id !~* '{_TIMED}' THEN checkpoint ->> 'ts' END
    FROM checkpoints WHERE thread_id = ANY(%s::text[])
"""

# LATERAL with LIMIT or OFFSET keeps to look-ups by key: a join is planned from estimates
# that are worst for the few huge threads.
_HEADS_OF = """
    SELECT wanted.thread_id, head.checkpoint_id
    FROM unnest(%s::text[]) AS wanted (thread_id)
    CROSS JOIN LATERAL (
        SELECT checkpoint_id FROM checkpoints
        WHERE thread_id = wanted.thread_id AND checkpoint_ns = ''
        ORDER BY checkpoint_id DESC LIMIT 1
    ) AS head
"""

_WRITES_AT = """
    SELECT head.thread_id, writes.task_id, writes.channel
    FROM unnest(%s::text[], %s::text[]) AS head (thread_id, checkpoint_id)
    CROSS JOIN LATERAL (
        SELECT task_id, channel FROM checkpoint_writes
        WHERE thread_id = head.thread_id AND checkpoint_ns = ''
          AND checkpoint_id = head.checkpoint_id
        OFFSET 0
    ) AS writes
"""

# The size as stored, compressed or not: what is kept out of line is not read for it.
_SIZES_OF = {
    table: f"""
        SELECT thread_id, count(*), sum({size}) FROM {table}
        WHERE thread_id = ANY(%s) GROUP BY thread_id
    """
    for table, size in (
        ("checkpoints", "pg_column_size(checkpoint) + pg_column_size(metadata)"),
        ("checkpoint_blobs", "coalesce(pg_column_size(blob), 0)"),
        ("checkpoint_writes", "pg_column_size(blob)"),
    )
}

# Sweepers meet at a thread's first row by key, which no save ever touches: new rows sort
# behind it. Whoever gets the lock owns the thread, the others pass it by. It is also the row
# where pruning notes the thread's birth.
_OWN = f"""
    SELECT c.thread_id, {postgres_birth("c.type")}
    FROM unnest(%s::text[]) AS wanted (thread_id)
    CROSS JOIN LATERAL (
        SELECT checkpoint_ns, checkpoint_id FROM checkpoints
        WHERE thread_id = wanted.thread_id
        ORDER BY checkpoint_ns, checkpoint_id LIMIT 1
    ) AS first
    JOIN checkpoints AS c
      ON c.thread_id = wanted.thread_id AND c.checkpoint_ns = first.checkpoint_ns
     AND c.checkpoint_id = first.checkpoint_id
    FOR UPDATE OF c SKIP LOCKED
"""

_DELETE_CHECKPOINTS = "DELETE FROM checkpoints WHERE thread_id = ANY(%s::text[])"
_DELETE_REST = (
    "DELETE FROM checkpoint_blobs WHERE thread_id = ANY(%s::text[])",
    "DELETE FROM checkpoint_writes WHERE thread_id = ANY(%s::text[])",
)

_STILL_THERE = """
    SELECT wanted.thread_id
    FROM unnest(%s::text[]) AS wanted (thread_id)
    CROSS JOIN LATERAL (
        SELECT 1 FROM checkpoints WHERE thread_id = wanted.thread_id LIMIT 1
    ) AS found
"""


def _odd_times(rows: Sequence[ThreadRow]) -> SqlPlan[dict[str, list[float | None]]]:
    if not (odd := [row.thread_id for row in rows if is_odd(row)]):
        return {}
    found = yield Statement(_ODD_ROWS_OF, (text_array(odd),))
    return times_by_thread(
        (thread_id, time if (time := time_of_id(checkpoint_id)) is not None else time_of_ts(ts))
        for thread_id, checkpoint_id, ts in found
    )


def _scan(wanted: Wanted | None, after: str | None, limit: int) -> SqlPlan[Page]:
    cutoffs = Cutoffs(None, None, None) if wanted is None else Cutoffs.of(wanted)
    bounds = {"after": after, "limit": limit, "newest_before": cutoffs.newest_before}
    waiting: Collection[str] | None = None
    if cutoffs.only_newest:
        *quiet, (last, seen) = yield Statement(_QUIET_PAGE, bounds)
        rows, heads = yield from _rows_of([thread_id for thread_id, _ in quiet])
        waiting = yield from _waiting_at(heads)
    else:
        bounds |= {
            "all": wanted is None,
            "births": wanted is None or cutoffs.born_before is not None,
            "born_before": cutoffs.born_before,
            "more_than": cutoffs.more_checkpoints_than,
        }
        *page, (last, _, _, seen, *_) = yield Statement(_PAGE, bounds)
        rows = [ThreadRow(*row) for row in page]
    odd = yield from _odd_times(rows)
    facts = [
        facts_of(row, odd, None if waiting is None else row.thread_id in waiting) for row in rows
    ]
    return Page(facts, seen, last if seen == limit else None)


def _rows_of(ids: Sequence[str]) -> SqlPlan[tuple[list[ThreadRow], dict[str, str]]]:
    """Read some threads in full, in the order given; also the head of each that has one."""
    if not ids:
        return [], {}
    found = yield Statement(_ROWS_OF, (text_array(ids),))
    heads = {row[0]: head for *row, head in found if head is not None}
    rows = {row[0]: ThreadRow(*row) for *row, _ in found}
    return [rows[thread_id] for thread_id in ids if thread_id in rows], heads


def _waiting_at(heads: Mapping[str, str]) -> SqlPlan[set[str]]:
    if not heads:
        return set()
    params = (text_array(heads), text_array(heads.values()))
    return waiting_threads((yield Statement(_WRITES_AT, params)))


def _find_interrupted(ids: Sequence[str]) -> SqlPlan[set[str]]:
    return (yield from _waiting_at(dict((yield Statement(_HEADS_OF, (text_array(ids),))))))


def _measure(ids: Sequence[str]) -> SqlPlan[dict[str, Size]]:
    found = {}
    for table, sql in _SIZES_OF.items():
        found[table] = yield Statement(sql, (list(ids),))
    return sizes_of(found)


def _delete(
    ids: Sequence[str], recheck: Recheck | None, discard: Discard | None = None
) -> SqlPlan[dict[str, Outcome]]:
    """Delete threads, or move them to the trash, in a READ COMMITTED transaction.

    Each statement sees what was committed before it, so a checkpoint that is saved while
    the transaction runs is noticed: either the delete takes a row that was not counted, or
    a row is there after it. Both roll everything back. So the threads may be read before
    they are owned, while the index alone still answers: a row lock ends that for its page.
    """
    yield from _wait_briefly()
    trash = None if discard is None else PostgresBin(discard)
    entered = set(ids) if trash is None else (yield from trash.enter(ids))
    found, heads = yield from _rows_of(ids)
    waiting = set() if recheck is None else (yield from _waiting_at(heads))
    births = dict((yield Statement(_OWN, (text_array(ids),))))
    rows = {row.thread_id: row for row in found}
    mine = entered & births.keys() & rows.keys()
    others = [thread_id for thread_id in ids if thread_id not in mine]
    there = (
        {row[0] for row in (yield Statement(_STILL_THERE, (text_array(others),)))}
        if others
        else set()
    )
    outcomes = {
        thread_id: Outcome(KeepReason.BUSY if thread_id in there else KeepReason.GONE)
        for thread_id in others
    }
    if discard is not None and trash is not None:
        restored = yield from trash.spare(list(rows))
        outcomes = {**spared(discard, rows.values(), restored), **outcomes}
    open_cases = [rows[thread_id] for thread_id in ids if thread_id not in outcomes]
    if recheck is not None and open_cases:
        odd = yield from _odd_times(open_cases)
        for row in open_cases:
            row_with_birth = row._replace(birth=births[row.thread_id])
            facts = facts_of(row_with_birth, odd, row.thread_id in waiting)
            outcomes[row.thread_id] = Outcome(recheck(row.thread_id, facts))
    else:
        outcomes.update((row.thread_id, Outcome()) for row in open_cases)
    doomed = [thread_id for thread_id, outcome in outcomes.items() if outcome.kept is None]
    if not doomed:
        return outcomes
    these = text_array(doomed)
    removed = yield from (_erase(these) if trash is None else trash.take(doomed))
    # A row that the recheck did not see is reason to keep the thread. A row that is left is one
    # without a recheck too: its blobs are gone.
    counted = sum(rows[thread_id].checkpoints for thread_id in doomed)
    if (recheck is not None and removed != counted) or (yield Statement(_STILL_THERE, (these,))):
        raise ThreadMovedError
    return outcomes


def _wait_briefly() -> SqlPlan[None]:
    """Wait for no lock for long, and for none on a whole table a second time."""
    yield Statement(_LOCK_TIMEOUT)
    try:
        yield Statement(_LOCK_TABLES, fetch=False)
    except LockNotAvailable as error:
        raise StorageUnavailableError(
            "another session has locked a whole table of checkpoints (a migration, an index that "
            "is built, VACUUM FULL); the next sweep tries again"
        ) from error


def _read_committed(plan: SqlPlan[T]) -> SqlPlan[T]:
    """Run a plan on snapshots that move, whatever the database or the connection defaults to."""
    yield Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", fetch=False)
    return (yield from plan)


def _erase(these: str) -> SqlPlan[int]:
    """Delete every row of some threads, by the array of their ids, and count the checkpoints."""
    removed: int = yield Statement(_DELETE_CHECKPOINTS, (these,), fetch=False)
    for sql in _DELETE_REST:
        yield Statement(sql, (these,), fetch=False)
    return removed


class _PostgresBase(Strategy):
    """What both colours do; each runs plans on its own kind of connection."""

    can_coordinate = True
    can_prune = True
    can_find_orphans = True
    undo = PostgresUndo()
    # A lock for each thread: a server in its default configuration has room for some 6,000.
    discard_limit = 500

    def __init__(self, checkpointer: Any) -> None:
        super().__init__(checkpointer)
        pooled = not isinstance(checkpointer.conn, Connection | AsyncConnection)
        self._lock = SweepLock(pooled=pooled)

    def lock(self) -> Plan[Step, bool]:
        """Take the lock of the swept tables; see :mod:`..coordination`."""
        return self._lock.acquire()

    def unlock(self) -> Plan[Step, None]:
        """Give the lock back."""
        return self._lock.release()

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Maybe[Page]:
        """Read the next page of threads; the cursor is the last thread id."""
        return self._transact(_scan(wanted, after, limit))

    def find_interrupted(self, thread_ids: Sequence[str]) -> Maybe[Collection[str]]:
        """Look at the writes of each thread's newest root checkpoint."""
        return self._transact(_find_interrupted(thread_ids))

    def measure_threads(self, thread_ids: Sequence[str]) -> Maybe[Mapping[str, Size]]:
        """Add up the sizes of what is stored, compressed as it is."""
        return self._transact(_measure(thread_ids))

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Maybe[Mapping[str, Outcome]]:
        """Delete threads in one short transaction that waits for no lock for long."""
        return self._delete(thread_ids, recheck, None)

    def discard_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None, discard: Discard
    ) -> Maybe[Mapping[str, Outcome]]:
        """Take threads away like :meth:`delete_threads`, and keep out the saves of each."""
        return self._delete(thread_ids, recheck, discard)

    def find_orphans(self, before: float, now: float, after: Any, limit: int) -> Maybe[OrphanPage]:
        """Look through the next part of the tables."""
        return self._transact(postgres_orphans.find(before, after, limit))

    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> Maybe[int]:
        """Delete in one transaction what is still an orphan."""
        return self.transact(postgres_orphans.delete(orphans))

    def query(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan that only reads, in one transaction."""
        return self._transact(plan)

    def transact(self, plan: SqlPlan[T]) -> Maybe[T]:
        """Run a plan in one transaction."""
        return self._transact(_read_committed(plan))

    def _delete(
        self, thread_ids: Sequence[str], recheck: Recheck | None, discard: Discard | None
    ) -> Maybe[Mapping[str, Outcome]]:
        return self._transact(
            _read_committed(
                self._lock.in_batch(
                    _delete(thread_ids, recheck, discard),
                    lambda: dict.fromkeys(thread_ids, Outcome(KeepReason.BUSY)),
                )
            )
        )

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Maybe[Mapping[str, PruneOutcome]]:
        """Trim threads in one transaction that works on one snapshot."""
        return self._transact(self._prune(thread_ids, keep, dry_run))

    def _prune(
        self, thread_ids: Sequence[str], keep: int, dry_run: bool
    ) -> SqlPlan[Mapping[str, PruneOutcome]]:
        yield Statement(SNAPSHOT, fetch=False)
        if not dry_run:
            yield from _wait_briefly()
        plan = prune_postgres(thread_ids, keep, dry_run=dry_run)
        # Where another instance is in a batch, it is trimming: nothing is left to do here.
        return (yield from self._lock.in_batch(plan, dict))

    def _transact(self, plan: SqlPlan[T]) -> Maybe[T]:
        raise NotImplementedError


class PostgresStrategy(_PostgresBase):
    """Sweep a ``PostgresSaver`` on a connection, a pipeline or a pool."""

    def perform(self, step: Step) -> Any:
        """Carry out one step of taking or giving back the lock."""
        return perform(self.checkpointer, step)

    def _transact(self, plan: SqlPlan[T]) -> T:
        return run(self.checkpointer, plan)


class AsyncPostgresStrategy(_PostgresBase):
    """Sweep an ``AsyncPostgresSaver`` on a connection, a pipeline or a pool."""

    runs_sync = False
    blocks = False

    async def aperform(self, step: Step) -> Any:
        """Carry out one step of taking or giving back the lock."""
        return await aperform(self.checkpointer, step)

    async def _transact(self, plan: SqlPlan[T]) -> T:
        return await arun(self.checkpointer, plan)
