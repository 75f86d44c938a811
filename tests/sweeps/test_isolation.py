"""A thread that cannot be deleted stays whole, is reported, and stops or starves no other."""

from __future__ import annotations

import sqlite3
import time
from contextlib import contextmanager

import psycopg
import pytest

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from tests.support import backends

DAY = 86400.0
NOW = 1_750_000_000.0
OLD = NOW - 10 * DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
PG_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")

postgres = pytest.mark.parametrize(
    "backend",
    [one for one in backends.PARAMS if backends.is_postgres(one[0])],
    ids="-".join,
    indirect=True,
)
sqlite = pytest.mark.parametrize(
    "backend",
    [("sqlite", "sweep"), ("sqlite", "asweep"), ("aiosqlite", "asweep")],
    ids="-".join,
    indirect=True,
)


@contextmanager
def executed(backend, before, after=None):
    """Run SQL on the backend's database, and other SQL at the end."""
    if backends.is_postgres(backend.kind):
        with psycopg.connect(backend.storage.dsn, autocommit=True) as conn:
            conn.execute(before)
            try:
                yield
            finally:
                conn.execute(after)
        return
    conn = sqlite3.connect(backend.storage.path)
    conn.executescript(before)
    conn.close()
    yield


async def _plant_five(backend):
    for thread_id in ("a", "bad", "c", "d", "e"):
        await backend.plant(thread_id, OLD)


async def _one_fails(backend, *, safe_delete=True):
    """Sweep five threads of which ``bad`` cannot be deleted; the result, once checked."""
    if not backend.has("bad"):
        await _plant_five(backend)
    whole = backend.dump("bad")
    result = await backend.sweep(POLICY, clock=lambda: NOW, safe_delete=safe_delete)
    assert sorted(result.deleted_thread_ids) == ["a", "c", "d", "e"]
    assert set(result.kept) == {"bad"}
    assert result.active_thread_count == 1
    assert backend.dump("bad") == whole
    assert not any(backend.has(thread_id) for thread_id in ("a", "c", "d", "e"))
    return result


RAISES = """
    CREATE FUNCTION no_delete() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'the bad row'; END $$;
    CREATE TRIGGER no_delete BEFORE DELETE ON {table}
    FOR EACH ROW WHEN (OLD.thread_id = 'bad') EXECUTE FUNCTION no_delete();
"""


class TestPostgres:
    @postgres
    @pytest.mark.parametrize("table", PG_TABLES)
    async def test_a_delete_that_fails_in_any_table_leaves_the_thread_whole(self, backend, table):
        with executed(backend, RAISES.format(table=table), "DROP FUNCTION no_delete CASCADE"):
            result = await _one_fails(backend)
        assert result.kept == {"bad": KeepReason.FAILED}
        assert "the bad row" in result.errors["bad"]
        again = await backend.sweep(POLICY, clock=lambda: NOW)
        assert again.deleted_thread_ids == ["bad"]
        assert not backend.has("bad")

    @postgres
    async def test_a_delete_that_fails_leaves_the_thread_whole_without_safe_delete(self, backend):
        sql = RAISES.format(table="checkpoint_writes")
        with executed(backend, sql, "DROP FUNCTION no_delete CASCADE"):
            await _one_fails(backend, safe_delete=False)

    @postgres
    async def test_a_trigger_that_holds_rows_back_silently_keeps_the_thread(self, backend):
        sql = RAISES.format(table="checkpoints").replace(
            "RAISE EXCEPTION 'the bad row'", "RETURN NULL"
        )
        with executed(backend, sql, "DROP FUNCTION no_delete CASCADE"):
            await _one_fails(backend)

    @pytest.mark.parametrize(
        "backend",
        [("pg-connection", "sweep"), ("apg-pipeline", "asweep")],
        ids="-".join,
        indirect=True,
    )
    @pytest.mark.parametrize(
        ("table", "order"),
        [
            ("checkpoints", "ASC"),
            ("checkpoints", "DESC"),
            ("checkpoint_blobs", "ASC"),
            ("checkpoint_writes", "ASC"),
        ],
    )
    async def test_a_row_that_another_session_has_locked(self, backend, table, order):
        """Waits are short: the graph may wait for the rows that the sweep has locked itself."""
        await _plant_five(backend)
        with psycopg.connect(backend.storage.dsn) as conn:
            conn.execute(
                f"SELECT * FROM {table} WHERE thread_id = 'bad' "
                f"ORDER BY 1, 2, 3 {order} LIMIT 1 FOR UPDATE"
            )
            started = time.perf_counter()
            result = await _one_fails(backend)
            assert time.perf_counter() - started < 5
        assert result.kept["bad"] in (KeepReason.BUSY, KeepReason.FAILED)
        again = await backend.sweep(POLICY, clock=lambda: NOW)
        assert again.deleted_thread_ids == ["bad"]


class TestSqlite:
    @sqlite
    @pytest.mark.parametrize("table", ["checkpoints", "writes"])
    @pytest.mark.parametrize("how", ["ABORT", "FAIL", "ROLLBACK"])
    async def test_a_delete_that_fails_in_any_table_leaves_the_thread_whole(
        self, backend, table, how
    ):
        sql = (
            f"CREATE TRIGGER no_delete BEFORE DELETE ON {table} WHEN OLD.thread_id = 'bad' "
            f"BEGIN SELECT RAISE({how}, 'the bad row'); END"
        )
        with executed(backend, sql):
            result = await _one_fails(backend)
        assert result.kept == {"bad": KeepReason.FAILED}
        assert "the bad row" in result.errors["bad"]
        with executed(backend, "DROP TRIGGER no_delete"):
            again = await backend.sweep(POLICY, clock=lambda: NOW)
        assert again.deleted_thread_ids == ["bad"]

    @sqlite
    async def test_a_trigger_that_holds_rows_back_silently_keeps_the_thread(self, backend):
        sql = (
            "CREATE TRIGGER no_delete BEFORE DELETE ON checkpoints WHEN OLD.thread_id = 'bad' "
            "BEGIN SELECT RAISE(IGNORE); END"
        )
        with executed(backend, sql):
            result = await _one_fails(backend)
        assert "RAISE(IGNORE)" in result.errors["bad"]

    @sqlite
    async def test_a_database_that_another_connection_writes_to(self, backend):
        """Reported, with everything still there, and the next sweep succeeds."""
        timeout = "PRAGMA busy_timeout = 50"
        if backend.is_async:
            await backend.saver.conn.execute(timeout)
        else:
            backend.saver.conn.execute(timeout)
        for n in range(3):
            await backend.plant(f"t{n}", OLD)
        other = sqlite3.connect(backend.storage.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        result = await backend.sweep(POLICY, clock=lambda: NOW, batch_size=2)
        assert "locked" in result.errors[""]
        assert result.deleted_thread_ids == []
        assert result.kept == dict.fromkeys(("t0", "t1"), KeepReason.FAILED)
        assert (result.deferred_count, result.active_thread_count) == (1, 3)
        assert all(backend.has(f"t{n}") for n in range(3))
        other.execute("ROLLBACK")
        other.close()
        again = await backend.sweep(POLICY, clock=lambda: NOW)
        assert again.deleted_thread_ids == ["t0", "t1", "t2"]


class TestForeign:
    @pytest.mark.parametrize(
        "backend",
        [one for one in backends.PARAMS if one[0].startswith("foreign")],
        ids="-".join,
        indirect=True,
    )
    async def test_a_saver_that_cannot_delete_a_thread(self, backend, monkeypatch):
        delete = backend.saver.hidden.delete_thread

        def failing(thread_id):
            if thread_id == "bad":
                raise OSError("the bad row")
            delete(thread_id)

        monkeypatch.setattr(backend.saver.hidden, "delete_thread", failing)
        result = await _one_fails(backend)
        assert "the bad row" in result.errors["bad"]

    @pytest.mark.parametrize(
        "backend",
        [one for one in backends.PARAMS if one[0].startswith("foreign")],
        ids="-".join,
        indirect=True,
    )
    async def test_a_saver_that_does_not_delete_what_it_says(self, backend, monkeypatch):
        delete = backend.saver.hidden.delete_thread

        def idle(thread_id):
            if thread_id != "bad":
                delete(thread_id)

        monkeypatch.setattr(backend.saver.hidden, "delete_thread", idle)
        result = await _one_fails(backend)
        assert "left checkpoints" in result.errors["bad"]


@pytest.mark.parametrize(
    "backend",
    [("sqlite", "sweep"), ("aiosqlite", "asweep"), ("pg-pool", "sweep"), ("apg-pool", "asweep")],
    ids="-".join,
    indirect=True,
)
async def test_the_oldest_that_fail_each_time_do_not_starve_the_sixth(backend):
    if backends.is_postgres(backend.kind):
        before = RAISES.format(table="checkpoints").replace("= 'bad'", "LIKE 'bad%'")
        after = "DROP FUNCTION no_delete CASCADE"
    else:
        before = (
            "CREATE TRIGGER no_delete BEFORE DELETE ON checkpoints "
            "WHEN OLD.thread_id LIKE 'bad%' BEGIN SELECT RAISE(ABORT, 'the bad row'); END"
        )
        after = None
    for n in range(5):
        await backend.plant(f"bad{n}", OLD - 1000 + n)
    for n in range(7):
        await backend.plant(f"fine{n}", OLD + n)
    with executed(backend, before, after):
        sweeper = backend.sweeper(POLICY, clock=lambda: NOW, max_deletes_per_sweep=5, batch_size=5)
        first, second = await backend.sweep(sweeper), await backend.sweep(sweeper)
    assert first.deleted_thread_ids == [f"fine{n}" for n in range(5)]
    assert second.deleted_thread_ids == ["fine5", "fine6"]
    for result, deferred in ((first, 2), (second, 0)):
        assert result.kept == {f"bad{n}": KeepReason.FAILED for n in range(5)}
        assert result.deferred_count == deferred


@postgres
@pytest.mark.parametrize("table", PG_TABLES)
async def test_a_table_locked_as_a_whole_is_waited_for_once_and_stops_the_sweep(backend, table):
    """Not once for each thread, which is hours where ten thousand have expired."""
    await _plant_five(backend)
    with psycopg.connect(backend.storage.dsn) as conn:
        conn.execute(f"LOCK TABLE {table} IN SHARE MODE")  # as CREATE INDEX takes it
        waited = -time.monotonic()
        result = await backend.sweep(POLICY, clock=lambda: NOW, batch_size=2)
        waited += time.monotonic()
    assert waited < 2
    assert "locked a whole table" in result.errors[""]
    assert result.deleted_thread_ids == []
    assert len((await backend.sweep(POLICY, clock=lambda: NOW)).deleted_thread_ids) == 5
