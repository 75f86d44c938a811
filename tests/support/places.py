"""The five savers behind one face: the saver under test, and a twin that is never pruned."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row

from langgraph_ephemeral_checkpointer import PolicyOverride, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.strategies.prune_outcome import PruneOutcome

KINDS = ("memory", "sqlite", "async-sqlite", "postgres", "async-postgres")
POSTGRES_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
SQLITE_TABLES = ("checkpoints", "writes")


class Place:
    """One storage with its saver."""

    def __init__(self, kind: str, saver: Any, where: str = "") -> None:
        self.kind = kind
        self.saver = saver
        self.where = where

    @property
    def is_async(self) -> bool:
        return self.kind.startswith("async")

    async def prune(self, thread_id: str, keep: int) -> PruneOutcome:
        return (await prune(self.saver, [thread_id], keep))[thread_id]

    async def copy_to(self, other: Place, thread_id: str) -> None:
        """Copy every row of a thread to another, empty place of the same kind."""
        if self.kind == "memory":
            for name in ("storage", "writes", "blobs"):
                getattr(other.saver, name).update(copy.deepcopy(dict(getattr(self.saver, name))))
        elif "sqlite" in self.kind:
            with closing(sqlite3.connect(self.where)) as source:
                for table in SQLITE_TABLES:
                    rows = source.execute(
                        f"SELECT * FROM {table} WHERE thread_id = ?", (thread_id,)
                    ).fetchall()
                    with closing(sqlite3.connect(other.where)) as target, target:
                        for row in rows:
                            target.execute(
                                f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row
                            )
        else:
            with psycopg.connect(self.where, autocommit=True) as conn:
                for table in POSTGRES_TABLES:
                    conn.execute(
                        f"INSERT INTO {schema_of(other.where)}.{table} SELECT * FROM "
                        f"{schema_of(self.where)}.{table} WHERE thread_id = %s",
                        (thread_id,),
                    )

    def rows(self, thread_id: str) -> dict[str, set[tuple[Any, ...]]]:
        """Every row of a thread, by kind of row: (namespace, id...) or blob keys."""
        if self.kind == "memory":
            saver = self.saver
            return {
                "checkpoints": {
                    (ns, id_) for ns, space in saver.storage[thread_id].items() for id_ in space
                },
                "writes": {key[1:] for key in saver.writes if key[0] == thread_id},
                "blobs": {key[1:] for key in saver.blobs if key[0] == thread_id},
            }
        if "sqlite" in self.kind:
            with closing(sqlite3.connect(self.where)) as conn:
                return {
                    table: set(
                        conn.execute(
                            f"SELECT checkpoint_ns, checkpoint_id FROM {table} "
                            "WHERE thread_id = ? AND checkpoint_ns <> '__lgec_birth__'",
                            (thread_id,),
                        )
                    )
                    for table in SQLITE_TABLES
                }
        with psycopg.connect(self.where, autocommit=True) as conn:
            return {
                "checkpoints": set(
                    conn.execute(
                        "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = %s",
                        (thread_id,),
                    )
                ),
                "writes": set(
                    conn.execute(
                        "SELECT checkpoint_ns, checkpoint_id FROM checkpoint_writes "
                        "WHERE thread_id = %s",
                        (thread_id,),
                    )
                ),
                "blobs": set(
                    conn.execute(
                        "SELECT checkpoint_ns, channel, version FROM checkpoint_blobs "
                        "WHERE thread_id = %s",
                        (thread_id,),
                    )
                ),
            }

    def references(self, thread_id: str) -> set[tuple[str, str, Any]]:
        """The blobs that stored checkpoints refer to: (namespace, channel, version)."""
        found = set()
        for checkpoint_tuple in self._list(thread_id):
            namespace = checkpoint_tuple.config["configurable"]["checkpoint_ns"]
            versions = checkpoint_tuple.checkpoint["channel_versions"]
            found |= {(namespace, channel, version) for channel, version in versions.items()}
        return found

    def _list(self, thread_id: str) -> list[Any]:
        if "postgres" in self.kind:
            with PostgresSaver.from_conn_string(self.where) as saver:
                return list(saver.list({"configurable": {"thread_id": thread_id}}))
        return list(self.saver.list({"configurable": {"thread_id": thread_id}}))


def schema_of(dsn: str) -> str:
    options = psycopg.conninfo.conninfo_to_dict(dsn)["options"]
    return str(options).partition("search_path=")[2]


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
    if kind == "memory":
        yield Place(kind, InMemorySaver())
    elif kind == "sqlite":
        with closing(sqlite3.connect(where, check_same_thread=False)) as conn:
            saver = SqliteSaver(conn)
            saver.setup()
            yield Place(kind, saver, where)
    elif kind == "async-sqlite":
        async with aiosqlite.connect(where) as conn:
            asaver = AsyncSqliteSaver(conn)
            await asaver.setup()
            yield Place(kind, asaver, where)
    elif kind == "postgres":
        with psycopg.connect(where, autocommit=True, row_factory=dict_row) as conn:
            yield Place(kind, PostgresSaver(conn), where)
    else:
        async with await psycopg.AsyncConnection.connect(
            where, autocommit=True, row_factory=dict_row
        ) as conn:
            yield Place(kind, AsyncPostgresSaver(conn), where)


@asynccontextmanager
async def open_pair(kind: str, where: tuple[str, str]) -> AsyncIterator[tuple[Place, Place]]:
    """Open the saver under test and its twin."""
    async with open_place(kind, where[0]) as place, open_place(kind, where[1]) as twin:
        yield place, twin


def sqlite_files(directory: Path, name: str) -> tuple[str, str]:
    return str(directory / f"{name}-pruned.sqlite"), str(directory / f"{name}-twin.sqlite")
