"""Trying whether the Postgres trash can put back what it takes, with nothing left of the trial."""

from __future__ import annotations

from typing import TypeAlias

import psycopg

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import StorageUnusableError
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import TABLES
from langgraph_ephemeral_checkpointer.strategies.postgres.trash_tables import Layout

_THREAD = "lgec_trial"
# A root and a subgraph, with a value and a write each. Only columns that every saver fills.
_STORE = {
    "checkpoints": (
        "INSERT INTO {live} (thread_id, checkpoint_ns, checkpoint_id, checkpoint, metadata) "
        "SELECT %(id)s, ns, 'trial', '{{\"v\": 1}}', '{{}}' FROM unnest(ARRAY['', 'sub']) AS ns "
        "RETURNING 1"
    ),
    "checkpoint_blobs": (
        "INSERT INTO {live} (thread_id, checkpoint_ns, channel, version, type, blob) "
        "SELECT %(id)s, ns, 'trial', '1', 'bytes', '\\x00ff' FROM unnest(ARRAY['', 'sub']) AS ns "
        "RETURNING 1"
    ),
    "checkpoint_writes": (
        "INSERT INTO {live} "
        "(thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob) "
        "SELECT %(id)s, ns, 'trial', 'trial', 0, 'trial', 'bytes', '\\x00ff' "
        "FROM unnest(ARRAY['', 'sub']) AS ns RETURNING 1"
    ),
}

Rows: TypeAlias = dict[str, list[str]]


def try_out(layout: Layout) -> Plan[Statement, None]:
    """Move a thread to the trash and back, compare, and undo all of it.

    It is a made-up one, or one that is stored where the tables take no unknown thread (each has a
    partition, or is named in a table of the application).

    Args:
        layout: Where the trash is, set up.

    Raises:
        StorageUnusableError: The thread did not come back as it was, or there is none to try.
    """
    yield Statement("SAVEPOINT lgec_trial", fetch=False)
    thread_id = _THREAD
    try:
        for table, store in _STORE.items():
            yield Statement(layout.fill(store, live=layout.name(table)), {"id": thread_id})
    except psycopg.errors.IntegrityError as error:
        yield Statement("ROLLBACK TO SAVEPOINT lgec_trial", fetch=False)
        stored = yield Statement(layout.fill("SELECT thread_id FROM {checkpoints} LIMIT 1"))
        if not stored:
            raise StorageUnusableError(
                "whether the trash can put threads back cannot be tried, since the tables refuse a "
                f"made-up one ({error}); store a first thread, then call setup() again"
            ) from error
        thread_id = stored[0][0]
    yield from _there_and_back(layout, thread_id)
    yield Statement("ROLLBACK TO SAVEPOINT lgec_trial", fetch=False)
    yield Statement("RELEASE SAVEPOINT lgec_trial", fetch=False)


def _there_and_back(layout: Layout, thread_id: str) -> Plan[Statement, None]:
    before = yield from _rows(layout, thread_id)
    ((generation,),) = yield Statement(
        layout.fill(
            "INSERT INTO {trash} (thread_id, reason, deleted_at, keep_until) "
            "VALUES (%s, 'trial', 0, 0) RETURNING generation"
        ),
        (thread_id,),
    )
    for table in reversed(TABLES):
        try:
            yield Statement(layout.move(table), ([thread_id], [generation], [thread_id]))
        except psycopg.DatabaseError as error:
            raise _refusal(f"of {table}: the move failed: {error}") from error
    left = yield from _rows(layout, thread_id)
    for table, rows in left.items():
        if rows:
            raise _refusal(f"of {table}: a delete leaves them there, perhaps for a trigger")
    try:
        yield Statement(layout.fill("SELECT {restore}(ARRAY[%s::bigint])"), (generation,))
    except psycopg.DatabaseError as error:
        raise _refusal(f"again: {error}") from error
    after = yield from _rows(layout, thread_id)
    for table, rows in after.items():
        if rows != before[table]:
            raise _refusal(f"of {table} as they were: something rewrites them, perhaps a trigger")


def _rows(layout: Layout, thread_id: str) -> Plan[Statement, Rows]:
    """Read the rows of a thread, every column as text."""
    found: Rows = {}
    for table in TABLES:
        rows = yield Statement(
            layout.fill(
                "SELECT live::text FROM {live} AS live WHERE thread_id = %s ORDER BY 1",
                live=layout.name(table),
            ),
            (thread_id,),
        )
        found[table] = [row[0] for row in rows]
    return found


def _refusal(what: str) -> StorageUnusableError:
    return StorageUnusableError(
        f"the trash could not put back the rows {what}. Nothing was set up or changed; remove what "
        "is in the way, or sweep without grace_seconds"
    )
