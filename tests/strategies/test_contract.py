"""Every strategy of this package keeps the contract that it asks of others."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing, contextmanager

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_ephemeral_checkpointer.strategies import (
    AsyncPostgresStrategy,
    AsyncSqliteStrategy,
    AsyncTenantPostgresStrategy,
    GenericStrategy,
    MemoryStrategy,
    PostgresStrategy,
    SqliteStrategy,
    TenantPostgresStrategy,
)
from langgraph_ephemeral_checkpointer.strategies.registry import detect_strategy
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from langgraph_ephemeral_checkpointer.testing import (
    CONTRACT,
    StrategyContract,
    acheck_strategy,
    check_strategy,
    save_thread,
)

_TENANTS = {"schema": "contract_of_tenants"}

_POOL = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@contextmanager
def sqlite_saver():
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        yield SqliteSaver(connection)


def async_sqlite_saver():
    return AsyncSqliteSaver.from_conn_string(":memory:")


class TestMemoryStrategy(StrategyContract):
    def make_saver(self):
        return InMemorySaver()


class TestSqliteStrategy(StrategyContract):
    def make_saver(self):
        return sqlite_saver()


class TestAsyncSqliteStrategy(StrategyContract):
    def make_saver(self):
        return async_sqlite_saver()


class _Postgres(StrategyContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_database):
        self.dsn = postgres_database

    def emptied(self):
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes")
        return self.dsn


class TestPostgresStrategy(_Postgres):
    def make_saver(self):
        return PostgresSaver.from_conn_string(self.emptied())


class TestPostgresStrategyOnAPool(_Postgres):
    @contextmanager
    def make_saver(self):
        with ConnectionPool(self.emptied(), min_size=1, max_size=2, kwargs=_POOL) as pool:
            yield PostgresSaver(pool)


class TestAsyncPostgresStrategy(_Postgres):
    def make_saver(self):
        return AsyncPostgresSaver.from_conn_string(self.emptied())


class TestAsyncPostgresStrategyOnAPool(_Postgres):
    @asynccontextmanager
    async def make_saver(self):
        dsn = self.emptied()
        async with AsyncConnectionPool(dsn, min_size=1, max_size=2, kwargs=_POOL) as pool:
            yield AsyncPostgresSaver(pool)


class _Tenants(_Postgres):
    """Threads of another tenant are beside every test, under ids that the rules use."""

    def options(self):
        with TenantPostgresSaver.from_conn_string(self.dsn, **_TENANTS, tenant="other") as other:
            other.setup()
            names = ", ".join(other.names.quoted().values())
            other.conn.execute(f"TRUNCATE {names}")
            for thread_id in ("idle", "doomed", "stays", "a", "again", "waits"):
                save_thread(other, thread_id, [1_700_000_000.0])
        return _TENANTS


class TestTenantPostgresStrategy(_Tenants):
    def make_saver(self):
        return TenantPostgresSaver.from_conn_string(self.dsn, **self.options())


class TestTenantPostgresStrategyOnAPool(_Tenants):
    @contextmanager
    def make_saver(self):
        with ConnectionPool(self.dsn, min_size=1, max_size=2) as pool:
            yield TenantPostgresSaver(pool, **self.options())


class TestAsyncTenantPostgresStrategy(_Tenants):
    def make_saver(self):
        return AsyncTenantPostgresSaver.from_conn_string(self.dsn, **self.options())


class TestAsyncTenantPostgresStrategyOnAPool(_Tenants):
    @asynccontextmanager
    async def make_saver(self):
        async with AsyncConnectionPool(self.dsn, min_size=1, max_size=2) as pool:
            yield AsyncTenantPostgresSaver(pool, **self.options())


@pytest.mark.parametrize("make_saver", [InMemorySaver, sqlite_saver, async_sqlite_saver])
def test_the_generic_strategy_keeps_the_contract_on_savers_of_both_colours(make_saver):
    report = check_strategy(make_saver, GenericStrategy)
    colours = 1 if make_saver is async_sqlite_saver else 2
    assert len(report.passed) == colours * len([one for one in CONTRACT if one.needs is None])
    assert len(report.passed) + len(report.not_applicable) == colours * len(CONTRACT)
    assert report.notes == ()


async def test_the_contract_can_be_run_from_a_running_event_loop():
    report = await acheck_strategy(sqlite_saver)
    assert {one.split(" ")[0] for one in report.not_applicable} == {
        "a_lock_can_be_taken_again",
        "tenants_are_kept_apart",
    }
    assert len(report.passed) == 2 * (len(CONTRACT) - 2)


async def test_the_strategies_under_test_are_the_detected_ones(postgres_database):
    assert isinstance(detect_strategy(InMemorySaver()), MemoryStrategy)
    with sqlite_saver() as saver:
        assert isinstance(detect_strategy(saver), SqliteStrategy)
    async with async_sqlite_saver() as saver:
        assert isinstance(detect_strategy(saver), AsyncSqliteStrategy)
    with PostgresSaver.from_conn_string(postgres_database) as saver:
        assert isinstance(detect_strategy(saver), PostgresStrategy)
    async with AsyncPostgresSaver.from_conn_string(postgres_database) as saver:
        assert isinstance(detect_strategy(saver), AsyncPostgresStrategy)
    with TenantPostgresSaver.from_conn_string(postgres_database) as saver:
        assert isinstance(detect_strategy(saver), TenantPostgresStrategy)
    async with AsyncTenantPostgresSaver.from_conn_string(postgres_database) as saver:
        assert isinstance(detect_strategy(saver), AsyncTenantPostgresStrategy)
