"""The savers that hold messages, each with a dump of every byte it stores."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver

DAY = timedelta(days=1).total_seconds()


class Clock:
    """Seconds since the epoch, as the test says."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_days(self, days: float) -> None:
        self.now += days * DAY


@dataclass
class Backend:
    """A saver and a way to see every byte of its storage."""

    name: str
    saver: Any
    rows: Callable[[], list[tuple[Any, ...]]]

    def holds(
        self, text: str, *, decrypt: Callable[[str, bytes], bytes] | None = None
    ) -> list[Any]:
        """The rows in which the text stands, raw."""
        found = []
        for row in self.rows():
            for n, value in enumerate(row):
                raw = value.encode() if isinstance(value, str) else value
                tag = row[n - 1] if n else None
                if decrypt and isinstance(value, bytes) and isinstance(tag, str) and "+" in tag:
                    raw = decrypt(tag.split("+", 1)[1], raw)
                if isinstance(raw, bytes) and text.encode() in raw:
                    found.append(row)
        return found


def _memory(serde: Any) -> Iterator[Backend]:
    saver = InMemorySaver(serde=serde)

    def rows() -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = [(repr(k), *v) for k, v in saver.blobs.items()]
        for key, writes in saver.writes.items():
            found += [(repr(key), channel, *value) for _, channel, value, *_ in writes.values()]
        for thread in saver.storage.values():
            for checkpoints in thread.values():
                found += [(*row[0], *row[1]) for row in checkpoints.values()]
        return found

    yield Backend("memory", saver, rows)


def _sqlite(serde: Any) -> Iterator[Backend]:
    with contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False)) as conn:
        saver = SqliteSaver(conn, serde=serde)
        saver.setup()

        def rows() -> list[tuple[Any, ...]]:
            return [
                row
                for (table,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                for row in conn.execute(f"SELECT * FROM {table}")
            ]

        yield Backend("sqlite", saver, rows)


def _postgres(serde: Any, dsn: str) -> Iterator[Backend]:
    with PostgresSaver.from_conn_string(dsn) as saver:
        if serde is not None:
            saver.serde = serde
        yield Backend("postgres", saver, lambda: _rows(dsn))


def _tenant(serde: Any, dsn: str) -> Iterator[Backend]:
    schema = "messages"
    with TenantPostgresSaver.from_conn_string(dsn, schema=schema, serde=serde) as saver:
        yield Backend("tenant", saver, lambda: _rows(dsn, schema))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def _rows(dsn: str, schema: str = "public") -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        tables = conn.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)
        ).fetchall()
        found: list[tuple[Any, ...]] = []
        for (table,) in tables:
            columns = conn.execute(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                (schema, table),
            ).fetchall()
            names = ", ".join(
                f'"{name}"' if kind == "bytea" else f'"{name}"::text' for name, kind in columns
            )
            found += conn.execute(f'SELECT {names} FROM "{schema}"."{table}"').fetchall()
        return found


_SERVED = {"postgres": _postgres, "tenant": _tenant}


@pytest.fixture(params=["memory", "sqlite", "postgres", "tenant"])
def make_backend(request: pytest.FixtureRequest) -> Iterator[Callable[..., Backend]]:
    """Make a backend, with a serializer of the test's own if it wants one."""
    with contextlib.ExitStack() as stack:

        def make(serde: Any = None) -> Backend:
            if request.param in _SERVED:
                opened = _SERVED[request.param](serde, request.getfixturevalue("pg_dsn"))
            else:
                opened = {"memory": _memory, "sqlite": _sqlite}[request.param](serde)
            return stack.enter_context(contextlib.contextmanager(lambda: opened)())

        yield make


@pytest.fixture
def backend(make_backend: Callable[..., Backend]) -> Backend:
    """Each of the synchronous savers in turn."""
    return make_backend()


@pytest.fixture
def clock() -> Clock:
    """A clock that begins in 2024."""
    return Clock(1_704_067_200.0)
