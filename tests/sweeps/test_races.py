"""A thread that wakes up before or during its delete survives whole, in any namespace."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections import Counter
from contextlib import AsyncExitStack, contextmanager

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg_pool import AsyncConnectionPool

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.engine.steps import AsyncSteps, Work
from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.strategies import MemoryStrategy
from tests.support import backends
from tests.support.aging import uuid6_at

DAY = 86400.0
NOW = 1_750_000_000.0
OLD = NOW - 10 * DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY)

NAMESPACES = ["", "node", "node:8f14e45f-ceea-4e7a-9c1d-1b5e9f0c7b11|inner:1"]
postgres = pytest.mark.parametrize(
    "backend",
    [one for one in backends.PARAMS if backends.is_postgres(one[0])],
    ids="-".join,
    indirect=True,
)


@pytest.mark.parametrize("namespace", NAMESPACES, ids=["root", "persistent", "call"])
async def test_a_put_between_the_scan_and_the_delete_keeps_the_thread_whole(backend, namespace):
    kept = {}

    async def veto(thread_id, _policy, _reason):
        if thread_id == "wakes":
            await backend.put(thread_id, NOW - 1, ns=namespace, text="awake")
            kept.update(backend.dump(thread_id))

    for thread_id in ("a", "wakes", "z"):
        await backend.plant(thread_id, OLD)
    result = await backend.sweep(POLICY, clock=lambda: NOW, on_before_delete=backend.callback(veto))
    assert sorted(result.deleted_thread_ids) == ["a", "z"]
    assert result.kept == {"wakes": KeepReason.WOKE_UP}
    assert result.active_thread_count == 1
    assert backend.dump("wakes") == kept


async def test_the_first_wakes_while_the_last_is_verified(backend):
    """All candidates of a batch are verified before the first of them is deleted."""

    async def veto(thread_id, _policy, _reason):
        if thread_id == "t4":
            await backend.put("t0", NOW - 1)

    for n in range(5):
        await backend.plant(f"t{n}", OLD)
    result = await backend.sweep(POLICY, clock=lambda: NOW, on_before_delete=backend.callback(veto))
    assert result.kept == {"t0": KeepReason.WOKE_UP}
    assert sorted(result.deleted_thread_ids) == ["t1", "t2", "t3", "t4"]
    assert backend.count("t0")["checkpoints"] == 3


async def test_a_question_for_a_human_before_the_delete_keeps_the_thread(backend):
    async def veto(thread_id, _policy, _reason):
        await backend.put_writes(thread_id, head, ("__interrupt__", "may I?"), task_id="asks")

    head = await backend.plant("thread", OLD)
    result = await backend.sweep(POLICY, clock=lambda: NOW, on_before_delete=backend.callback(veto))
    assert result.kept == {"thread": KeepReason.INTERRUPTED}
    assert backend.has("thread")


async def test_a_thread_that_somebody_else_deletes_is_gone_and_not_reported_as_deleted(backend):
    async def veto(thread_id, _policy, _reason):
        if backend.is_async:
            await backend.saver.adelete_thread(thread_id)
        else:
            backend.saver.delete_thread(thread_id)

    await backend.plant("thread", OLD)
    result = await backend.sweep(POLICY, clock=lambda: NOW, on_before_delete=backend.callback(veto))
    assert result.deleted_thread_ids == []
    assert result.kept == {"thread": KeepReason.GONE}
    assert result.active_thread_count == 0


async def test_without_safe_delete_a_thread_goes_although_it_woke_up(backend):
    async def veto(thread_id, _policy, _reason):
        await backend.put(thread_id, NOW - 1)

    await backend.plant("thread", OLD)
    result = await backend.sweep(
        POLICY, clock=lambda: NOW, on_before_delete=backend.callback(veto), safe_delete=False
    )
    assert result.deleted_thread_ids == ["thread"]
    assert not backend.has("thread")


async def _delete(backend, thread_ids, recheck):
    strategy = backend.sweeper().strategy
    call = functools.partial(strategy.delete_threads, thread_ids, recheck)
    return await AsyncSteps(strategy).perform(Work(call))


@postgres
@pytest.mark.parametrize("namespace", NAMESPACES, ids=["root", "persistent", "call"])
async def test_a_put_that_commits_inside_the_delete_transaction_undoes_the_delete(
    backend, namespace, pg_dsn
):
    """It comes after the thread was read again, and before the first row is deleted."""
    kept = {}

    def recheck(thread_id, _facts):
        if thread_id == "wakes":
            where = {"thread_id": "wakes", "checkpoint_ns": namespace}
            with PostgresSaver.from_conn_string(pg_dsn) as other:
                other.put({"configurable": where}, empty_checkpoint(), {}, {})
            kept.update(backend.dump("wakes"))

    for thread_id in ("a", "wakes"):
        await backend.plant(thread_id, OLD)
    with pytest.raises(ThreadMovedError):
        await _delete(backend, ["a", "wakes"], recheck)
    assert backend.dump("wakes") == kept
    assert backend.has("a")


@contextmanager
def _sql(dsn, before, after):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(before)
        try:
            yield
        finally:
            conn.execute(after)


LATE_ROW = """
    CREATE FUNCTION late_row() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    BEGIN
        INSERT INTO checkpoints
        SELECT DISTINCT thread_id, 'late', 'late', NULL, NULL, '{}'::jsonb, '{}'::jsonb
        FROM old_rows WHERE thread_id = 'wakes' ON CONFLICT DO NOTHING;
        RETURN NULL;
    END $$;
    CREATE TRIGGER late_row AFTER DELETE ON checkpoints REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION late_row();
"""


@postgres
@pytest.mark.parametrize("safe_delete", [True, False])
async def test_a_row_that_is_there_after_the_delete_undoes_it(backend, pg_dsn, safe_delete):
    """As of a save that commits while the delete runs: else it would stay without its blobs."""
    for thread_id in ("a", "wakes", "z"):
        await backend.plant(thread_id, OLD)
    before = backend.dump("wakes")
    with _sql(pg_dsn, LATE_ROW, "DROP FUNCTION late_row CASCADE"):
        result = await backend.sweep(POLICY, clock=lambda: NOW, safe_delete=safe_delete)
    assert sorted(result.deleted_thread_ids) == ["a", "z"]
    assert result.kept == {"wakes": KeepReason.WOKE_UP}
    assert backend.dump("wakes") == before


@pytest.mark.parametrize("backend", [("sqlite", "sweep"), ("aiosqlite", "asweep")], indirect=True)
async def test_nobody_can_write_inside_the_delete_transaction_on_sqlite(backend):
    refused = []

    def recheck(thread_id, _facts):
        other = sqlite3.connect(backend.storage.path, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("UPDATE checkpoints SET checkpoint_ns = 'late'")
        other.close()
        refused.append(thread_id)

    await backend.plant("thread", OLD)
    outcomes = await _delete(backend, ["thread"], recheck)
    assert refused == ["thread"]
    assert outcomes["thread"].kept is None
    assert not backend.has("thread")


def test_a_put_from_another_thread_during_a_delete_in_memory_keeps_the_thread():
    """It comes between the second look and the pop; what came out is put back."""
    saver = InMemorySaver()
    strategy = MemoryStrategy(saver)
    where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    saver.put(where, empty_checkpoint(), {}, {})
    late = empty_checkpoint()
    outcomes = strategy.delete_threads(["t"], lambda *_: saver.put(where, late, {}, {}) and None)
    assert outcomes["t"].kept is KeepReason.WOKE_UP
    assert len(saver.storage["t"][""]) == 2


def test_a_put_beside_the_pruning_of_as_many_during_a_delete_in_memory_keeps_the_thread():
    """As many checkpoints come out as were judged, but they are others."""
    saver = InMemorySaver()
    strategy = MemoryStrategy(saver)
    where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for second in range(3):
        saver.put(where, empty_checkpoint() | {"id": uuid6_at(OLD + second)}, {}, {})
    late = empty_checkpoint() | {"id": uuid6_at(NOW)}

    def recheck(*_):
        saver.put(where, late, {}, {})
        strategy.prune_threads(["t"], 3, dry_run=False)

    outcomes = strategy.delete_threads(["t"], recheck)
    assert outcomes["t"].kept is KeepReason.WOKE_UP
    assert [*saver.storage["t"][""]] == [uuid6_at(OLD + 1), uuid6_at(OLD + 2), late["id"]]


def test_a_run_that_begins_during_a_delete_in_memory_loses_no_channel():
    """Blobs that a new run stores once the old thread is taken out are not of that thread."""
    saver = InMemorySaver()
    strategy = MemoryStrategy(saver)

    def put(thread_id, text):
        version = saver.get_next_version(None, None)
        checkpoint = empty_checkpoint() | {
            "channel_values": {"messages": [text]},
            "channel_versions": {"messages": version},
        }
        where = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        return saver.put(where, checkpoint, {}, {"messages": version})

    put("a", "old")
    put("b", "old")

    def recheck(thread_id, _facts):
        if thread_id == "b":  # by now "a" is taken out
            put("a", "new")

    outcomes = strategy.delete_threads(["a", "b"], recheck)
    assert {one: outcome.kept for one, outcome in outcomes.items()} == {"a": None, "b": None}
    found = saver.get_tuple({"configurable": {"thread_id": "a"}})
    assert found.checkpoint["channel_values"] == {"messages": ["new"]}
    assert {key[0] for key in saver.blobs} == {"a"}


@pytest.mark.parametrize("sweepers", [2, 4])
@pytest.mark.parametrize("safe_delete", [True, False])
async def test_sweepers_at_the_same_time_delete_and_report_each_thread_once(
    pg_dsn, sweepers, safe_delete
):
    """Each with a pool of its own, none coordinated."""
    ids = [f"t{n:03}" for n in range(60)]
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        for thread_id in ids:
            where = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
            saver.put(where, empty_checkpoint() | {"id": uuid6_at(OLD)}, {}, {})
    told = []
    async with AsyncExitStack() as stack:
        running = []
        for _ in range(sweepers):
            pool = AsyncConnectionPool(
                pg_dsn, min_size=1, max_size=2, kwargs={"autocommit": True}, open=False
            )
            await stack.enter_async_context(pool)
            sweeper = TTLSweeper(
                AsyncPostgresSaver(pool),
                POLICY,
                clock=lambda: NOW,
                batch_size=7,
                safe_delete=safe_delete,
                on_after_delete=lambda thread_id, _: told.append(thread_id),
            )
            running.append(sweeper.asweep())
        results = await asyncio.gather(*running)
    deleted = Counter(one for result in results for one in result.deleted_thread_ids)
    assert deleted == Counter(ids)
    assert Counter(told) == Counter(ids)
    for result in results:
        assert result.errors == {}
        assert set(result.kept.values()) <= {KeepReason.BUSY, KeepReason.GONE}
