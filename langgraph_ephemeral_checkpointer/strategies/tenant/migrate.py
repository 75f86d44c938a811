"""Move in: copy the threads of LangGraph's own Postgres saver under a tenant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver
from psycopg import Connection, Cursor
from psycopg.rows import tuple_row

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import moment, time_of_saved
from langgraph_ephemeral_checkpointer.drivers.transactions import transaction_on
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import StorageUnusableError, TenantRequiredError
from langgraph_ephemeral_checkpointer.langgraph_names import DELTA_COUNTERS, TASKS
from langgraph_ephemeral_checkpointer.strategies.births import time_of_birth
from langgraph_ephemeral_checkpointer.strategies.postgres.access import refuse_bytes
from langgraph_ephemeral_checkpointer.strategies.postgres.birth import POSTGRES_PREFIX
from langgraph_ephemeral_checkpointer.strategies.postgres.naming import qualified
from langgraph_ephemeral_checkpointer.strategies.postgres.visibility import (
    LOOK,
    PROOF,
    refuse_foreign,
    refuse_hidden,
)
from langgraph_ephemeral_checkpointer.strategies.tenant.recoding import Recoding, Typed
from langgraph_ephemeral_checkpointer.tenancy.arrays import Blobs, Texts
from langgraph_ephemeral_checkpointer.tenancy.driver import logger, storage_errors
from langgraph_ephemeral_checkpointer.tenancy.names import Names
from langgraph_ephemeral_checkpointer.tenancy.plans import Transaction
from langgraph_ephemeral_checkpointer.tenancy.rows import Target, TypedSerializer, prepare_save
from langgraph_ephemeral_checkpointer.tenancy.saver import TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch

_PAGE = 200

_THREADS = """
SELECT thread_id FROM checkpoints WHERE %(after)s::text IS NULL OR thread_id > %(after)s
GROUP BY thread_id ORDER BY thread_id LIMIT %(limit)s
"""
_CHECKPOINTS = """
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata
FROM checkpoints WHERE thread_id = %s ORDER BY checkpoint_ns, checkpoint_id
"""
_BLOBS = """
SELECT checkpoint_ns, channel, version, type, blob
FROM checkpoint_blobs WHERE thread_id = %s AND type <> 'empty'
"""
# Tables that LangGraph.js made have no task_path; there the name is that of the empty text.
_WRITES = """
SELECT found.* FROM (VALUES ('')) AS absent (task_path), LATERAL (
    SELECT checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, blob
    FROM checkpoint_writes WHERE thread_id = %s
) AS found ORDER BY task_path, task_id, idx
"""
_NEWEST = """
SELECT coalesce(max(checkpoint_id), '') FROM {checkpoints}
WHERE tenant = %(tenant)s::text AND thread_id = %(thread_id)s::text
"""
_PUT_CHECKPOINT = """
INSERT INTO {checkpoints} (tenant, thread_id, checkpoint_ns, checkpoint_id, parent_id, callers,
    source, step, run_id, format, channels, versions, held, delta, made_at, born_at, type, state)
VALUES (%(tenant)s, %(thread_id)s, %(ns)s, %(id)s, %(parent)s, %(callers)s, %(source)s, %(step)s,
    %(run_id)s, %(format)s, %(channels)s, %(versions)s, %(held)s, %(delta)s, %(made_at)s,
    %(born_at)s, %(type)s, %(state)s)
ON CONFLICT DO NOTHING
"""
_PUT_BLOBS = """
INSERT INTO {blobs} (tenant, thread_id, checkpoint_ns, channel, version, type, blob)
SELECT %(tenant)s::text, %(thread_id)s::text, u.* FROM unnest(%(ns)s::text[],
    %(channels)s::text[], %(versions)s::text[], %(types)s::text[], %(blobs)s::bytea[]) AS u
ON CONFLICT DO NOTHING
"""
_PUT_WRITES = """
INSERT INTO {writes} AS t (tenant, thread_id, checkpoint_ns, checkpoint_id, task_id, idx,
    task_path, channel, type, blob, written_at)
SELECT %(tenant)s::text, %(thread_id)s::text, u.*, %(now)s::timestamptz
FROM unnest(%(ns)s::text[], %(ids)s::text[], %(tasks)s::text[], %(idx)s::integer[],
    %(paths)s::text[], %(channels)s::text[], %(types)s::text[], %(blobs)s::bytea[])
    AS u (ns, id, task, idx, path, channel, type, blob)
"""
_ONCE = "ON CONFLICT DO NOTHING"
# What a step wrote after its checkpoint had been copied. An interrupt and its answers take the
# place of earlier ones, as upstream stores them.
_OF_THE_NEWEST = """
WHERE EXISTS (SELECT FROM {checkpoints} c
    WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text
      AND c.checkpoint_ns = u.ns AND c.checkpoint_id = u.id
      AND c.checkpoint_id = (SELECT max(n.checkpoint_id) FROM {checkpoints} n
          WHERE n.tenant = %(tenant)s::text AND n.thread_id = %(thread_id)s::text
            AND n.checkpoint_ns = u.ns))
ON CONFLICT (tenant, thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE
SET channel = EXCLUDED.channel, type = EXCLUDED.type, blob = EXCLUDED.blob
WHERE EXCLUDED.idx < 0 AND (t.type, t.blob) IS DISTINCT FROM (EXCLUDED.type, EXCLUDED.blob)
"""


@dataclass
class MigrationResult:
    """What a migration did.

    Attributes:
        copied: Threads that were copied.
        skipped: Threads that were there already, as new as at the source or newer.
        errors: What went wrong, by thread; nothing of such a thread was copied.
    """

    copied: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Thread:
    """All rows of one thread of the source."""

    checkpoints: Sequence[Sequence[Any]]
    blobs: Sequence[Sequence[Any]]
    writes: Sequence[Sequence[Any]]


def migrate_from_postgres(
    source: PostgresSaver,
    target: TenantPostgresSaver,
    *,
    tenant: str | None = None,
    on_thread: Callable[[str], None] | None = None,
) -> MigrationResult:
    """Copy every thread, its history, writes and blobs included; the source is only read.

    Each thread is read in one snapshot and written in one transaction, so that it is there
    whole or not at all. Stopped and started again, it goes on with the threads that are
    missing, that the source has newer checkpoints of, or whose newest step has written more
    there. A thread that went on at the target is left alone.

    Args:
        source: LangGraph's synchronous saver; its tables are those of its connection.
        target: Where the threads go; ``keep_checkpoints`` prunes them at their next save.
        tenant: Whose threads they become; None: what ``target`` finds for each thread.
        on_thread: Called with each thread id before it is looked at.

    Returns:
        What was copied, what was there, and what failed.

    Raises:
        TypeError: One of the savers is another, an asynchronous one for instance.
        TenantRequiredError: There is no tenant for a thread.
        StorageUnusableError: A database is away, or lacks its tables.
    """
    _check(source, target)
    recoding = Recoding(source.serde, target.serde)
    result = MigrationResult()
    after = None
    with target.tenant_scope(tenant) if tenant is not None else nullcontext():
        while True:
            with _reading(source) as read:
                page = [name for (name,) in read(_THREADS, {"after": after, "limit": _PAGE})]
            if not page:
                return result
            after = page[-1]
            for thread_id in page:
                if on_thread is not None:
                    on_thread(thread_id)
                _copy(source, target, thread_id, recoding, result)


def _check(source: object, target: object) -> None:
    given = f"not {type(source).__name__} and {type(target).__name__}"
    if not isinstance(target, TenantPostgresSaver):
        raise TypeError(f"the threads go from a PostgresSaver to a TenantPostgresSaver, {given}")
    if not isinstance(source, PostgresSaver):
        raise TypeError(
            f"the threads come from a PostgresSaver, LangGraph's synchronous one, {given}"
        )


def _copy(
    source: PostgresSaver,
    target: TenantPostgresSaver,
    thread_id: str,
    recoding: Recoding,
    result: MigrationResult,
) -> None:
    try:
        owner = target.tenant_of_thread(thread_id)
        with _reading(source) as read:
            thread = _Thread(*(read(sql, (thread_id,)) for sql in _READS))
        plan = _store(target.names, target.serde, owner, thread_id, thread, recoding, target.now())
        copied = target.run_plan(Transaction(plan))
    except (StorageUnusableError, TenantRequiredError):
        raise
    except Exception as error:  # noqa: BLE001 - one bad thread must not keep the others
        logger.warning("thread %r was not copied: %s", thread_id, error)
        result.errors[thread_id] = str(error) or type(error).__name__
    else:
        (result.copied if copied else result.skipped).append(thread_id)


_READS = (_CHECKPOINTS, _BLOBS, _WRITES)


@contextmanager
def _reading(source: PostgresSaver) -> Iterator[Callable[[str, Any], list[Any]]]:
    """Gives what reads one snapshot of the source, in a transaction that cannot write."""
    pool: Any = source.conn
    borrowed = nullcontext(pool) if isinstance(pool, Connection) else pool.connection()
    with storage_errors("reading the source"), source.lock, borrowed as conn, transaction_on(conn):
        refuse_bytes(conn)
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor = Cursor(conn, row_factory=tuple_row)
        schema = refuse_hidden(cursor.execute(LOOK.sql).fetchall())

        def read(sql: str, params: Any) -> list[Any]:
            return cursor.execute(qualified(sql, schema), params).fetchall()

        refuse_foreign(read(PROOF.sql, ()))
        yield read


def _store(
    names: Names,
    serde: TypedSerializer,
    tenant: str,
    thread_id: str,
    thread: _Thread,
    recoding: Recoding,
    now: datetime,
) -> Plan[Batch, bool]:
    """Write what the target lacks of a thread; False where it lacks nothing."""
    key = {"tenant": tenant, "thread_id": thread_id}
    *_, newest = yield [*names.lock(tenant, thread_id), names.statement(_NEWEST, key)]

    def typed(kind: str, blob: bytes | None) -> Typed:
        return recoding.value(kind, bytes(blob or b""))

    # Over all namespaces: the target may have pruned some of what was copied.
    theirs = max((row[1] for row in thread.checkpoints), default="")
    if newest[0][0] > theirs:
        return False
    if newest[0][0] == theirs:
        (late,) = yield [_writes(names, key, thread, typed, now, _OF_THE_NEWEST)]
        return bool(late)
    values = {
        (ns, channel, version): typed(kind, blob)
        for ns, channel, version, kind, blob in thread.blobs
    }
    sends = _pending_sends(thread)
    born = _born(thread)
    statements = []
    for row in thread.checkpoints:
        place = Target(tenant, thread_id, row[0], row[2])
        if pending := _sends_of(row, sends):
            versions = row[4]["channel_versions"]
            versions[TASKS] = max(versions.values(), default=f"{1:032}.0")
            values.setdefault((row[0], TASKS, str(versions[TASKS])), recoding.items(pending))
        params = _checkpoint(serde, place, row, values) | {"born_at": born}
        statements.append(names.statement(_PUT_CHECKPOINT, params, fetch=False))
    statements += [
        _blobs(names, key, values),
        _writes(names, key, thread, typed, now, _ONCE),
    ]
    yield statements
    return True


def _checkpoint(
    serde: TypedSerializer,
    target: Target,
    row: Sequence[Any],
    values: dict[tuple[str, str, str], Typed],
) -> dict[str, Any]:
    """The parameters of one checkpoint; adds the values that its row holds to ``values``."""
    ns, checkpoint_id, _, _, stored, metadata = row
    versions = dict(stored["channel_versions"])
    inline = dict(stored.get("channel_values") or {})
    delta = set()
    for channel, value in inline.items():
        place = (ns, channel, str(versions.get(channel)))
        if place in values:
            delta |= {channel} if value is True else set()  # the mark of a snapshot
        elif channel in versions:
            values[place] = serde.dumps_typed(value)
    held = {name: None for name, v in versions.items() if (ns, name, str(v)) in values}
    loose = {name: value for name, value in inline.items() if name not in versions}
    checkpoint: Any = {**stored, "channel_versions": versions, "channel_values": {**held, **loose}}
    checkpoint.setdefault("id", checkpoint_id)
    checkpoint.setdefault("versions_seen", {})
    params = dict(
        prepare_save(serde, target, {"configurable": {}}, checkpoint, metadata, {}).columns
    )
    if delta:
        counted = set((metadata.get(DELTA_COUNTERS) or {}).keys()) & set(versions)
        params["delta"] = Texts(sorted(delta | counted))
    return {**params, "id": checkpoint_id}


def _blobs(
    names: Names,
    key: Mapping[str, str],
    values: Mapping[tuple[str, str, str], Typed],
) -> Statement:
    return names.statement(
        _PUT_BLOBS,
        {
            **key,
            "ns": Texts(ns for ns, _, _ in values),
            "channels": Texts(channel for _, channel, _ in values),
            "versions": Texts(version for _, _, version in values),
            "types": Texts(kind for kind, _ in values.values()),
            "blobs": Blobs(blob for _, blob in values.values()),
        },
        fetch=False,
    )


def _writes(
    names: Names,
    key: Mapping[str, str],
    thread: _Thread,
    typed: Callable[[str, bytes | None], Typed],
    now: datetime,
    which: str,
) -> Statement:
    writes = [(*row[:6], *typed(row[6], row[7])) for row in thread.writes]
    return names.statement(
        _PUT_WRITES + which,
        {
            **key,
            "ns": Texts(row[0] for row in writes),
            "ids": Texts(row[1] for row in writes),
            "tasks": Texts(row[2] for row in writes),
            "idx": [row[3] for row in writes],
            "paths": Texts(row[4] for row in writes),
            "channels": Texts(row[5] for row in writes),
            "types": Texts(row[6] for row in writes),
            "blobs": Blobs(row[7] for row in writes),
            "now": now,
        },
        fetch=False,
    )


def _pending_sends(thread: _Thread) -> dict[tuple[str, str], list[Typed]]:
    """By namespace and checkpoint, the sends that its tasks wrote."""
    sends: dict[tuple[str, str], list[Typed]] = defaultdict(list)
    for ns, checkpoint_id, _, _, _, channel, kind, blob in thread.writes:
        if channel == TASKS:
            sends[ns, checkpoint_id].append((kind, bytes(blob)))
    return sends


def _sends_of(
    row: Sequence[Any], sends: Mapping[tuple[str, str], list[Typed]]
) -> list[Typed] | None:
    """The pending sends of a checkpoint whose format has them in its parent's writes.

    This saver never reads them there: they become the value of their channel, as upstream loads
    them.
    """
    ns, _, parent, _, stored, _ = row
    return sends.get((ns, parent)) if parent and stored.get("v", 1) < 4 else None


def _born(thread: _Thread) -> datetime | None:
    """When the thread began, before any pruning; None where nothing tells."""
    times = []
    for _, checkpoint_id, _, kind, stored, _ in thread.checkpoints:
        times += [time_of_saved(checkpoint_id, stored.get("ts"))]
        if kind and kind.startswith(POSTGRES_PREFIX):  # left where a sweep has pruned the thread
            times += [time_of_birth(kind.removeprefix(POSTGRES_PREFIX))]
    return moment(min((time for time in times if time is not None), default=None))
