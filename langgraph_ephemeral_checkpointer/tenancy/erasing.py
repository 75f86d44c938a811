"""Everything that deletes or copies whole threads, as plans (see :mod:`.plans`).

Every delete holds the thread's transaction lock, which every save takes too: a save
comes wholly before it, or after it and then finds its thread gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import HistoryNeededError, ThreadExistsError
from langgraph_ephemeral_checkpointer.tenancy.arrays import Texts
from langgraph_ephemeral_checkpointer.tenancy.names import Names, pin
from langgraph_ephemeral_checkpointer.tenancy.plans import Step, Transaction
from langgraph_ephemeral_checkpointer.tenancy.pruning import prune
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch
from langgraph_ephemeral_checkpointer.tenancy.survival import latest_of_each, without_runs

_BATCH = 100
"""Threads per delete transaction."""

_TABLES = ("{checkpoints}", "{blobs}", "{writes}")
_ERASE = tuple(
    f"DELETE FROM {table} WHERE tenant = %(tenant)s::text AND thread_id = ANY (%(threads)s::text[])"
    for table in _TABLES
)
_THREADS_OF_RUNS = """
SELECT DISTINCT thread_id FROM {checkpoints}
WHERE tenant = %(tenant)s::text AND run_id = ANY (%(runs)s::text[]) ORDER BY thread_id
"""
_OCCUPIED = """
SELECT EXISTS (SELECT FROM {checkpoints}
    WHERE tenant = %(tenant)s::text AND thread_id = %(target)s::text)
"""
_COPIED = {
    "{checkpoints}": "checkpoint_ns, checkpoint_id, parent_id, callers, source, step, run_id,"
    " format, channels, versions, held, delta, made_at, born_at, type, state",
    "{blobs}": "checkpoint_ns, channel, version, type, blob",
    "{writes}": "checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, blob,"
    " written_at",
}
_COPY = tuple(
    f"INSERT INTO {table} (tenant, thread_id, {columns}) "
    f"SELECT tenant, %(target)s::text, {columns} FROM {table} "
    "WHERE tenant = %(tenant)s::text AND thread_id = %(source)s::text ON CONFLICT DO NOTHING"
    for table, columns in _COPIED.items()
)
_STALE = """
SELECT thread_id FROM {checkpoints}
WHERE tenant = %(tenant)s::text AND thread_id > %(after)s::text
GROUP BY thread_id
HAVING max(made_at) < %(cutoff)s::timestamptz AND count(made_at) = count(*)
ORDER BY thread_id LIMIT %(batch)s::bigint
"""
# The rule is tested again here, under the locks: a thread may have woken up since the page.
_ERASE_STALE = """
WITH stale AS MATERIALIZED (
    SELECT thread_id FROM {checkpoints}
    WHERE tenant = %(tenant)s::text AND thread_id = ANY (%(threads)s::text[])
    GROUP BY thread_id
    HAVING max(made_at) < %(cutoff)s::timestamptz AND count(made_at) = count(*)
), gone AS (
    DELETE FROM {checkpoints} t USING stale s
    WHERE t.tenant = %(tenant)s::text AND t.thread_id = s.thread_id
), gone_blobs AS (
    DELETE FROM {blobs} t USING stale s
    WHERE t.tenant = %(tenant)s::text AND t.thread_id = s.thread_id
), gone_writes AS (
    DELETE FROM {writes} t USING stale s
    WHERE t.tenant = %(tenant)s::text AND t.thread_id = s.thread_id
)
SELECT count(*) FROM stale
"""
# Writes may come before their checkpoint, so only old ones are left-overs: of a run whose
# thread was deleted under it.
_STRAY = """
SELECT DISTINCT w.thread_id FROM {writes} w
WHERE w.tenant = %(tenant)s::text AND w.thread_id > %(after)s::text
  AND w.written_at < %(cutoff)s::timestamptz
  AND NOT EXISTS (SELECT FROM {checkpoints} c
      WHERE c.tenant = w.tenant AND c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)
ORDER BY w.thread_id LIMIT %(batch)s::bigint
"""
_ERASE_STRAY = """
DELETE FROM {writes} w
WHERE w.tenant = %(tenant)s::text AND w.thread_id = ANY (%(threads)s::text[])
  AND w.written_at < %(cutoff)s::timestamptz
  AND NOT EXISTS (SELECT FROM {checkpoints} c
      WHERE c.tenant = w.tenant AND c.thread_id = w.thread_id
        AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)
"""
_ANY_THREAD = """
SELECT thread_id FROM (
    SELECT DISTINCT thread_id FROM {checkpoints}
    WHERE tenant = %(tenant)s::text AND thread_id > %(after)s::text
    UNION SELECT DISTINCT thread_id FROM {blobs}
    WHERE tenant = %(tenant)s::text AND thread_id > %(after)s::text
    UNION SELECT DISTINCT thread_id FROM {writes}
    WHERE tenant = %(tenant)s::text AND thread_id > %(after)s::text
) t ORDER BY thread_id LIMIT %(batch)s::bigint
"""
# One index probe per tenant instead of a scan of all rows.
_TENANTS = " UNION ".join(
    f"""(WITH RECURSIVE t (tenant) AS (
    (SELECT tenant FROM {table} ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT n.tenant FROM {table} n WHERE n.tenant > t.tenant ORDER BY n.tenant LIMIT 1)
    FROM t WHERE t.tenant IS NOT NULL
) SELECT tenant FROM t WHERE tenant IS NOT NULL)"""
    for table in _TABLES
)


def erase(names: Names, tenant: str, threads: Sequence[str]) -> Plan[Step, None]:
    """Delete threads, all of each, in one transaction."""
    yield [*names.lock(tenant, *threads), *erase_statements(names, tenant, threads)]


def erase_statements(names: Names, tenant: str, threads: Sequence[str]) -> list[Statement]:
    """The deletes that take threads whole, the checkpoints first; each answers its row count."""
    params = {"tenant": tenant, "threads": Texts(threads)}
    return [names.statement(text, params, fetch=False) for text in _ERASE]


def erase_each(names: Names, owned: Iterable[tuple[str, str]]) -> Plan[Step, None]:
    """Delete (tenant, thread) pairs, one transaction each."""
    for tenant, thread_id in owned:
        yield from erase(names, tenant, [thread_id])


def keep_latest_each(names: Names, owned: Iterable[tuple[str, str]]) -> Plan[Step, None]:
    """Prune (tenant, thread) pairs to the newest checkpoint of each namespace."""
    for tenant, thread_id in owned:
        yield Transaction(prune(names, tenant, thread_id, latest_of_each))


def erase_runs(names: Names, tenant: str, runs: Sequence[str]) -> Plan[Step, None]:
    """Delete the checkpoints that some runs made, with their writes.

    Raises:
        HistoryNeededError: What is left of a thread would lose a delta channel's history.
            That thread is whole; the others are done.
    """
    if not runs:
        return
    wanted = frozenset(runs)
    params = {"tenant": tenant, "runs": Texts(wanted)}
    _, rows = yield [pin(tenant), names.statement(_THREADS_OF_RUNS, params)]
    refused = []
    for (thread_id,) in rows:
        try:
            yield Transaction(prune(names, tenant, thread_id, partial(without_runs, runs=wanted)))
        except HistoryNeededError:
            refused.append(thread_id)
    if refused:
        raise HistoryNeededError(
            f"not deleted from threads {refused}: later checkpoints are rebuilt from "
            "those of the runs. Delete the threads, or the later runs as well"
        )


def copy(names: Names, tenant: str, source: str, target: str) -> Plan[Step, None]:
    """Copy a thread, history and writes included, to an id that has no checkpoints.

    Raises:
        ThreadExistsError: The target has some.
    """
    yield Transaction(_copy(names, tenant, source, target))


def _copy(names: Names, tenant: str, source: str, target: str) -> Plan[Batch, None]:
    params = {"tenant": tenant, "source": source, "target": target}
    *_, occupied = yield [
        *names.lock(tenant, source, target),
        names.statement(_OCCUPIED, params),
    ]
    if occupied[0][0]:
        raise ThreadExistsError(
            f"thread {target!r} has checkpoints already, so {source!r} was not copied onto it: "
            "copy to a new thread id, or delete that thread first"
        )
    yield [names.statement(text, params, fetch=False) for text in _COPY]


def vacuum(names: Names, tenant: str, cutoff: datetime) -> Plan[Step, int]:
    """Delete a tenant's threads whose newest checkpoint is older than ``cutoff``.

    A thread with a checkpoint of unknown age is kept. Old writes that lost their
    checkpoint go too.

    Returns:
        The number of threads deleted.
    """
    deleted = 0
    base = {"tenant": tenant, "cutoff": cutoff}
    for find, remove in ((_STALE, _ERASE_STALE), (_STRAY, _ERASE_STRAY)):
        after = ""
        while True:
            page = {**base, "after": after, "batch": _BATCH}
            _, rows = yield [pin(tenant), names.statement(find, page)]
            if not rows:
                break
            threads = [thread_id for (thread_id,) in rows]
            params = {**base, "threads": Texts(threads)}
            fetch = remove is _ERASE_STALE
            *_, done = yield [
                *names.lock(tenant, *threads),
                names.statement(remove, params, fetch=fetch),
            ]
            deleted += done[0][0] if fetch else 0
            after = threads[-1]
    return deleted


def forget(names: Names, tenant: str) -> Plan[Step, int]:
    """Delete everything of a tenant, in batches of threads.

    Returns:
        The number of threads deleted.
    """
    deleted, after = 0, ""
    while True:
        page = {"tenant": tenant, "after": after, "batch": _BATCH}
        _, rows = yield [pin(tenant), names.statement(_ANY_THREAD, page)]
        if not rows:
            return deleted
        threads = [thread_id for (thread_id,) in rows]
        yield from erase(names, tenant, threads)
        deleted, after = deleted + len(threads), threads[-1]


def tenants(names: Names, tenant: str) -> Plan[Step, list[str]]:
    """List the tenants that have rows and that the role may see."""
    _, rows = yield [pin(tenant), list_tenants(names)]
    return sorted(name for (name,) in rows)


def list_tenants(names: Names) -> Statement:
    """The statement that gives the tenants, one a row, in no order."""
    return names.statement(_TENANTS)
