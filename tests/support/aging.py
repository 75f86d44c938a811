"""Makes stored threads old, by moving every time in their rows back.

Works on finished threads. A thread with pending tasks can be made old too, but not resumed:
LangGraph derives a task's id from the checkpoint's. Give the sweeper a later ``clock`` there.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from datetime import datetime, timedelta
from typing import Any

import psycopg
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol

GREGORIAN = 0x01B21DD213814000


def uuid6_at(seconds: float, sequence: int = 0, node: int = 0x123456789ABC) -> str:
    """The checkpoint id that LangGraph would make at a time, in seconds since the epoch."""
    ticks = round(seconds * 10_000_000) + GREGORIAN
    return _uuid6(ticks, 0x8000000000000000 | (sequence & 0x3FFF) << 48 | node)


def _uuid6(ticks: int, low: int) -> str:
    # Not UUID(version=6), which Python below 3.14 refuses.
    return str(uuid.UUID(int=ticks >> 12 << 80 | 6 << 76 | (ticks & 0xFFF) << 64 | low))


def uuid7_at(seconds: float, low: int = 1) -> str:
    """A UUID version 7 of a time."""
    digits = f"{round(seconds * 1000):012x}7000{0x8000000000000000 + low:016x}"
    return str(uuid.UUID(digits))


def shift_id(checkpoint_id: str, seconds: float) -> str:
    """A UUID version 6 moved in time; anything else as it is."""
    try:
        value = uuid.UUID(checkpoint_id)
    except ValueError:
        return checkpoint_id
    if value.version != 6:
        return checkpoint_id
    ticks = (value.int >> 80) << 12 | (value.int >> 64) & 0xFFF
    ticks += round(seconds * 10_000_000)
    return _uuid6(ticks, value.int & 0xFFFFFFFFFFFFFFFF)


def _shift_checkpoint(checkpoint: dict[str, Any], seconds: float) -> dict[str, Any]:
    moment = datetime.fromisoformat(checkpoint["ts"]) + timedelta(seconds=seconds)
    return {
        **checkpoint,
        "id": shift_id(checkpoint["id"], seconds),
        "ts": moment.isoformat(),
    }


def _shift_metadata(metadata: dict[str, Any], seconds: float) -> dict[str, Any]:
    parents = {ns: shift_id(at, seconds) for ns, at in metadata.get("parents", {}).items()}
    return {**metadata, "parents": parents} if parents else metadata


def shift_memory(saver: InMemorySaver, thread_id: str, seconds: float) -> None:
    """Move one thread of an InMemorySaver in time; negative is into the past."""
    serde = saver.serde

    def moved(row: Any) -> Any:
        checkpoint, metadata, parent = row
        return (
            serde.dumps_typed(_shift_checkpoint(serde.loads_typed(checkpoint), seconds)),
            serde.dumps_typed(_shift_metadata(serde.loads_typed(metadata), seconds)),
            parent and shift_id(parent, seconds),
        )

    for namespace, rows in saver.storage[thread_id].items():
        saver.storage[thread_id][namespace] = {
            shift_id(checkpoint_id, seconds): moved(row) for checkpoint_id, row in rows.items()
        }
    for key in [key for key in saver.writes if key[0] == thread_id]:
        saver.writes[(key[0], key[1], shift_id(key[2], seconds))] = saver.writes.pop(key)


def shift_sqlite(path: str, serde: SerializerProtocol, thread_id: str, seconds: float) -> None:
    """Move one thread of an SQLite file in time, on a connection of its own."""
    with sqlite3.connect(path) as conn:
        for rowid, checkpoint_id, parent, type_, blob, metadata in conn.execute(
            "SELECT rowid, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata "
            "FROM checkpoints WHERE thread_id = ?",
            (thread_id,),
        ).fetchall():
            checkpoint = _shift_checkpoint(serde.loads_typed((type_, blob)), seconds)
            conn.execute(
                "UPDATE checkpoints SET checkpoint_id = ?, parent_checkpoint_id = ?, type = ?, "
                "checkpoint = ?, metadata = ? WHERE rowid = ?",
                (
                    shift_id(checkpoint_id, seconds),
                    parent and shift_id(parent, seconds),
                    *serde.dumps_typed(checkpoint),
                    json.dumps(_shift_metadata(json.loads(metadata), seconds)).encode(),
                    rowid,
                ),
            )
        for rowid, checkpoint_id in conn.execute(
            "SELECT rowid, checkpoint_id FROM writes WHERE thread_id = ?", (thread_id,)
        ).fetchall():
            conn.execute(
                "UPDATE writes SET checkpoint_id = ? WHERE rowid = ?",
                (shift_id(checkpoint_id, seconds), rowid),
            )
    conn.close()


def shift_postgres(dsn: str, thread_id: str, seconds: float) -> None:
    """Move one thread of the upstream Postgres tables in time, on a connection of its own."""
    with psycopg.connect(dsn) as conn:
        for namespace, checkpoint_id, parent, checkpoint, metadata in conn.execute(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata "
            "FROM checkpoints WHERE thread_id = %s ORDER BY checkpoint_id",
            (thread_id,),
        ).fetchall():
            conn.execute(
                "UPDATE checkpoints SET checkpoint_id = %s, parent_checkpoint_id = %s, "
                "checkpoint = %s, metadata = %s "
                "WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
                (
                    shift_id(checkpoint_id, seconds),
                    parent and shift_id(parent, seconds),
                    json.dumps(_shift_checkpoint(checkpoint, seconds)),
                    json.dumps(_shift_metadata(metadata, seconds)),
                    thread_id,
                    namespace,
                    checkpoint_id,
                ),
            )
        for namespace, checkpoint_id in conn.execute(
            "SELECT DISTINCT checkpoint_ns, checkpoint_id FROM checkpoint_writes "
            "WHERE thread_id = %s",
            (thread_id,),
        ).fetchall():
            conn.execute(
                "UPDATE checkpoint_writes SET checkpoint_id = %s "
                "WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
                (shift_id(checkpoint_id, seconds), thread_id, namespace, checkpoint_id),
            )
