"""What is read of one tenant's threads, by key and without their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.errors import TenantRequiredError
from langgraph_ephemeral_checkpointer.strategies.base import Page
from langgraph_ephemeral_checkpointer.strategies.rows import waiting_threads
from langgraph_ephemeral_checkpointer.strategies.tenant.access import MANNERS, Batches, TenantTables
from langgraph_ephemeral_checkpointer.tenancy.arrays import Texts
from langgraph_ephemeral_checkpointer.tenancy.erasing import list_tenants
from langgraph_ephemeral_checkpointer.tenancy.names import CLOSE_PATH, Names
from langgraph_ephemeral_checkpointer.tenancy.schema import sees_every_tenant

AGGREGATES = """
    thread_id, count(*) AS checkpoints, count(*) FILTER (WHERE checkpoint_ns = '') AS roots,
    count(*) - count(made_at) AS untimed,
    extract(epoch FROM max(made_at))::float8 AS newest,
    extract(epoch FROM least(min(born_at), min(made_at)))::float8 AS born
"""
# A page follows the primary key, so it costs what it looks at, wherever it begins. Only the
# threads that matter are sent; the last rows tell where the page ends and give a sample of it.
_PAGE = f"""
    WITH page AS MATERIALIZED (
        SELECT {AGGREGATES} FROM {{checkpoints}}
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
# LATERAL with LIMIT or OFFSET keeps to look-ups by key where statistics are stale.
WAITING = """
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


def scan(
    tables: TenantTables, wanted: Wanted | None, after: str | None, limit: int
) -> Batches[Page]:
    """Read the next page of threads, behind a thread id."""
    bounds = wanted or Wanted()
    statement = tables.statement(
        _PAGE,
        after=after or "",
        limit=limit,
        all=wanted is None,
        newest_before=bounds.newest_before,
        born_before=bounds.born_before,
        more_than=bounds.more_checkpoints_than,
    )
    *_, rows = yield [*tables.begin(), statement]
    sample = rows.pop()[0] if rows[-1][1] is None else None  # of an empty page there is none
    *found, (last, seen, *_) = rows
    threads = [facts_of(row) for row in found]
    return Page(threads, seen, last if seen == limit else None, sample)


def find_interrupted(tables: TenantTables, ids: Sequence[str]) -> Batches[set[str]]:
    """Return which threads wait for a human answer."""
    *_, writes = yield [*tables.begin(), tables.statement(WAITING, threads=Texts(ids))]
    return waiting_threads(writes)


def facts_of(row: Sequence[Any], interrupted: bool | None = None) -> ThreadFacts:
    """Make the facts of one thread.

    Args:
        row: The aggregated row.
        interrupted: Whether it waits for a human answer, where that was read.
    """
    thread_id, checkpoints, roots, untimed, newest, born = row
    if untimed:
        newest = born = None
    return ThreadFacts(thread_id, newest, born, checkpoints, roots, interrupted)


def every_tenant(names: Names) -> Batches[list[str]]:
    """List all tenants, in order.

    Raises:
        TenantRequiredError: The role does not see all of them.
    """
    *_, ((all_of_them,),) = yield [CLOSE_PATH, MANNERS, sees_every_tenant(names)]
    if not all_of_them:
        raise TenantRequiredError(
            "there is no tenant in scope, and this role does not see every tenant: open "
            "saver.tenant_scope(...), give the saver tenant=, or connect as the role of "
            "ddl(maintenance_role=...)"
        )
    (found,) = yield [list_tenants(names)]
    return sorted(name for (name,) in found)
