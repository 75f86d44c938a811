"""The plans over one tenant's rows that a sweep runs; each is the body of one transaction.

A delete takes each thread's transaction lock, which every save takes too, without waiting for
it: a thread that is being saved is not one to delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.decisions.survivors import Key, LeaveWholeError
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import TenantRequiredError, ThreadMovedError
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import (
    Outcome,
    Page,
    PruneOutcome,
    Recheck,
    Size,
)
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.rows import sizes_of, waiting_threads
from langgraph_ephemeral_checkpointer.strategies.tenant import orphans as tenant_orphans
from langgraph_ephemeral_checkpointer.tenancy.arrays import Texts
from langgraph_ephemeral_checkpointer.tenancy.erasing import erase_statements, list_tenants
from langgraph_ephemeral_checkpointer.tenancy.names import Names, pin
from langgraph_ephemeral_checkpointer.tenancy.pruning import drop, facts
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch, sees_every_tenant
from langgraph_ephemeral_checkpointer.tenancy.survival import Stored, newest_roots

T = TypeVar("T")
Batches: TypeAlias = Plan[Batch, T]

_PRUNE_CHUNK = 50
"""Threads whose rows a prune has in memory at a time."""
# A lock for each thread: a server in its default configuration has room for some 6,000.
LOCKED_THREADS = 500
"""Threads that one transaction locks."""

READ_COMMITTED = Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", fetch=False)
# Only rows that somebody locks by hand can block a delete: give way before the server would
# have to choose a victim, which might be the graph. The values of a sweep differ too much for
# one plan that is good for all.
_MANNERS = Statement(
    "SELECT set_config('lock_timeout', '500ms', true),"
    " set_config('plan_cache_mode', 'force_custom_plan', true)"
)

_AGGREGATES = """
    thread_id, count(*) AS checkpoints, count(*) FILTER (WHERE checkpoint_ns = '') AS roots,
    count(*) - count(made_at) AS untimed,
    extract(epoch FROM max(made_at))::float8 AS newest,
    extract(epoch FROM least(min(born_at), min(made_at)))::float8 AS born
"""
# A page follows the primary key, so it costs what it looks at, wherever it begins. Only the
# threads that matter are sent; the last rows tell where the page ends and give a sample of it.
_PAGE = f"""
    WITH page AS MATERIALIZED (
        SELECT {_AGGREGATES} FROM {{checkpoints}}
        WHERE tenant = %(tenant)s::text AND thread_id > %(after)s::text
        GROUP BY thread_id ORDER BY thread_id LIMIT %(limit)s::bigint
    )
    SELECT thread_id, checkpoints, roots, untimed, newest, born FROM page
    WHERE %(all)s::bool OR untimed > 0 OR newest < %(newest_before)s::float8
       OR born < %(born_before)s::float8 OR roots > %(more_than)s::bigint
    UNION ALL
    SELECT max(thread_id), count(*), NULL, NULL, NULL, NULL FROM page
    UNION ALL
    (SELECT thread_id, NULL, NULL, NULL, NULL, NULL FROM page
     OFFSET floor(random() * (SELECT count(*) FROM page)) LIMIT 1)
"""
_ROWS_OF = f"""
    SELECT {_AGGREGATES} FROM {{checkpoints}}
    WHERE tenant = %(tenant)s::text AND thread_id = ANY (%(threads)s::text[])
    GROUP BY thread_id
"""
# LATERAL with LIMIT or OFFSET keeps to look-ups by key where statistics are stale.
_WAITING = """
    SELECT u.thread_id, w.task_id, w.channel
    FROM unnest(%(threads)s::text[]) AS u (thread_id)
    CROSS JOIN LATERAL (
        SELECT c.checkpoint_id FROM {checkpoints} c
        WHERE c.tenant = %(tenant)s::text AND c.thread_id = u.thread_id AND c.checkpoint_ns = ''
        ORDER BY c.checkpoint_id DESC LIMIT 1
    ) AS head
    CROSS JOIN LATERAL (
        SELECT x.task_id, x.channel FROM {writes} x
        WHERE x.tenant = %(tenant)s::text AND x.thread_id = u.thread_id
          AND x.checkpoint_ns = '' AND x.checkpoint_id = head.checkpoint_id OFFSET 0
    ) AS w
"""
_STILL_THERE = """
    SELECT u.thread_id FROM unnest(%(threads)s::text[]) AS u (thread_id)
    CROSS JOIN LATERAL (
        SELECT FROM {checkpoints} c
        WHERE c.tenant = %(tenant)s::text AND c.thread_id = u.thread_id LIMIT 1
    ) AS found
"""
_SIZES_OF = tuple(
    f"""
    SELECT thread_id, count(*), sum(pg_column_size({column})) FROM {table}
    WHERE tenant = %(tenant)s::text AND thread_id = ANY (%(threads)s::text[]) GROUP BY thread_id
    """
    for table, column in (("{checkpoints}", "state"), ("{blobs}", "blob"), ("{writes}", "blob"))
)
_TRY_LOCKS = "SELECT k FROM unnest(%s::bigint[]) AS u (k) WHERE pg_try_advisory_xact_lock(k)"


def _facts(row: Sequence[Any], interrupted: bool | None = None) -> ThreadFacts:
    thread_id, checkpoints, roots, untimed, newest, born = row
    if untimed:
        newest = born = None
    return ThreadFacts(thread_id, newest, born, checkpoints, roots, interrupted)


class TenantTables:
    """The plans over one tenant's rows; each is the body of one transaction."""

    def __init__(self, names: Names, tenant: str) -> None:
        self._names = names
        self._tenant = tenant

    def _statement(self, template: str, **params: Any) -> Statement:
        return self._names.statement(template, {"tenant": self._tenant, **params})

    def scan(self, wanted: Wanted | None, after: str | None, limit: int) -> Batches[Page]:
        """Read a page of threads."""
        bounds = wanted or Wanted()
        statement = self._statement(
            _PAGE,
            after=after or "",
            limit=limit,
            all=wanted is None,
            newest_before=bounds.newest_before,
            born_before=bounds.born_before,
            more_than=bounds.more_checkpoints_than,
        )
        *_, rows = yield [pin(self._tenant), _MANNERS, statement]
        sample = rows.pop()[0] if rows[-1][1] is None else None  # of an empty page there is none
        *found, (last, seen, *_) = rows
        threads = [_facts(row) for row in found]
        return Page(threads, seen, last if seen == limit else None, sample)

    def interrupted(self, ids: Sequence[str]) -> Batches[set[str]]:
        """Say which threads wait for a human answer."""
        statement = self._statement(_WAITING, threads=Texts(ids))
        *_, writes = yield [pin(self._tenant), _MANNERS, statement]
        return waiting_threads(writes)

    def measure(self, ids: Sequence[str]) -> Batches[dict[str, Size]]:
        """Add up rows and bytes; what is kept out of line is not read for it."""
        *_, checkpoints, blobs, writes = yield [
            pin(self._tenant),
            _MANNERS,
            *(self._statement(template, threads=Texts(ids)) for template in _SIZES_OF),
        ]
        found = (checkpoints, blobs, writes)
        return sizes_of(dict(zip(self._names.tables, found, strict=True)))

    def _own(self, ids: Sequence[str]) -> Batches[list[str]]:
        """Lock those threads that nobody else has locked, until the transaction ends."""
        keys = {self._names.key(self._tenant, one): one for one in ids}
        *_, taken = yield [
            pin(self._tenant),
            _MANNERS,
            Statement(_TRY_LOCKS, (sorted(keys),)),
        ]
        locked = {key for (key,) in taken}
        return [one for one in ids if self._names.key(self._tenant, one) in locked]

    def delete(self, ids: Sequence[str], recheck: Recheck | None) -> Batches[dict[str, Outcome]]:
        """Delete threads whole.

        Every save takes the thread's lock, so what is read under it is what is deleted. Rows
        that came past the saver show in the count, or after it, and roll everything back.
        """
        mine = yield from self._own(ids)
        owned, others = Texts(mine), [one for one in ids if one not in set(mine)]
        found, writes, there = yield [
            self._statement(_ROWS_OF, threads=owned),
            self._statement(_WAITING, threads=owned if recheck else Texts(())),
            self._statement(_STILL_THERE, threads=Texts(others)),
        ]
        busy = {row[0] for row in there}
        rows = {row[0]: row for row in found}
        waiting = waiting_threads(writes)
        outcomes = {}
        for one in ids:
            if one in rows:
                reread = _facts(rows[one], one in waiting)
                outcomes[one] = Outcome(None if recheck is None else recheck(one, reread))
            else:
                outcomes[one] = Outcome(KeepReason.BUSY if one in busy else KeepReason.GONE)
        doomed = [one for one, outcome in outcomes.items() if outcome.kept is None]
        if not doomed:
            return outcomes
        removed, *_, left = yield [
            *erase_statements(self._names, self._tenant, doomed),
            self._statement(_STILL_THERE, threads=Texts(doomed)),
        ]
        if left or (recheck and removed != sum(rows[one][1] for one in doomed)):
            raise ThreadMovedError
        return outcomes

    def prune(
        self, ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Batches[dict[str, PruneOutcome]]:
        """Trim threads; one that somebody else has locked is left for the next sweep."""
        mine = list(ids)
        if dry_run:
            yield [pin(self._tenant), _MANNERS]
        else:
            mine = yield from self._own(ids)
        outcomes: dict[str, PruneOutcome] = {}
        for start in range(0, len(mine), _PRUNE_CHUNK):
            chunk = mine[start : start + _PRUNE_CHUNK]
            found = yield [facts(self._names, self._tenant, one) for one in chunk]
            drops: list[Statement] = []
            for one, rows in zip(chunk, found, strict=True):
                thread = [Stored.read(row) for row in rows]
                try:
                    kept = newest_roots(thread, keep)
                except LeaveWholeError as error:
                    outcomes[one] = PruneOutcome(left_whole=str(error))
                    continue
                outcomes[one] = PruneOutcome(sum(row.key not in kept for row in thread))
                drops += drop(self._names, self._tenant, one, thread, partial(_decided, kept))
            if drops and not dry_run:
                counts = yield drops
                # The third statement of each thread takes its checkpoints.
                if sum(counts[2::3]) != sum(outcomes[one].removed_checkpoints for one in chunk):
                    raise ThreadMovedError
        return outcomes

    def orphans(self, before: float, after: Any, limit: int) -> Batches[OrphanPage]:
        """Look for rows without a checkpoint."""
        statement = tenant_orphans.find(self._names, self._tenant, before, after, limit)
        *_, rows = yield [pin(self._tenant), _MANNERS, statement]
        return tenant_orphans.page(rows, self._tenant, after, limit, LOCKED_THREADS)

    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> Batches[int]:
        """Delete what is still an orphan, but of threads that nobody else has locked."""
        own = [one for one in orphans if one.tenant == self._tenant]
        mine = set((yield from self._own(sorted({one.thread_id for one in own}))))
        free = [one for one in own if one.thread_id in mine]
        if not free:
            return 0
        counts = yield tenant_orphans.delete(self._names, self._tenant, free, before)
        return sum(counts)


def _decided(kept: set[Key], _thread: Sequence[Stored]) -> set[Key]:
    return kept


def every_tenant(names: Names) -> Batches[list[str]]:
    """List all tenants, in order.

    Raises:
        TenantRequiredError: The role does not see all of them.
    """
    _, ((all_of_them,),) = yield [_MANNERS, sees_every_tenant(names)]
    if not all_of_them:
        raise TenantRequiredError(
            "there is no tenant in scope, and this role does not see every tenant: open "
            "saver.tenant_scope(...), give the saver tenant=, or connect as the role of "
            "ddl(maintenance_role=...)"
        )
    (found,) = yield [list_tenants(names)]
    return sorted(name for (name,) in found)
