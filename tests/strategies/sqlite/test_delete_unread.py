"""What the SQLite savers delete without reading it first: what is surely idle, nothing else."""

from __future__ import annotations

import functools
import sqlite3
from fractions import Fraction

import pytest

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at
from langgraph_ephemeral_checkpointer.engine.steps import AsyncSteps, Work
from langgraph_ephemeral_checkpointer.errors import StorageError
from tests.support import backends
from tests.support.aging import uuid6_at, uuid7_at

DAY = 86400.0
NOW = 1_750_000_000.0
OLD = NOW - 10 * DAY
BEFORE = NOW - DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY)

sqlite = pytest.mark.parametrize(
    "backend",
    [one for one in backends.PARAMS if "sqlite" in one[0]],
    ids="-".join,
    indirect=True,
)


async def delete_unread(backend, *thread_ids):
    strategy = backend.sweeper().strategy
    call = functools.partial(strategy.delete_unread, thread_ids, BEFORE)
    return await AsyncSteps(strategy).perform(Work(call))


def execute(backend, sql, *params):
    conn = sqlite3.connect(backend.storage.path)
    with conn:
        conn.execute(sql, params)
    conn.close()


async def asks(backend, thread_id, head):
    await backend.put_writes(thread_id, head, ("__interrupt__", "may I?"), task_id="asks")


async def asks_as_langgraph_js_stores_it(backend, thread_id, head):
    """LangGraph.js numbers the writes of a task from 0 on, whatever their channels."""
    execute(
        backend,
        "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel) "
        "VALUES (?, '', ?, 'asks', 0, '__interrupt__')",
        thread_id,
        head,
    )


async def wakes(backend, thread_id, _head):
    await backend.put(thread_id, NOW - 60)


async def wakes_in_a_subgraph(backend, thread_id, _head):
    await backend.put(thread_id, NOW - 60, ns="node:8f14e45f|inner:1")


async def has_an_id_in_upper_case(backend, thread_id, _head):
    """A young one, which text puts between two old ones."""
    await backend.put(thread_id, uuid6_at(NOW - 60).upper())
    assert uuid6_at(NOW - 60).upper() < uuid6_at(OLD)


async def has_an_id_of_version_7(backend, thread_id, _head):
    await backend.put(thread_id, uuid7_at(NOW - 60))


async def has_an_id_that_tells_no_time(backend, thread_id, _head):
    await backend.put(thread_id, "0")


async def is_as_old_as_the_limit(backend, thread_id, _head):
    await backend.put(thread_id, BEFORE)


async def is_a_tick_older_than_the_limit(backend, thread_id, _head):
    """Which is no older as floats go, and these judge in the end."""
    await backend.put(thread_id, first_id_at(Fraction(BEFORE) - Fraction(1, 10_000_000)))


async def lost_its_root(backend, thread_id, _head):
    execute(
        backend,
        "DELETE FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''",
        thread_id,
    )


async def is_gone(backend, thread_id, _head):
    execute(backend, "DELETE FROM checkpoints WHERE thread_id = ?", thread_id)


@sqlite
@pytest.mark.parametrize(
    "event",
    [
        asks,
        asks_as_langgraph_js_stores_it,
        wakes,
        wakes_in_a_subgraph,
        has_an_id_in_upper_case,
        has_an_id_of_version_7,
        has_an_id_that_tells_no_time,
        is_as_old_as_the_limit,
        is_a_tick_older_than_the_limit,
        lost_its_root,
        is_gone,
    ],
)
async def test_a_thread_that_is_not_surely_idle_stays_as_it_is(backend, event, monkeypatch):
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.strategies.sqlite.access.VARIABLES", 5)
    ids = [f"t{number}" for number in range(9)]  # more than go into one statement
    heads = [await backend.plant(thread_id, OLD) for thread_id in ids]
    await backend.plant("other", OLD)
    changed = ("t1", "t7")
    for thread_id in changed:
        await event(backend, thread_id, heads[ids.index(thread_id)])
    before = [backend.dump(thread_id) for thread_id in (*changed, "other")]

    deleted = await delete_unread(backend, *ids)

    assert list(deleted) == [thread_id for thread_id in ids if thread_id not in changed]
    assert backend.storage.threads() == {*changed, "other"}
    assert [backend.dump(thread_id) for thread_id in (*changed, "other")] == before


@sqlite
async def test_an_interrupt_that_is_over_keeps_no_thread(backend):
    """One on an older checkpoint, or answered on the newest: the sweep finds out by reading."""
    head = await backend.plant("passed", OLD)
    await asks(backend, "passed", head)
    await backend.put("passed", OLD + 60)
    head = await backend.plant("answered", OLD)
    await asks(backend, "answered", head)
    await backend.put_writes("answered", head, ("messages", ["done"]), task_id="asks")
    assert list(await delete_unread(backend, "passed", "answered")) == ["passed"]
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == ["answered"]
    assert backend.storage.threads() == set()


@sqlite
@pytest.mark.parametrize(
    ("event", "why"),
    [
        (wakes, None),
        (wakes_in_a_subgraph, None),
        (asks, KeepReason.INTERRUPTED),
        (is_gone, KeepReason.GONE),
    ],
)
async def test_what_happens_between_the_scan_and_the_delete_is_seen_and_reported(
    backend, event, why
):
    """One that woke up is as one that the scan found awake."""

    async def after_delete(_thread_id, _reason):
        await event(backend, "z", heads["z"])

    heads = {thread_id: await backend.plant(thread_id, OLD) for thread_id in ("a", "z")}
    result = await backend.sweep(
        POLICY,
        clock=lambda: NOW,
        batch_size=1,
        on_after_delete=backend.callback(after_delete),
    )
    assert result.deleted_thread_ids == ["a"]
    assert result.kept == ({} if why is None else {"z": why})
    assert (result.active_thread_count, result.deferred_count) == (why is not KeepReason.GONE, 0)


@sqlite
@pytest.mark.parametrize("table", ["checkpoints", "writes"])
async def test_a_trigger_that_holds_rows_back_in_any_table_undoes_the_delete(backend, table):
    for thread_id in ("bad", "good"):
        await backend.plant(thread_id, OLD)
    before = backend.dump("bad")
    execute(
        backend,
        f"CREATE TRIGGER no_delete BEFORE DELETE ON {table} WHEN OLD.thread_id = 'bad' "
        "BEGIN SELECT RAISE(IGNORE); END",
    )
    with pytest.raises(StorageError, match=rf"RAISE\(IGNORE\) on the table {table}"):
        await delete_unread(backend, "bad", "good")
    assert backend.has("good")
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == ["good"]
    assert result.kept == {"bad": KeepReason.FAILED}
    assert backend.dump("bad") == before
