"""Every kind of saver, opened fresh, under one interface for the tests.

A backend is a saver and the way it is swept: synchronous savers come under ``sweep()`` and
under ``asweep()``. ``storage`` looks at the rows from outside, past the saver.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_ephemeral_checkpointer import SweepResult, TTLPolicy, TTLSweeper
from tests.support import aging, foreign

Rows = dict[str, list[tuple[Any, ...]]]


class MemoryStorage:
    """The dictionaries of an InMemorySaver."""

    def __init__(self, saver: InMemorySaver) -> None:
        self.saver = saver

    def dump(self, thread_id: str) -> Rows:
        saver = self.saver
        return {
            "checkpoints": sorted(
                (ns, checkpoint_id, row)
                for key, thread in list(saver.storage.items())
                if str(key) == thread_id
                for ns, rows in list(thread.items())
                for checkpoint_id, row in rows.items()
            ),
            "blobs": sorted(item for item in list(saver.blobs.items()) if item[0][0] == thread_id),
            "writes": sorted(
                (key, where, write)
                for key, found in list(saver.writes.items())
                if key[0] == thread_id
                for where, write in found.items()
            ),
        }

    def threads(self) -> set[str]:
        keys = [key[0] for table in (self.saver.writes, self.saver.blobs) for key in table]
        # Reading an unknown thread leaves an empty key behind.
        stored = [key for key, thread in self.saver.storage.items() if any(thread.values())]
        return {str(key) for key in [*keys, *stored]}

    def shift(self, thread_id: str, seconds: float) -> None:
        aging.shift_memory(self.saver, thread_id, seconds)


class SqliteStorage:
    """An SQLite file."""

    def __init__(self, path: str, serde: Any) -> None:
        self.path, self.serde = path, serde

    def dump(self, thread_id: str) -> Rows:
        conn = sqlite3.connect(self.path)
        try:
            return {
                table: conn.execute(
                    f"SELECT * FROM {table} WHERE thread_id = ? ORDER BY 1, 2, 3, 4", (thread_id,)
                ).fetchall()
                for table in ("checkpoints", "writes")
            }
        finally:
            conn.close()

    def threads(self) -> set[str]:
        conn = sqlite3.connect(self.path)
        try:
            sql = "SELECT thread_id FROM checkpoints UNION SELECT thread_id FROM writes"
            return {row[0] for row in conn.execute(sql)}
        finally:
            conn.close()

    def shift(self, thread_id: str, seconds: float) -> None:
        aging.shift_sqlite(self.path, self.serde, thread_id, seconds)


class PostgresStorage:
    """The upstream tables of a Postgres database."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def dump(self, thread_id: str) -> Rows:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return {
                table: conn.execute(
                    f"SELECT * FROM {table} WHERE thread_id = %s ORDER BY 1, 2, 3, 4, 5",
                    (thread_id,),
                ).fetchall()
                for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
            }

    def threads(self) -> set[str]:
        sql = " UNION ".join(
            f"SELECT thread_id FROM {table}"
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
        )
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return {row[0] for row in conn.execute(sql)}

    def shift(self, thread_id: str, seconds: float) -> None:
        aging.shift_postgres(self.dsn, thread_id, seconds)


@dataclass
class Backend:
    """An open saver.

    Attributes:
        kind: The saver's kind, one of those below.
        saver: The saver.
        colour: ``sweep`` or ``asweep``: how it is swept here.
        is_async: Whether the saver's methods are the asynchronous ones.
        storage: The rows, past the saver.
    """

    kind: str
    saver: Any
    colour: str
    is_async: bool
    storage: Any

    def sweeper(self, policy: TTLPolicy | None = None, **options: Any) -> TTLSweeper:
        # Else what a delete left behind would be tidied up before a test could see it.
        options.setdefault("orphan_age_seconds", None)
        return TTLSweeper(self.saver, policy or TTLPolicy(idle_ttl_seconds=3600), **options)

    async def sweep(
        self,
        sweeper: TTLSweeper | TTLPolicy | None = None,
        *,
        dry_run: bool = False,
        **options: Any,
    ) -> SweepResult:
        """Sweep once, with a sweeper or one made for it."""
        if not isinstance(sweeper, TTLSweeper):
            sweeper = self.sweeper(sweeper, **options)
        if self.colour == "sweep":
            return sweeper.sweep(dry_run=dry_run)
        return await sweeper.asweep(dry_run=dry_run)

    def callback(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        """A callback that is a coroutine function, in the colour of the sweep."""
        if self.colour == "asweep":
            return function

        def called(*args: Any) -> Any:
            try:
                function(*args).send(None)
            except StopIteration as end:
                return end.value
            raise AssertionError("a synchronous saver suspended")

        return called

    async def invoke(self, graph: Any, state: Any, thread_id: Any) -> Any:
        """Run one turn of a graph."""
        config = {"configurable": {"thread_id": thread_id}}
        if self.is_async:
            return await graph.ainvoke(state, config)
        return graph.invoke(state, config)

    async def put(
        self,
        thread_id: Any,
        at: float | str,
        *,
        ns: str = "",
        ts: Any = "2020-01-01T00:00:00+00:00",
        parent: str | None = None,
        text: str = "hello",
    ) -> str:
        """Save one checkpoint, whose id is given or made for a time; returns the id."""
        checkpoint_id = at if isinstance(at, str) else aging.uuid6_at(at)
        checkpoint = empty_checkpoint()
        version = self.saver.get_next_version(None, None)
        checkpoint |= {
            "id": checkpoint_id,
            "ts": ts,
            "channel_values": {"messages": [text]},
            "channel_versions": {"messages": version},
        }
        where = {"thread_id": thread_id, "checkpoint_ns": ns}
        if parent:
            where["checkpoint_id"] = parent
        args = ({"configurable": where}, checkpoint, {"step": 1}, {"messages": version})
        if self.is_async:
            await self.saver.aput(*args)
        else:
            self.saver.put(*args)
        return checkpoint_id

    async def put_writes(
        self,
        thread_id: Any,
        checkpoint_id: str,
        *writes: tuple[str, Any],
        ns: str = "",
        task_id: str = "task",
    ) -> None:
        """Save writes of one task."""
        where = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
        if self.is_async:
            await self.saver.aput_writes({"configurable": where}, list(writes), task_id)
        else:
            self.saver.put_writes({"configurable": where}, list(writes), task_id)

    async def plant(self, thread_id: Any, at: float | str) -> str:
        """Save a small whole thread: a root and a subgraph checkpoint, with writes."""
        checkpoint_id = await self.put(thread_id, at)
        await self.put_writes(thread_id, checkpoint_id, ("messages", ["a write"]))
        await self.put(thread_id, at, ns="node")
        return checkpoint_id

    def dump(self, thread_id: str) -> Rows:
        """Every row of a thread, to compare."""
        return self.storage.dump(thread_id)

    def count(self, thread_id: str) -> dict[str, int]:
        """Rows of a thread by table."""
        return {table: len(rows) for table, rows in self.dump(thread_id).items()}

    def has(self, thread_id: str) -> bool:
        """Whether any row of the thread is left."""
        return any(self.count(thread_id).values())

    def age(self, thread_id: str, seconds: float) -> None:
        """Make a thread older."""
        self.storage.shift(thread_id, -seconds)


SYNC_KINDS = ("memory", "sqlite", "pg-connection", "pg-pool", "pg-pipeline", "foreign-sync")
ASYNC_KINDS = ("aiosqlite", "apg-connection", "apg-pool", "apg-pipeline", "foreign-async")
BOTH_KINDS = ("foreign-both",)
PARAMS = (
    *((kind, colour) for kind in SYNC_KINDS + BOTH_KINDS for colour in ("sweep", "asweep")),
    *((kind, "asweep") for kind in ASYNC_KINDS),
)
"""Every saver in every colour in which it can be swept."""

ONE_EACH = (
    ("memory", "sweep"),
    ("sqlite", "sweep"),
    ("aiosqlite", "asweep"),
    ("pg-connection", "sweep"),
    ("apg-pool", "asweep"),
    ("foreign-sync", "sweep"),
    ("foreign-async", "asweep"),
)
"""One of each code path, for behaviour that does not depend on the rest."""


def is_postgres(kind: str) -> bool:
    return "pg-" in kind


@asynccontextmanager
async def open_backend(
    kind: str, colour: str, tmp_path: Path, dsn: str | None
) -> AsyncIterator[Backend]:
    """Open a saver of a kind, with its tables there and empty."""
    async with AsyncExitStack() as stack:
        saver, storage = await _open(kind, stack, tmp_path, dsn)
        yield Backend(kind, saver, colour, kind in ASYNC_KINDS, storage)


async def _open(kind: str, stack: AsyncExitStack, tmp_path: Path, dsn: str | None) -> Any:
    path = str(tmp_path / "checkpoints.db")
    plain = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    saver: Any
    match kind:
        case "memory":
            saver = InMemorySaver()
            return saver, MemoryStorage(saver)
        case "foreign-sync" | "foreign-async" | "foreign-both":
            classes = {
                "foreign-sync": foreign.SyncForeignSaver,
                "foreign-async": foreign.AsyncForeignSaver,
                "foreign-both": foreign.ForeignSaver,
            }
            saver = classes[kind]()
            return saver, MemoryStorage(saver.hidden)
        case "sqlite":
            saver = stack.enter_context(SqliteSaver.from_conn_string(path))
            saver.setup()
            return saver, SqliteStorage(path, saver.serde)
        case "aiosqlite":
            saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
            await saver.setup()
            return saver, SqliteStorage(path, saver.serde)
        case "pg-connection" | "pg-pipeline":
            saver = stack.enter_context(
                PostgresSaver.from_conn_string(dsn, pipeline=kind == "pg-pipeline")
            )
        case "pg-pool":
            pool = ConnectionPool(dsn, min_size=1, max_size=2, kwargs=plain, open=False)
            saver = PostgresSaver(stack.enter_context(pool))
        case "apg-connection" | "apg-pipeline":
            saver = await stack.enter_async_context(
                AsyncPostgresSaver.from_conn_string(dsn, pipeline=kind == "apg-pipeline")
            )
        case "apg-pool":
            apool = AsyncConnectionPool(dsn, min_size=1, max_size=2, kwargs=plain, open=False)
            saver = AsyncPostgresSaver(await stack.enter_async_context(apool))
        case _:
            raise AssertionError(kind)
    return saver, PostgresStorage(dsn)
