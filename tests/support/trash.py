"""Savers with a trash, in both colours, and what is looked at to tell whether a thread is whole."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.strategies import PostgresStrategy
from langgraph_ephemeral_checkpointer.strategies.postgres.trash import PostgresUndo


@pytest.fixture
def trash_dsn(pg_dsn):
    """A database whose trash, if a test made one, is removed at the end."""
    yield pg_dsn
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        strategy = PostgresStrategy(PostgresSaver(conn))
        strategy.transact(PostgresUndo().teardown(force=True))


class Backend:
    """One kind of storage: opens savers on it, and reads it behind their backs."""

    def __init__(self, name, where):
        self.name, self.where = name, where
        self.tables = (
            ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
            if name == "postgres"
            else ("checkpoints", "writes")
        )

    @contextmanager
    def open(self):
        if self.name == "postgres":
            with PostgresSaver.from_conn_string(self.where) as saver:
                yield saver
        else:
            with SqliteSaver.from_conn_string(self.where) as saver:
                saver.setup()
                yield saver

    @contextmanager
    def open_many(self, size):
        """Open a saver that many threads use at once."""
        if self.name == "postgres":
            kwargs = {"autocommit": True}
            with ConnectionPool(self.where, min_size=1, max_size=size, kwargs=kwargs) as pool:
                yield PostgresSaver(pool)
        else:
            with self.open() as saver:
                yield saver

    @asynccontextmanager
    async def aopen(self):
        kind = AsyncPostgresSaver if self.name == "postgres" else AsyncSqliteSaver
        async with kind.from_conn_string(self.where) as saver:
            if self.name == "sqlite":
                await saver.setup()
            yield saver

    @contextmanager
    def connect(self):
        if self.name == "postgres":
            with psycopg.connect(self.where, autocommit=True) as conn:
                yield conn
        else:
            conn = sqlite3.connect(self.where, isolation_level=None, timeout=30)
            try:
                yield conn
            finally:
                conn.close()

    def sql(self, text, *params):
        if self.name == "postgres":
            text = text.replace("?", "%s")
        with self.connect() as conn:
            found = conn.execute(text, params)
            return found.fetchall() if found.description else []

    def rows(self, thread_id=None):
        """Every row of the saver's tables, of one thread or of all, in a fixed order."""
        where = "" if thread_id is None else " WHERE thread_id = ?"
        params = () if thread_id is None else (thread_id,)
        return {
            table: sorted(map(repr, self.sql(f"SELECT * FROM {table}{where}", *params)))
            for table in self.tables
        }

    def count(self, thread_id=None):
        return sum(map(len, self.rows(thread_id).values()))

    def unhook(self):
        """Remove the triggers, and nothing else."""
        for table in ("checkpoints", self.tables[-1]):
            if self.name == "postgres":
                self.sql(f"ALTER TABLE {table} DISABLE TRIGGER lgec_undo")
            else:
                self.sql(f"DROP TRIGGER lgec_undo_{table}")


@pytest.fixture(params=["postgres", "sqlite"])
def backend(request, tmp_path):
    if request.param == "postgres":
        return Backend("postgres", request.getfixturevalue("trash_dsn"))
    return Backend("sqlite", str(tmp_path / "checkpoints.db"))
