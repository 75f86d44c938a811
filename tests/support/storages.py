"""What savers store, seen and changed from outside, past the saver; and the savers on it."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import psycopg
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support import aging

PLAIN = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""How the connections of a saver's pool are to be."""

Rows = dict[str, list[str]]


class Storage:
    """One place in which savers store threads.

    Attributes:
        name: Its kind: memory, sqlite, postgres or tenant.
        where: How it is reached: the path of a file, or a DSN.
        tables: Where the rows of threads are.
    """

    name: str
    tables: tuple[str, ...]
    where: str = ""

    def open(self, form: str = "connection", *, serde: Any = None, size: int = 2) -> Any:
        """Open a synchronous saver (a context manager): on a connection, a pool, a pipeline."""
        raise NotImplementedError

    def open_many(self, size: int) -> Any:
        """Open a saver that many threads use at once."""
        return self.open("pool", size=size)

    def rows(self, thread_id: str | None = None) -> Rows:
        """Every row, of one thread or of all, as text and in a fixed order."""
        return {table: sorted(map(repr, self._rows(table, thread_id))) for table in self.tables}

    def count(self, thread_id: str | None = None) -> int:
        return sum(map(len, self.rows(thread_id).values()))

    def threads(self) -> set[str]:
        """Every thread of which there is any row."""
        raise NotImplementedError

    def shift(self, thread_id: str, seconds: float) -> None:
        """Move a thread in time; negative is into the past."""
        raise NotImplementedError

    def keys(self, thread_id: str) -> dict[str, set[tuple[Any, ...]]]:
        """The keys of every row of a thread: (namespace, id), or (namespace, channel, version)."""
        raise NotImplementedError

    def copy_to(self, other: Any, thread_id: str) -> None:
        """Copy every row of a thread to another, empty storage of the same kind."""
        raise NotImplementedError

    def everything(self) -> list[tuple[Any, ...]]:
        """Every row of every table, also of those that are not the saver's own."""
        raise NotImplementedError

    def holds(
        self, text: str, *, decrypt: Callable[[str, bytes], bytes] | None = None
    ) -> list[Any]:
        """The rows in which the text stands, raw."""
        found = []
        for row in self.everything():
            for n, value in enumerate(row):
                raw = value.encode() if isinstance(value, str) else value
                tag = row[n - 1] if n else None
                if decrypt and isinstance(value, bytes) and isinstance(tag, str) and "+" in tag:
                    raw = decrypt(tag.split("+", 1)[1], raw)
                if isinstance(raw, bytes) and text.encode() in raw:
                    found.append(row)
        return found

    def _rows(self, table: str, thread_id: str | None) -> list[tuple[Any, ...]]:
        raise NotImplementedError


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


class MemoryStorage(Storage):
    """The dictionaries of an InMemorySaver."""

    name = "memory"
    tables = ("checkpoints", "blobs", "writes")

    def __init__(self, saver: InMemorySaver) -> None:
        self.saver = saver

    @contextmanager
    def open(self, form: str = "connection", *, serde: Any = None, size: int = 2) -> Any:
        yield self.saver

    def _rows(self, table: str, thread_id: str | None) -> list[tuple[Any, ...]]:
        saver, rows = self.saver, []
        if table == "checkpoints":
            for key, thread in list(saver.storage.items()):
                for ns, found in list(thread.items()):
                    rows += [(key, ns, id_, row) for id_, row in found.items()]
        elif table == "blobs":
            rows += list(saver.blobs.items())
        else:
            for key, writes in list(saver.writes.items()):
                rows += [(key, where, write) for where, write in writes.items()]
        flat = [tuple(_flat(row)) for row in rows]
        return [row for row in flat if thread_id is None or str(row[0]) == thread_id]

    def everything(self) -> list[tuple[Any, ...]]:
        return [row for table in self.tables for row in self._rows(table, None)]

    def threads(self) -> set[str]:
        keys = [key[0] for table in (self.saver.writes, self.saver.blobs) for key in table]
        # Reading an unknown thread leaves an empty key behind.
        stored = [key for key, thread in self.saver.storage.items() if any(thread.values())]
        return {str(key) for key in [*keys, *stored]}

    def shift(self, thread_id: str, seconds: float) -> None:
        aging.shift_memory(self.saver, thread_id, seconds)

    def keys(self, thread_id: str) -> dict[str, set[tuple[Any, ...]]]:
        return {
            "checkpoints": {row[1:3] for row in self._rows("checkpoints", thread_id)},
            "writes": {row[1:3] for row in self._rows("writes", thread_id)},
            "blobs": {row[1:4] for row in self._rows("blobs", thread_id)},
        }

    def copy_to(self, other: MemoryStorage, thread_id: str) -> None:
        for name in ("storage", "writes", "blobs"):
            getattr(other.saver, name).update(copy.deepcopy(dict(getattr(self.saver, name))))


class _Database(Storage):
    def connect(self) -> Any:
        """A connection of its own, in autocommit (a context manager)."""
        raise NotImplementedError

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """Execute one statement, whose places for values are question marks."""
        with self.connect() as conn:
            found = conn.execute(text, params)
            return found.fetchall() if found.description else []

    def threads(self) -> set[str]:
        every = " UNION ".join(f"SELECT thread_id FROM {table}" for table in self.tables)
        return {row[0] for row in self.sql(every)}

    def _rows(self, table: str, thread_id: str | None) -> list[tuple[Any, ...]]:
        if thread_id is None:
            return self.sql(f"SELECT * FROM {table}")
        return self.sql(f"SELECT * FROM {table} WHERE thread_id = ?", thread_id)


class SqliteStorage(_Database):
    """An SQLite file."""

    name = "sqlite"
    tables = ("checkpoints", "writes")

    def __init__(self, where: str, serde: Any = None) -> None:
        self.where = self.path = where
        self.serde = serde or JsonPlusSerializer()

    @contextmanager
    def open(self, form: str = "connection", *, serde: Any = None, size: int = 2) -> Any:
        with closing(sqlite3.connect(self.where, check_same_thread=False)) as conn:
            saver = SqliteSaver(conn, serde=serde)
            saver.setup()
            self.serde = saver.serde
            yield saver

    @asynccontextmanager
    async def aopen(self, form: str = "connection", *, size: int = 2) -> AsyncIterator[Any]:
        async with AsyncSqliteSaver.from_conn_string(self.where) as saver:
            await saver.setup()
            yield saver

    @contextmanager
    def connect(self) -> Any:
        with closing(sqlite3.connect(self.where, isolation_level=None, timeout=30)) as conn:
            yield conn

    def everything(self) -> list[tuple[Any, ...]]:
        tables = self.sql("SELECT name FROM sqlite_master WHERE type = 'table'")
        return [row for (table,) in tables for row in self._rows(table, None)]

    def shift(self, thread_id: str, seconds: float) -> None:
        aging.shift_sqlite(self.where, self.serde, thread_id, seconds)

    def keys(self, thread_id: str) -> dict[str, set[tuple[Any, ...]]]:
        sql = (
            "SELECT checkpoint_ns, checkpoint_id FROM {} "
            "WHERE thread_id = ? AND checkpoint_ns <> '__lgec_birth__'"
        )
        return {table: set(self.sql(sql.format(table), thread_id)) for table in self.tables}

    def copy_to(self, other: SqliteStorage, thread_id: str) -> None:
        with other.connect() as target:
            for table in self.tables:
                for row in self._rows(table, thread_id):
                    places = ",".join("?" * len(row))
                    target.execute(f"INSERT INTO {table} VALUES ({places})", row)

    def unhook(self) -> None:
        """Remove the triggers of the trash, and nothing else."""
        for table in self.tables:
            self.sql(f"DROP TRIGGER lgec_undo_{table}")


class PostgresStorage(_Database):
    """The upstream tables of a Postgres database, in the first schema of the search path."""

    name = "postgres"
    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    schema: str | None = None

    def __init__(self, where: str) -> None:
        self.where = self.dsn = where

    @contextmanager
    def open(self, form: str = "connection", *, serde: Any = None, size: int = 2) -> Any:
        if form == "pool":
            with ConnectionPool(self.where, min_size=1, max_size=size, kwargs=PLAIN) as pool:
                yield PostgresSaver(pool, serde=serde)
            return
        pipeline = form == "pipeline"
        with PostgresSaver.from_conn_string(self.where, pipeline=pipeline) as saver:
            saver.serde = serde or saver.serde
            yield saver

    @asynccontextmanager
    async def aopen(self, form: str = "connection", *, size: int = 2) -> AsyncIterator[Any]:
        if form == "pool":
            pool = AsyncConnectionPool(
                self.where, min_size=1, max_size=size, kwargs=PLAIN, open=False
            )
            async with pool:
                yield AsyncPostgresSaver(pool)
            return
        pipeline = form == "pipeline"
        async with AsyncPostgresSaver.from_conn_string(self.where, pipeline=pipeline) as saver:
            yield saver

    def connect(self) -> Any:
        return psycopg.connect(self.where, autocommit=True)

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        return super().sql(text.replace("?", "%s"), *params)

    def everything(self) -> list[tuple[Any, ...]]:
        columns: dict[str, list[str]] = {}
        for table, name, kind in self.sql(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "JOIN pg_catalog.pg_tables ON (schemaname, tablename) = (table_schema, table_name) "
            "WHERE table_schema = COALESCE(?, pg_catalog.current_schema()) "
            "ORDER BY table_name, ordinal_position",
            self.schema,
        ):
            column = f'"{name}"' if kind == "bytea" else f'"{name}"::text'
            columns.setdefault(table, []).append(column)
        schema = f'"{self.schema}".' if self.schema else ""
        found = []
        for table, names in columns.items():
            found += self.sql(f'SELECT {", ".join(names)} FROM {schema}"{table}"')
        return found

    def shift(self, thread_id: str, seconds: float) -> None:
        aging.shift_postgres(self.where, thread_id, seconds)

    def keys(self, thread_id: str) -> dict[str, set[tuple[Any, ...]]]:
        ids, blobs = "checkpoint_ns, checkpoint_id", "checkpoint_ns, channel, version"
        return {
            kind: set(self.sql(f"SELECT {columns} FROM {table} WHERE thread_id = ?", thread_id))
            for kind, table, columns in (
                ("checkpoints", "checkpoints", ids),
                ("writes", "checkpoint_writes", ids),
                ("blobs", "checkpoint_blobs", blobs),
            )
        }

    def copy_to(self, other: PostgresStorage, thread_id: str) -> None:
        [[ours]], [[theirs]] = (one.sql("SELECT current_schema()") for one in (self, other))
        for table in self.tables:
            self.sql(
                f"INSERT INTO {theirs}.{table} SELECT * FROM {ours}.{table} WHERE thread_id = ?",
                thread_id,
            )

    def unhook(self) -> None:
        """Remove the triggers of the trash, and nothing else."""
        for table in ("checkpoints", "checkpoint_writes"):
            self.sql(f"ALTER TABLE {table} DISABLE TRIGGER lgec_undo")


class TenantStorage(PostgresStorage):
    """The tables of a tenant saver, in a schema that is gone when the saver is closed."""

    name = "tenant"
    schema = "messages"
    tables = ("messages.checkpoints", "messages.checkpoints_blobs", "messages.checkpoints_writes")

    @contextmanager
    def open(self, form: str = "connection", *, serde: Any = None, size: int = 2) -> Any:
        options = {"schema": self.schema, "serde": serde}
        with TenantPostgresSaver.from_conn_string(self.where, **options) as saver:
            yield saver
        self.sql(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
