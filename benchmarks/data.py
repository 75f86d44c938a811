"""Threads by the hundred thousand, written in bulk in the savers' own tables.

Ids are UUIDs of version 6 whose times are chosen; the payloads have the size and the
shape of a small chat graph's. Nothing here goes through a saver: that would take hours.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

DAY = 86_400.0
_GREGORIAN = 0x01B21DD213814000
_MESSAGES = b"\x81\xa8messages" + b"x" * 700


def checkpoint_id(seconds: float, salt: int) -> str:
    """Make the id of a checkpoint saved at a time; ``salt`` keeps ids apart."""
    digits = f"{int(seconds * 1e7) + _GREGORIAN:015x}"
    return f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}-8000-{salt:012x}"


def age_of(thread: int, threads: int, expired_share: float) -> float:
    """Seconds since a thread's newest checkpoint: the first ones are 40 days old."""
    return 40 * DAY if thread < threads * expired_share else 60.0


def _ids(thread: int, threads: int, checkpoints: int, share: float, now: float) -> list[str]:
    newest = now - age_of(thread, threads, share)
    # One turn a minute, so a thread of ten checkpoints spans ten minutes.
    return [
        checkpoint_id(newest - 60.0 * (checkpoints - 1 - step), thread * 1000 + step)
        for step in range(checkpoints)
    ]


def _version(step: int) -> str:
    return f"{step + 1:032}.0123456789012345"


def _document(id_: str, step: int, *, inline: bool) -> dict[str, object]:
    versions = {
        "messages": _version(step),
        "__start__": _version(0),
        "branch:to:model": _version(step),
    }
    return {
        "v": 4,
        "id": id_,
        "ts": "2026-01-01T00:00:00.000000+00:00",
        "channel_values": {"messages": "x" * 700} if inline else {},
        "channel_versions": versions,
        "versions_seen": {"__input__": {}, "__start__": versions, "model": versions},
        "updated_channels": ["messages"],
    }


def _rows(
    threads: int, checkpoints: int, share: float, now: float
) -> Iterator[tuple[str, str, str | None, int]]:
    for thread in range(threads):
        parent = None
        for step, id_ in enumerate(_ids(thread, threads, checkpoints, share, now)):
            yield f"thread-{thread:08d}", id_, parent, step
            parent = id_


# The rows of _rows(), made by the server: sent from here they would take twice as long.
# Threads and steps come in the order of the keys, so every index grows at its end.
_STEPS = """
    FROM generate_series(0::bigint, %(threads)s - 1) AS t (thread)
    CROSS JOIN generate_series(0::bigint, %(checkpoints)s - 1) AS s (step)
    CROSS JOIN LATERAL (SELECT
        'thread-' || lpad(thread::text, 8, '0') AS thread_id,
        lpad((step + 1)::text, 32, '0') || '.0123456789012345' AS version,
        %(now)s - 10000000 * (CASE WHEN thread < %(expired)s THEN 40 * 86400 ELSE 60 END
            + 60 * (%(checkpoints)s - 1 - step)) AS tick,
        thread * 1000 + step AS salt
    ) AS saved
    CROSS JOIN LATERAL (SELECT
        lpad(to_hex(tick), 15, '0') AS digits,
        lpad(to_hex(tick - 60 * 10000000), 15, '0') AS earlier
    ) AS times
    CROSS JOIN LATERAL (SELECT
        left(digits, 8) || '-' || substr(digits, 9, 4) || '-6' || substr(digits, 13) || '-8000-'
            || lpad(to_hex(salt), 12, '0') AS id,
        CASE WHEN step > 0 THEN left(earlier, 8) || '-' || substr(earlier, 9, 4) || '-6'
            || substr(earlier, 13) || '-8000-' || lpad(to_hex(salt - 1), 12, '0') END AS parent
    ) AS ids
"""
_FILL = {
    "checkpoints": """
        (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata)
    SELECT thread_id, '', id, parent,
        replace(replace(%(document)s, '<id>', id), '<version>', version)::jsonb,
        %(metadata)s::jsonb
    """,
    "checkpoint_blobs": """
        (thread_id, checkpoint_ns, channel, version, type, blob)
    SELECT thread_id, '', 'messages', version, 'msgpack', %(messages)s
    """,
    "checkpoint_writes": """
        (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)
    SELECT thread_id, '', id, lpad(to_hex(step), 8, '0') || '-0000-0000-0000-000000000000', 0,
        'messages', 'msgpack', substr(%(messages)s, 1, 200)
    """,
}


def fill_postgres(
    dsn: str, threads: int, checkpoints: int, expired_share: float, now: float | None = None
) -> None:
    """Fill the tables of an upstream ``PostgresSaver``; they must exist and be empty."""
    now = time.time() if now is None else now
    document = json.dumps(_document("<id>", -1, inline=False))
    values = {
        "threads": threads,
        "checkpoints": checkpoints,
        "expired": threads * expired_share,
        "now": int(now * 1e7) + _GREGORIAN,
        "document": document.replace(_version(-1), "<version>"),
        "metadata": json.dumps({"source": "loop", "step": 1, "parents": {}}),
        "messages": _MESSAGES,
    }

    def fill(table: str) -> None:
        with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as conn:
            conn.execute(f"INSERT INTO {table} {_FILL[table]} {_STEPS}", values)
            conn.execute(f"VACUUM ANALYZE {table}")

    with ThreadPoolExecutor(len(_FILL)) as pool:
        list(pool.map(fill, _FILL))


def fill_sqlite(
    path: str, threads: int, checkpoints: int, expired_share: float, now: float | None = None
) -> None:
    """Fill the tables of an upstream ``SqliteSaver`` at a path where nothing is yet."""
    import ormsgpack
    from langgraph.checkpoint.sqlite import SqliteSaver

    now = time.time() if now is None else now
    metadata = json.dumps({"source": "loop", "step": 1, "parents": {}}).encode()
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
    conn = sqlite3.connect(path)
    with conn:
        conn.executemany(
            "INSERT INTO checkpoints VALUES (?, '', ?, ?, 'msgpack', ?, ?)",
            (
                (thread, id_, parent, ormsgpack.packb(_document(id_, step, inline=True)), metadata)
                for thread, id_, parent, step in _rows(threads, checkpoints, expired_share, now)
            ),
        )
        conn.executemany(
            "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, "
            "type, value) VALUES (?, '', ?, ?, 0, 'messages', 'msgpack', ?)",
            (
                (thread, id_, f"task-{step}", _MESSAGES[:200])
                for thread, id_, _, step in _rows(threads, checkpoints, expired_share, now)
            ),
        )
    conn.execute("ANALYZE")
    conn.close()


def filled_memory(
    threads: int, checkpoints: int, expired_share: float, now: float | None = None
) -> Any:
    """Make an ``InMemorySaver`` with threads.

    Only the newest checkpoint of a thread has a document of its own, to save memory.
    """
    from langgraph.checkpoint.memory import InMemorySaver

    now = time.time() if now is None else now
    saver = InMemorySaver()
    shared = saver.serde.dumps_typed(_document(checkpoint_id(now, 0), 0, inline=False))
    metadata = saver.serde.dumps_typed({"source": "loop", "step": 1, "parents": {}})
    blob, write = ("msgpack", _MESSAGES), ("msgpack", _MESSAGES[:200])
    for thread, id_, parent, step in _rows(threads, checkpoints, expired_share, now):
        document = shared
        if step == checkpoints - 1:
            document = saver.serde.dumps_typed(_document(id_, step, inline=False))
        saver.storage[thread][""][id_] = (document, metadata, parent)
        saver.blobs[(thread, "", "messages", _version(step))] = blob
        saver.writes[(thread, "", id_)][("task", 0)] = ("task", "messages", write, "")
    return saver
