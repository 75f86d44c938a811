"""The sweeper needs neither the classes nor the key of the state it deletes."""

from __future__ import annotations

import pytest

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from tests.support import backends

DAY = 86400.0
NOW = 1_750_000_000.0
OLD, YOUNG = NOW - 10 * DAY, NOW - 60
POLICY = TTLPolicy(idle_ttl_seconds=DAY, hard_age_ttl_seconds=100 * DAY)

our_own = pytest.mark.parametrize(
    "backend",
    [one for one in backends.PARAMS if not one[0].startswith("foreign")],
    ids="-".join,
    indirect=True,
)


class Locked:
    """A serializer without its key: it writes, and reads nothing back."""

    def dumps_typed(self, obj):
        return "msgpack+vault", repr(obj).encode()[::-1]

    def loads_typed(self, data):
        raise PermissionError("no key")

    def dumps(self, obj):
        return repr(obj).encode()[::-1]

    def loads(self, data):
        raise PermissionError("no key")


@our_own
async def test_state_without_its_key_is_swept_like_any_other(backend):
    backend.saver.serde = Locked()
    for thread_id, at in (("old", OLD), ("young", YOUNG), ("waiting", OLD)):
        head = await backend.plant(thread_id, at)
    await backend.put_writes("waiting", head, ("__interrupt__", "may I?"), task_id="asks")
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == ["old"]
    assert result.kept == {"waiting": KeepReason.INTERRUPTED}
    assert not backend.has("old")


BAD_BYTES = {
    "empty": b"",
    "no msgpack": b"\xc1\xff\xff",
    "cut off": b"\xdd\xff\xff\xff\xff",
    "deep": b"\x91" * 5000 + b"\x01",
    "a class that is gone": b"\x81\xa2ts\xc7\x05\x02hello",
    "no mapping": b"\x05",
}


@pytest.mark.parametrize("backend", [("memory", "sweep")], ids="-".join, indirect=True)
@pytest.mark.parametrize("type_", ["msgpack", "json", "pickle", "msgpack+aes", "null", "", None])
@pytest.mark.parametrize(
    "blob", [*BAD_BYTES.values(), b"[" * 200_000], ids=[*BAD_BYTES, "deep json"]
)
async def test_bytes_that_nobody_can_read_keep_their_age_by_the_id_or_make_it_unknown(
    backend, type_, blob
):
    for thread_id, checkpoint_id in (("by id", OLD), ("by ts", "an id")):
        await backend.put(thread_id, checkpoint_id)
        for rows in backend.saver.storage[thread_id].values():
            for found, row in rows.items():
                rows[found] = ((type_, blob), row[1], row[2])
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == ["by id"]
    assert result.kept == {"by ts": KeepReason.AGE_UNKNOWN}


@pytest.mark.parametrize(
    "backend", [("sqlite", "sweep"), ("aiosqlite", "asweep")], ids="-".join, indirect=True
)
@pytest.mark.parametrize(
    ("type_", "blob"),
    [("msgpack", b"\xc1"), ("json", b"[" * 200_000), ("json", 5), ("json", 1.5), (None, None)],
)
async def test_a_row_that_nobody_can_read_does_not_stop_a_sweep_of_sqlite(backend, type_, blob):
    import sqlite3

    await backend.put("old", OLD)
    await backend.put("unreadable", "an id")
    with sqlite3.connect(backend.storage.path) as conn:
        conn.execute("UPDATE checkpoints SET type = ?, checkpoint = ?", (type_, blob))
    conn.close()
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == ["old"]
    assert result.kept == {"unreadable": KeepReason.AGE_UNKNOWN}


@pytest.mark.parametrize(
    "backend",
    [one for one in backends.ONE_EACH if backends.is_postgres(one[0])],
    ids="-".join,
    indirect=True,
)
@pytest.mark.parametrize("checkpoint", ["null", "5", "[]", '"text"', "{}", '{"ts": {"a": 1}}'])
async def test_a_row_that_nobody_can_read_does_not_stop_a_sweep_of_postgres(backend, checkpoint):
    import psycopg

    await backend.put("old", OLD)
    await backend.put("unreadable", "an id")
    with psycopg.connect(backend.storage.dsn, autocommit=True) as conn:
        conn.execute("UPDATE checkpoints SET checkpoint = %s", (checkpoint,))
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == ["old"]
    assert result.kept == {"unreadable": KeepReason.AGE_UNKNOWN}
