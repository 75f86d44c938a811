"""Every kind of saver, opened fresh, under one interface for the tests.

A backend is a saver and the way it is swept: synchronous savers come under ``sweep()`` and
under ``asweep()``. ``storage`` looks at the rows from outside, past the saver. A place is a
saver whose threads are pruned; with its twin, which never is, it makes a pair.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer import PolicyOverride, SweepResult, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.strategies.base import PruneOutcome
from tests.support import aging, foreign
from tests.support.storages import (
    MemoryStorage,
    PostgresStorage,
    Rows,
    SqliteStorage,
    Storage,
    TenantStorage,
)


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
    storage: Storage

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

    @property
    def name(self) -> str:
        """The kind of storage."""
        return self.storage.name

    def rows(self) -> list[tuple[Any, ...]]:
        """Every row that is stored, raw."""
        return self.storage.everything()

    def holds(self, text: str, **options: Any) -> list[Any]:
        """The rows in which the text stands, raw."""
        return self.storage.holds(text, **options)

    def dump(self, thread_id: str) -> Rows:
        """Every row of a thread, to compare."""
        return self.storage.rows(thread_id)

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


FOREIGN = {
    "foreign-sync": foreign.SyncForeignSaver,
    "foreign-async": foreign.AsyncForeignSaver,
    "foreign-both": foreign.ForeignSaver,
}


def is_async(kind: str) -> bool:
    return kind in ASYNC_KINDS or kind.startswith("async")


def storage_of(kind: str, where: str = "") -> Any:
    """The storage of a kind of saver, in a file or at a DSN; memory has one for each saver."""
    if kind == "tenant":
        return TenantStorage(where)
    return SqliteStorage(where) if "sqlite" in kind else PostgresStorage(where)


@contextmanager
def open_saver(kind: str, where: str = "", serde: Any = None) -> Iterator[tuple[Any, Any]]:
    """Open a synchronous saver of a kind, with its tables there; gives it with its storage."""
    if kind == "memory":
        saver = InMemorySaver(serde=serde)
        yield saver, MemoryStorage(saver)
    elif kind in FOREIGN:
        other = FOREIGN[kind]()
        yield other, MemoryStorage(other.hidden)
    else:
        storage = storage_of(kind, where)
        with storage.open(kind.rpartition("-")[2], serde=serde) as saver:
            yield saver, storage


@asynccontextmanager
async def aopen_saver(kind: str, where: str = "") -> AsyncIterator[tuple[Any, Any]]:
    """Open a saver of any kind."""
    if kind in FOREIGN or not is_async(kind):
        with open_saver(kind, where) as opened:
            yield opened
    else:
        storage = storage_of(kind, where)
        async with storage.aopen(kind.rpartition("-")[2]) as saver:
            yield saver, storage


@asynccontextmanager
async def open_backend(
    kind: str, colour: str, tmp_path: Path, dsn: str | None
) -> AsyncIterator[Backend]:
    """Open a saver of a kind, with its tables there and empty."""
    where = dsn if is_postgres(kind) and dsn else str(tmp_path / "checkpoints.db")
    async with aopen_saver(kind, where) as (saver, storage):
        yield Backend(kind, saver, colour, is_async(kind), storage)


PRUNED_KINDS = ("memory", "sqlite", "async-sqlite", "postgres", "async-postgres")
"""The savers whose threads can be pruned."""


class Place:
    """A saver whose threads are pruned, or its twin."""

    def __init__(self, kind: str, saver: Any, where: str = "", storage: Any = None) -> None:
        self.kind = kind
        self.saver = saver
        self.where = where
        self.storage = storage or storage_of(kind, where)

    @property
    def is_async(self) -> bool:
        return is_async(self.kind)

    async def prune(self, thread_id: str, keep: int) -> PruneOutcome:
        return (await prune(self.saver, [thread_id], keep))[thread_id]

    async def copy_to(self, other: Place, thread_id: str) -> None:
        """Copy every row of a thread to another, empty place of the same kind."""
        self.storage.copy_to(other.storage, thread_id)

    def rows(self, thread_id: str) -> dict[str, set[tuple[Any, ...]]]:
        """The keys of every row of a thread, by kind of row."""
        return self.storage.keys(thread_id)

    def references(self, thread_id: str) -> set[tuple[str, str, Any]]:
        """The blobs that stored checkpoints refer to: (namespace, channel, version)."""
        return {
            (found.config["configurable"]["checkpoint_ns"], channel, version)
            for found in self._list(thread_id)
            for channel, version in found.checkpoint["channel_versions"].items()
        }

    def _list(self, thread_id: str) -> list[Any]:
        with self.storage.open() as saver:
            return list(saver.list({"configurable": {"thread_id": thread_id}}))


async def prune(saver: Any, thread_ids: list[str], keep: int) -> dict[str, PruneOutcome]:
    """Trim some threads, each in a sweep of its own so that its count is known."""
    outcomes = {}
    for thread_id in thread_ids:
        sweeper = TTLSweeper(
            saver,
            TTLPolicy(max_checkpoints_per_thread=keep),
            orphan_age_seconds=None,
            policy_resolver=lambda found, wanted=thread_id: (
                PolicyOverride.USE_DEFAULT if found == wanted else PolicyOverride.EXEMPT
            ),
        )
        if sweeper.strategy.runs_sync:
            result = sweeper.sweep()
        else:
            result = await sweeper.asweep()
        whole = result.errors.get(thread_id)
        outcomes[thread_id] = PruneOutcome(result.pruned_checkpoint_count, whole)
    return outcomes


@asynccontextmanager
async def open_place(kind: str, where: str = "") -> AsyncIterator[Place]:
    """Open a saver; `where` is a file for SQLite and a DSN for Postgres."""
    async with aopen_saver(kind, where) as (saver, storage):
        yield Place(kind, saver, where, storage)


@asynccontextmanager
async def open_pair(kind: str, where: tuple[str, str]) -> AsyncIterator[tuple[Place, Place]]:
    """Open the saver under test and its twin."""
    async with open_place(kind, where[0]) as place, open_place(kind, where[1]) as twin:
        yield place, twin
