"""Whatever state a connection is in: deletes are committed, or refused with a message."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import time

import aiosqlite
import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_ephemeral_checkpointer import (
    StorageError,
    StorageUnavailableError,
    StorageUnusableError,
    TTLPolicy,
    TTLSweeper,
)
from langgraph_ephemeral_checkpointer.testing import save_thread
from tests.support import backends
from tests.support.aging import uuid6_at
from tests.support.backends import Backend, PostgresStorage, SqliteStorage

DAY = 86400.0
NOW = 1_750_000_000.0
OLD = NOW - 10 * DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
LIMIT = 20
COLOURS = pytest.mark.parametrize("colour", ["sweep", "asweep"])


@pytest.fixture
async def planted(pg_dsn, tmp_path):
    async with backends.open_backend("pg-connection", "sweep", tmp_path, pg_dsn) as backend:
        for n in range(3):
            await backend.plant(f"t{n}", OLD)
        yield PostgresStorage(pg_dsn)


class TestPostgres:
    @COLOURS
    async def test_idle_without_autocommit_the_deletes_are_committed(self, planted, colour):
        with psycopg.connect(planted.dsn, row_factory=dict_row) as conn:
            backend = Backend("x", PostgresSaver(conn), colour, False, planted)
            result = await backend.sweep(POLICY, clock=lambda: NOW)
            assert sorted(result.deleted_thread_ids) == ["t0", "t1", "t2"]
            assert conn.info.transaction_status == TransactionStatus.IDLE
            assert planted.threads() == set()  # seen from another connection, so committed

    async def test_idle_without_autocommit_on_an_asynchronous_connection(self, planted):
        async with await psycopg.AsyncConnection.connect(planted.dsn, row_factory=dict_row) as conn:
            backend = Backend("x", AsyncPostgresSaver(conn), "asweep", True, planted)
            result = await backend.sweep(POLICY, clock=lambda: NOW)
            assert len(result.deleted_thread_ids) == 3
            assert planted.threads() == set()

    @COLOURS
    @pytest.mark.parametrize("statement", ["SELECT 1", "SELECT 1/0"], ids=["open", "failed"])
    async def test_in_an_open_transaction_the_sweep_is_refused(self, planted, colour, statement):
        with psycopg.connect(planted.dsn, row_factory=dict_row) as conn:
            with contextlib.suppress(psycopg.Error):
                conn.execute(statement)
            backend = Backend("x", PostgresSaver(conn), colour, False, planted)
            with pytest.raises(StorageUnusableError, match="autocommit=True"):
                await backend.sweep(POLICY, clock=lambda: NOW)
            assert planted.threads() == {"t0", "t1", "t2"}
            conn.rollback()
            assert len((await backend.sweep(POLICY, clock=lambda: NOW)).deleted_thread_ids) == 3

    async def test_an_open_transaction_of_an_asynchronous_connection(self, planted):
        async with await psycopg.AsyncConnection.connect(planted.dsn, row_factory=dict_row) as conn:
            await conn.execute("SELECT 1")
            backend = Backend("x", AsyncPostgresSaver(conn), "asweep", True, planted)
            with pytest.raises(StorageUnusableError, match="autocommit=True"):
                await backend.sweep(POLICY, clock=lambda: NOW)

    @pytest.mark.parametrize("autocommit", [True, False])
    async def test_a_pool_may_have_either_kind_of_connection(self, planted, autocommit):
        kwargs = {"autocommit": autocommit, "row_factory": dict_row}
        with ConnectionPool(planted.dsn, min_size=1, max_size=1, kwargs=kwargs) as pool:
            backend = Backend("x", PostgresSaver(pool), "sweep", False, planted)
            assert len((await backend.sweep(POLICY, clock=lambda: NOW)).deleted_thread_ids) == 3
        assert planted.threads() == set()

    async def test_a_closed_connection_says_that_it_does_not_come_back(self, planted):
        with psycopg.connect(planted.dsn) as conn:
            pass
        aconn = await psycopg.AsyncConnection.connect(planted.dsn)
        await aconn.close()
        for saver in (PostgresSaver(conn), AsyncPostgresSaver(aconn)):
            with pytest.raises(StorageUnusableError, match="does not come back; make a new"):
                await TTLSweeper(saver, POLICY).asweep()

    async def test_a_pool_that_is_not_open_names_open(self, planted):
        with ConnectionPool(planted.dsn, min_size=1, max_size=1, open=True) as closed:
            pass
        unopened = ConnectionPool(planted.dsn, open=False)
        aunopened = AsyncConnectionPool(planted.dsn, open=False)
        for saver in (*map(PostgresSaver, (closed, unopened)), AsyncPostgresSaver(aunopened)):
            with pytest.raises(StorageUnusableError, match=r"not open; .* \(pool.open\(\)"):
                await TTLSweeper(saver, POLICY).asweep()

    @pytest.mark.parametrize("granted", ["SELECT", "SELECT, DELETE", "SELECT, DELETE, UPDATE"])
    async def test_a_role_without_a_right_is_told_which_a_sweep_needs(self, planted, granted):
        role = f"sweeps_{time.time_ns()}"
        tables = "checkpoints, checkpoint_blobs, checkpoint_writes"
        with psycopg.connect(planted.dsn, autocommit=True) as owner:
            owner.execute(f"CREATE ROLE {role} LOGIN")
            try:
                owner.execute(f"GRANT {granted} ON {tables} TO {role}")
                dsn = psycopg.conninfo.make_conninfo(planted.dsn, user=role)
                with PostgresSaver.from_conn_string(dsn) as saver:
                    result = TTLSweeper(saver, POLICY, clock=lambda: NOW).sweep()
                    with pytest.raises(StorageError, match="setup\\(\\) of the trash"):
                        TTLSweeper(saver, POLICY, grace_seconds=1).setup()
            finally:
                owner.execute(f"DROP OWNED BY {role}")
                owner.execute(f"DROP ROLE {role}")
        told = "permission denied for table checkpoints; a sweep needs SELECT, DELETE and"
        enough = "UPDATE" in granted
        assert sorted(result.deleted_thread_ids) == (["t0", "t1", "t2"] if enough else [])
        assert set(result.errors) == (set() if enough else {"", "t0", "t1", "t2"})
        assert all(told in error for error in result.errors.values())

    @COLOURS
    async def test_a_connection_that_reads_text_as_bytes_is_refused(self, planted, colour):
        with psycopg.connect(
            planted.dsn, autocommit=True, row_factory=dict_row, client_encoding="SQL_ASCII"
        ) as conn:
            backend = Backend("x", PostgresSaver(conn), colour, False, planted)
            with pytest.raises(StorageUnusableError, match="client_encoding=UTF8"):
                await backend.sweep(POLICY, clock=lambda: NOW)
        kwargs = {"autocommit": True, "client_encoding": "SQL_ASCII"}
        async with AsyncConnectionPool(planted.dsn, min_size=1, open=False, kwargs=kwargs) as pool:
            backend = Backend("x", AsyncPostgresSaver(pool), "asweep", True, planted)
            with pytest.raises(StorageUnusableError, match="client_encoding=UTF8"):
                await backend.sweep(POLICY, clock=lambda: NOW)
        assert len(planted.threads()) == 3

    @pytest.mark.parametrize("encoding", ["LATIN1", "LATIN9", "WIN1252"])
    def test_an_encoding_that_is_changed_takes_no_other_thread(self, planted, encoding):
        """Its bytes are another thread's name in UTF-8."""
        idle, active = "\u00e9", "\u00e9".encode().decode("latin1")
        with PostgresSaver.from_conn_string(planted.dsn) as saver:
            save_thread(saver, idle, [NOW - 2 * DAY])
            save_thread(saver, active, [NOW])
            sweeper = TTLSweeper(saver, POLICY, clock=lambda: NOW)
            assert sweeper.sweep(dry_run=True).errors == {}
            saver.conn.execute(f"SET client_encoding TO {encoding}")
            result = sweeper.sweep()
            saver.conn.execute("SET client_encoding TO UTF8")
            assert result.errors == {}
            assert idle in result.deleted_thread_ids
            assert saver.get_tuple({"configurable": {"thread_id": active}}) is not None
            assert saver.get_tuple({"configurable": {"thread_id": idle}}) is None

    async def test_a_pool_that_has_no_connection_left_is_unavailable_after_its_timeout(
        self, planted
    ):
        with (
            ConnectionPool(planted.dsn, min_size=1, max_size=1, timeout=0.2, open=True) as pool,
            pool.connection(),
        ):
            backend = Backend("x", PostgresSaver(pool), "sweep", False, planted)
            with pytest.raises(StorageUnavailableError):
                await backend.sweep(POLICY)

    async def test_a_database_without_the_tables_names_setup(self, postgres_server):
        with PostgresSaver.from_conn_string(postgres_server) as saver:
            backend = Backend("x", saver, "sweep", False, None)
            saver.conn.execute("SET search_path = pg_temp")
            with pytest.raises(StorageUnusableError, match=r"setup\(\)"):
                await backend.sweep(POLICY)

    async def test_a_server_that_only_reads_is_unavailable_as_a_whole(self, planted):
        """As a replica after a failover: not one error for each thread."""
        with PostgresSaver.from_conn_string(planted.dsn) as saver:
            saver.conn.execute("SET default_transaction_read_only = on")
            backend = Backend("x", saver, "sweep", False, planted)
            result = await backend.sweep(POLICY, clock=lambda: NOW, batch_size=1)
        assert "read-only" in result.errors[""]
        assert (len(result.kept), result.deferred_count) == (1, 2)
        assert planted.threads() == {"t0", "t1", "t2"}

    async def test_later_ticks_recover_from_a_backend_that_is_terminated_between_ticks(
        self, planted
    ):
        kwargs = {"autocommit": True, "row_factory": dict_row}
        results = asyncio.Queue()
        async with AsyncConnectionPool(
            planted.dsn, min_size=1, max_size=2, kwargs=kwargs, open=False
        ) as pool:
            backend = Backend("x", AsyncPostgresSaver(pool), "asweep", True, planted)
            sweeper = backend.sweeper(
                POLICY, clock=lambda: NOW, on_sweep_complete=results.put_nowait
            )
            await sweeper.start(0.05)
            async with asyncio.timeout(LIMIT):
                assert len((await results.get()).deleted_thread_ids) == 3
                with psycopg.connect(planted.dsn, autocommit=True) as other:
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                    with PostgresSaver.from_conn_string(planted.dsn) as saver:
                        where = {"configurable": {"thread_id": "late", "checkpoint_ns": ""}}
                        saver.put(where, empty_checkpoint() | {"id": uuid6_at(OLD)}, {}, {})
                while "late" not in (await results.get()).deleted_thread_ids:
                    pass
                await sweeper.stop()

    async def test_a_backend_that_is_terminated_in_the_middle_of_a_delete(self, planted):
        """The batch is rolled back and reported, the rest deferred; the next sweep finishes."""
        with psycopg.connect(planted.dsn, autocommit=True) as other:
            other.execute(
                """
                CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN OLD; END $$;
                CREATE TRIGGER die BEFORE DELETE ON checkpoint_writes
                FOR EACH ROW WHEN (OLD.thread_id = 't1') EXECUTE FUNCTION die();
                """
            )
            kwargs = {"autocommit": True, "row_factory": dict_row}
            with ConnectionPool(planted.dsn, min_size=1, max_size=1, kwargs=kwargs) as pool:
                backend = Backend("x", PostgresSaver(pool), "sweep", False, planted)
                result = await backend.sweep(POLICY, clock=lambda: NOW, batch_size=1)
                other.execute("DROP FUNCTION die CASCADE")
                assert result.deleted_thread_ids == ["t0"]
                assert set(result.kept) == {"t1"}
                assert result.deferred_count == 1
                assert "terminat" in result.errors[""]
                assert planted.threads() == {"t1", "t2"}
                again = await backend.sweep(POLICY, clock=lambda: NOW)
                assert again.deleted_thread_ids == ["t1", "t2"]

    async def test_no_error_tells_the_password(self):
        dsn = "postgresql://me:hunter2@localhost:1/none"
        with ConnectionPool(dsn, min_size=0, max_size=1, timeout=0.2, open=True) as pool:
            sweeper = TTLSweeper(PostgresSaver(pool), POLICY)
            with pytest.raises(StorageError) as caught:
                sweeper.sweep()
        assert "hunter2" not in f"{caught.value} {caught.value.__cause__} {sweeper!r}"


ISOLATION = [{"isolation_level": level} for level in ("", None, "IMMEDIATE", "EXCLUSIVE")]
if sys.version_info >= (3, 12):
    ISOLATION.append({"autocommit": True})


class TestSqlite:
    @COLOURS
    @pytest.mark.parametrize("options", ISOLATION, ids=repr)
    async def test_deletes_are_committed_in_every_transaction_mode(self, tmp_path, options, colour):
        path = str(tmp_path / "checkpoints.db")
        conn = sqlite3.connect(path, check_same_thread=False, **options)
        backend = Backend(
            "x", SqliteSaver(conn), colour, False, SqliteStorage(path, SqliteSaver(conn).serde)
        )
        await backend.plant("t", OLD)
        result = await backend.sweep(POLICY, clock=lambda: NOW)
        assert result.deleted_thread_ids == ["t"]
        assert not conn.in_transaction
        assert backend.storage.threads() == set()
        conn.close()

    async def test_in_an_open_transaction_nothing_is_deleted(self, tmp_path):
        path = str(tmp_path / "checkpoints.db")
        with SqliteSaver.from_conn_string(path) as saver:
            backend = Backend("x", saver, "sweep", False, SqliteStorage(path, saver.serde))
            await backend.plant("t", OLD)
            saver.conn.execute("BEGIN")
            result = await backend.sweep(POLICY, clock=lambda: NOW)
            assert "transaction open" in result.errors[""]
            assert result.deleted_thread_ids == []
            assert saver.conn.in_transaction  # it is the owner's to end
            saver.conn.rollback()
            assert (await backend.sweep(POLICY, clock=lambda: NOW)).deleted_thread_ids == ["t"]

    async def test_a_connection_for_one_thread_only_under_asweep_says_what_to_do(self, tmp_path):
        conn = sqlite3.connect(tmp_path / "checkpoints.db")
        backend = Backend("x", SqliteSaver(conn), "asweep", False, None)
        await backend.plant("t", OLD)
        with pytest.raises(StorageUnusableError, match="check_same_thread=False"):
            await backend.sweep(POLICY)
        backend.colour = "sweep"
        assert (await backend.sweep(POLICY, clock=lambda: NOW)).deleted_thread_ids == ["t"]
        conn.close()

    async def test_a_row_factory_of_the_owner_does_not_matter(self, tmp_path):
        with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
            backend = Backend("x", saver, "sweep", False, None)
            await backend.plant("t", OLD)
            saver.conn.row_factory = sqlite3.Row
            assert (await backend.sweep(POLICY, clock=lambda: NOW)).deleted_thread_ids == ["t"]

    async def test_a_connection_that_reads_text_as_bytes_is_refused(self, tmp_path):
        path = str(tmp_path / "checkpoints.db")
        with SqliteSaver.from_conn_string(path) as saver:
            saver.setup()
            saver.conn.text_factory = bytes
            with pytest.raises(StorageUnusableError, match="text_factory=str"):
                TTLSweeper(saver, POLICY).sweep()
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            saver.conn.text_factory = bytes
            with pytest.raises(StorageUnusableError, match="text_factory=str"):
                await TTLSweeper(saver, POLICY).asweep()

    def test_a_closed_connection_says_to_open_another(self, tmp_path):
        with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
            sweeper = TTLSweeper(saver, POLICY)
        with pytest.raises(StorageUnusableError, match="open a new one") as raised:
            sweeper.sweep()
        assert "check_same_thread" not in str(raised.value)

    @pytest.mark.parametrize("dry_run", [True, False])
    async def test_a_file_that_was_never_set_up_is_empty(self, tmp_path, dry_run):
        path = tmp_path / "checkpoints.db"
        with SqliteSaver.from_conn_string(str(path)) as saver:
            result = await Backend("x", saver, "sweep", False, None).sweep(dry_run=dry_run)
        assert (result.deleted_thread_ids, result.active_thread_count) == ([], 0)
        saver = AsyncSqliteSaver(aiosqlite.connect(path))
        result = await Backend("x", saver, "asweep", True, None).sweep(dry_run=dry_run)
        assert (result.deleted_thread_ids, result.active_thread_count) == ([], 0)
        await saver.conn.close()
        conn = sqlite3.connect(path)
        assert conn.execute("SELECT name FROM sqlite_master").fetchall() == []
        conn.close()

    async def test_an_asynchronous_connection_that_nobody_has_awaited_is_opened(self, tmp_path):
        path = str(tmp_path / "checkpoints.db")
        with SqliteSaver.from_conn_string(path) as saver:
            await Backend("x", saver, "sweep", False, None).plant("t", OLD)
        saver = AsyncSqliteSaver(aiosqlite.connect(path))
        backend = Backend("x", saver, "asweep", True, SqliteStorage(path, saver.serde))
        assert (await backend.sweep(POLICY, clock=lambda: NOW)).deleted_thread_ids == ["t"]
        await backend.plant("later", OLD)  # the saver still sets itself up
        assert backend.has("later")
        await saver.conn.close()

    async def test_a_closed_asynchronous_connection_is_unavailable(self, tmp_path):
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
            await saver.setup()
        with pytest.raises(StorageUnusableError, match="cannot be used"):
            await Backend("x", saver, "asweep", True, None).sweep(POLICY)

    async def test_a_file_that_is_no_database_is_unavailable(self, tmp_path):
        path = tmp_path / "checkpoints.db"
        path.write_bytes(b"no database at all" * 100)
        conn = sqlite3.connect(path)
        with pytest.raises(StorageUnusableError, match="not a database"):
            await Backend("x", SqliteSaver(conn), "sweep", False, None).sweep(POLICY)
        conn.close()

    async def test_a_file_that_cannot_be_written_says_which_right_is_needed(self, tmp_path):
        async with backends.open_backend("sqlite", "sweep", tmp_path, None) as backend:
            await backend.plant("t", OLD)
            path = backend.storage.path
        conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        saver = SqliteSaver(conn)
        saver.is_setup = True
        result = TTLSweeper(saver, POLICY, clock=lambda: NOW).sweep()
        conn.close()
        assert set(result.kept) == {"t"}
        assert "the right to write to the file and its folder" in result.errors[""]


async def test_forty_thousand_threads_go_from_an_sqlite_with_a_low_variable_limit(tmp_path):
    path = str(tmp_path / "checkpoints.db")
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        saver.conn.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 100)
        saver.conn.executemany(
            "INSERT INTO checkpoints VALUES (?, '', ?, NULL, 'msgpack', x'80', x'7b7d')",
            ((f"t{n:05}", uuid6_at(OLD + n)) for n in range(40_000)),
        )
        saver.conn.execute(
            "INSERT INTO writes (thread_id, checkpoint_id, task_id, idx, channel) "
            "SELECT thread_id, checkpoint_id, 'task', 0, 'c' FROM checkpoints"
        )
        saver.conn.commit()
        backend = Backend("x", saver, "sweep", False, SqliteStorage(path, saver.serde))
        started = time.perf_counter()
        result = await backend.sweep(POLICY, clock=lambda: NOW)
        assert time.perf_counter() - started < 30
    assert len(set(result.deleted_thread_ids)) == 40_000
    assert backend.storage.threads() == set()
