"""Sweeps beside an event loop: it is never blocked, and a cancelled sweep leaves no half batch."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from langgraph_ephemeral_checkpointer import (
    AsyncRequiredError,
    KeepReason,
    RetentionError,
    TTLPolicy,
)
from langgraph_ephemeral_checkpointer.strategies import GenericStrategy
from tests.support import backends, foreign, graphs

DAY = 86400.0
NOW = 1_750_000_000.0
OLD = NOW - 10 * DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
LIMIT = 20

asynchronous = pytest.mark.parametrize(
    "backend",
    [one for one in backends.PARAMS if one[1] == "asweep"],
    ids="-".join,
    indirect=True,
)
one_each_async = pytest.mark.parametrize(
    "backend",
    [(kind, "asweep") for kind in ("memory", "sqlite", "aiosqlite", "pg-pool", "apg-pipeline")],
    ids="-".join,
    indirect=True,
)


@pytest.mark.parametrize("kind", ["sqlite", "foreign-sync"])
async def test_a_synchronous_saver_never_blocks_the_event_loop(kind, tmp_path, monkeypatch):
    """Every call of the saver or its connection comes from a thread beside the loop."""
    callers = set()
    async with backends.open_backend(kind, "asweep", tmp_path, None) as backend:
        for n in range(3):
            await backend.plant(f"t{n}", OLD)
        sweeper = backend.sweeper(POLICY, clock=lambda: NOW, batch_size=1)
        for name in ("scan", "find_interrupted", "delete_threads", "perform"):
            original = getattr(sweeper.strategy, name)

            def traced(*args, original=original, **kwargs):
                callers.add(threading.current_thread())
                return original(*args, **kwargs)

            monkeypatch.setattr(sweeper.strategy, name, traced)
        result = await sweeper.asweep()
    assert len(result.deleted_thread_ids) == 3
    assert callers
    assert threading.main_thread() not in callers


async def test_the_loop_goes_on_while_a_synchronous_saver_waits_for_a_lock(tmp_path):
    async with backends.open_backend("sqlite", "asweep", tmp_path, None) as backend:
        await backend.plant("t", OLD)
        beats = 0
        with backend.saver.lock:  # as a graph in another thread would hold it
            sweeping = asyncio.create_task(backend.sweep(POLICY, clock=lambda: NOW))
            while beats < 50:
                await asyncio.sleep(0.001)
                beats += 1
            assert not sweeping.done()
        result = await asyncio.wait_for(sweeping, LIMIT)
        assert result.deleted_thread_ids == ["t"]


@asynchronous
async def test_a_graph_runs_in_the_same_loop_meanwhile(backend):
    graph = graphs.chat(backend.saver)
    for n in range(20):
        await backend.plant(f"t{n:02}", OLD)

    async def turns():
        for _ in range(3):
            state = {"messages": [("user", "hello")]}
            if backend.is_async:
                last = await backend.invoke(graph, state, "running")
            else:
                last = await asyncio.to_thread(
                    graph.invoke, state, {"configurable": {"thread_id": "running"}}
                )
        return last

    async with asyncio.timeout(LIMIT):
        swept, last = await asyncio.gather(
            backend.sweep(POLICY, clock=lambda: NOW, batch_size=2), turns()
        )
    assert len(swept.deleted_thread_ids) == 20
    assert len(last["messages"]) == 6


@one_each_async
@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_a_sweep_cancelled_at_any_step_leaves_whole_threads_and_can_be_repeated(
    backend, after
):
    ids = [f"t{n:02}" for n in range(8)]
    for thread_id in ids:
        await backend.plant(thread_id, OLD)
    whole = backend.count(ids[0])
    told = []

    async def on_after_delete(thread_id, _reason):
        await asyncio.sleep(0)
        told.append(thread_id)

    sweeper = backend.sweeper(
        POLICY, clock=lambda: NOW, batch_size=2, on_after_delete=on_after_delete
    )
    sweeping = asyncio.create_task(sweeper.asweep())
    for _ in range(after):
        await asyncio.sleep(0)
    sweeping.cancel()
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({sweeping})
    left = {one: backend.count(one) for one in ids if backend.has(one)}
    assert all(count == whole for count in left.values())
    # Batches of two, each finished to its last callback.
    assert len(left) % 2 == 0
    assert sorted([*told, *left]) == ids

    async with asyncio.timeout(LIMIT):
        again = await sweeper.asweep()
    assert again.deleted_thread_ids == sorted(left)
    assert backend.storage.threads() == set()


@one_each_async
async def test_a_cancelled_sweep_stops_before_the_next_batch_and_its_callbacks(backend):
    for n in range(6):
        await backend.plant(f"t{n}", OLD)
    asked = []

    async def veto(thread_id, _policy, _reason):
        asked.append(thread_id)
        if len(asked) == 2:
            sweeping.cancel()
            await asyncio.sleep(0)

    sweeping = asyncio.create_task(
        backend.sweep(POLICY, clock=lambda: NOW, batch_size=2, on_before_delete=veto)
    )
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({sweeping})
    assert sweeping.cancelled()
    assert asked == ["t0", "t1"]
    assert len(backend.storage.threads()) == 6


async def test_a_sweep_cancelled_while_the_storage_is_read_asks_no_more_callbacks():
    class Slow(GenericStrategy):
        async def alist_checkpoints(self, thread_id=None):
            async for found in super().alist_checkpoints(thread_id):
                yield found
            sweeping.cancel()
            await asyncio.sleep(0)

    saver = foreign.AsyncForeignSaver()
    backend = backends.Backend("x", saver, "asweep", True, backends.MemoryStorage(saver.hidden))
    await backend.plant("t", OLD)
    sweeping = asyncio.create_task(
        backend.sweep(
            POLICY,
            clock=lambda: NOW,
            strategy=Slow(saver),
            policy_resolver=lambda _: pytest.fail("asked"),
        )
    )
    await asyncio.wait({sweeping})
    assert sweeping.cancelled()
    assert backend.has("t")


@one_each_async
@pytest.mark.parametrize("callback", ["policy_resolver", "on_before_delete", "on_after_delete"])
async def test_a_cancellation_that_leaks_out_of_a_callback_is_a_failure_of_the_callback(
    backend, callback
):
    async def leaks(*_args):
        other = asyncio.create_task(asyncio.sleep(LIMIT))
        other.cancel()
        await other

    await backend.plant("t", OLD)
    result = await backend.sweep(POLICY, clock=lambda: NOW, **{callback: leaks})
    if callback == "on_before_delete":
        assert result.kept == {"t": KeepReason.CALLBACK_FAILED}
    else:
        assert result.deleted_thread_ids == ["t"]


@pytest.mark.parametrize(
    "backend",
    [("aiosqlite", "asweep"), ("apg-connection", "asweep"), ("apg-pool", "asweep")],
    ids="-".join,
    indirect=True,
)
@pytest.mark.parametrize("after", range(0, 30, 3))
async def test_a_delete_that_an_event_loop_is_shut_down_around_leaves_no_open_transaction(
    backend, after
):
    """asyncio.run() cancels all tasks at its end, also those that do shielded work."""
    await backend.plant("t", OLD)
    whole = backend.dump("t")
    deleting = asyncio.create_task(backend.sweeper().strategy.delete_threads(["t"], None))
    for _ in range(after):
        await asyncio.sleep(0)
    deleting.cancel()
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({deleting})
        assert backend.dump("t") in (whole, {table: [] for table in whole})
        await backend.plant("other", OLD)  # another writer is not kept out
        result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert "other" in result.deleted_thread_ids
    assert backend.storage.threads() == set()


@pytest.mark.parametrize("backend", [("aiosqlite", "asweep")], ids="-".join, indirect=True)
async def test_a_begin_that_is_cancelled_while_it_waits_opens_no_transaction_later(backend):
    await backend.plant("t", OLD)
    other = sqlite3.connect(backend.storage.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    deleting = asyncio.create_task(backend.sweeper().strategy.delete_threads(["t"], None))
    for _ in range(10):
        await asyncio.sleep(0)
    deleting.cancel()
    await asyncio.sleep(0)
    other.execute("ROLLBACK")
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({deleting})
        await backend.saver.conn.execute("SELECT 1")  # comes after all that is in the queue
    assert not backend.saver.conn.in_transaction
    other.execute("BEGIN IMMEDIATE")
    other.close()
    assert backend.has("t")


@one_each_async
async def test_two_sweeps_at_once_take_turns(backend):
    for n in range(6):
        await backend.plant(f"t{n}", OLD)
    inside, most = 0, 0

    async def veto(*_args):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    sweeper = backend.sweeper(POLICY, clock=lambda: NOW, on_before_delete=veto, batch_size=2)
    async with asyncio.timeout(LIMIT):
        first, second, third = await asyncio.gather(*(sweeper.asweep() for _ in range(3)))
    assert most == 1
    assert len(first.deleted_thread_ids) == 6
    assert (second.deleted_thread_ids, third.deleted_thread_ids) == ([], [])
    assert second.kept == third.kept == {}


@pytest.mark.parametrize(
    "backend",
    [("memory", "sweep"), ("sqlite", "sweep"), ("pg-pool", "sweep"), ("foreign-sync", "sweep")],
    ids="-".join,
    indirect=True,
)
async def test_sweeps_from_threads_and_loops_of_one_sweeper_delete_each_thread_once(backend):
    ids = [f"t{n}" for n in range(12)]
    for thread_id in ids:
        await backend.plant(thread_id, OLD)
    sweeper = backend.sweeper(POLICY, clock=lambda: NOW, batch_size=2)

    async def two():
        return await asyncio.gather(sweeper.asweep(), sweeper.asweep())

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(sweeper.sweep) for _ in range(3)]
        jobs += [pool.submit(lambda: asyncio.run(two())) for _ in range(2)]
        async with asyncio.timeout(LIMIT):
            while not all(job.done() for job in jobs):
                await asyncio.sleep(0.01)
    results = [job.result() for job in jobs]
    flat = [one for found in results for one in (found if isinstance(found, list) else [found])]
    assert sorted(one for result in flat for one in result.deleted_thread_ids) == sorted(ids)
    assert all(result.kept == {} for result in flat)


@pytest.mark.parametrize(
    "backend",
    [("aiosqlite", "asweep"), ("apg-connection", "asweep"), ("apg-pool", "asweep")],
    ids="-".join,
    indirect=True,
)
async def test_an_asynchronous_saver_of_another_running_loop_is_a_clear_error(backend):
    """Its lock would wake a waiter of the wrong loop, and hang the graph."""
    await backend.plant("t", OLD)
    sweeper = backend.sweeper(POLICY, clock=lambda: NOW)
    with pytest.raises(RetentionError, match="event loop"):
        await asyncio.to_thread(lambda: asyncio.run(sweeper.asweep()))
    assert backend.has("t")
    assert (await sweeper.asweep()).deleted_thread_ids == ["t"]


async def test_sweep_in_a_loop_that_sweeps_already_is_a_clear_error(tmp_path):
    async with backends.open_backend("sqlite", "asweep", tmp_path, None) as backend:
        sweeper = backend.sweeper(POLICY)
        with backend.saver.lock:
            sweeping = asyncio.create_task(sweeper.asweep())
            await asyncio.sleep(0)
            with pytest.raises(AsyncRequiredError, match="asweep"):
                sweeper.sweep()
        await sweeping


@asynchronous
async def test_start_sweeps_at_once_and_again_and_stop_leaves_nothing(backend):
    swept = asyncio.Queue()
    sweeper = backend.sweeper(POLICY, clock=lambda: NOW, on_sweep_complete=swept.put_nowait)
    await backend.plant("t0", OLD)
    await sweeper.start(0.01)
    async with asyncio.timeout(LIMIT):
        assert (await swept.get()).deleted_thread_ids == ["t0"]
        await backend.plant("t1", OLD)
        while (await swept.get()).deleted_thread_ids != ["t1"]:
            pass
        with pytest.raises(RuntimeError, match="started"):
            await sweeper.start(60)
        await sweeper.stop()
        await sweeper.stop()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "langgraph-ephemeral-checkpointer" not in names


async def test_a_callback_may_stop_the_sweeper_that_calls_it(tmp_path):
    async with backends.open_backend("memory", "asweep", tmp_path, None) as backend:
        done = asyncio.Event()

        async def complete(_result):
            await sweeper.stop()
            done.set()

        sweeper = backend.sweeper(POLICY, on_sweep_complete=complete)
        await sweeper.start(0.001)
        async with asyncio.timeout(LIMIT):
            await done.wait()
            await sweeper.stop()


async def test_a_callback_may_start_the_sweeper_that_calls_it(tmp_path):
    async with backends.open_backend("memory", "asweep", tmp_path, None) as backend:
        results = asyncio.Queue()

        async def complete(result):
            results.put_nowait(result)
            if results.qsize() == 1:
                await sweeper.start(0.001)

        sweeper = backend.sweeper(POLICY, clock=lambda: NOW, on_sweep_complete=complete)
        await sweeper.asweep()
        async with asyncio.timeout(LIMIT):
            while results.qsize() < 3:
                await asyncio.sleep(0.001)
            await sweeper.stop()


async def test_an_interval_is_checked_by_start(tmp_path):
    async with backends.open_backend("memory", "asweep", tmp_path, None) as backend:
        with pytest.raises(ValueError, match="interval_seconds"):
            await backend.sweeper().start(0)
        with pytest.raises(TypeError, match="interval_seconds"):
            await backend.sweeper().start("60")


class Half(GenericStrategy):
    """A strategy as a user might write it: one of its methods is a coroutine function."""

    async def find_interrupted(self, thread_ids):
        await asyncio.sleep(0)
        return set()

    def scan(self, wanted, after, limit):
        page = yield from super().scan(wanted, after, limit)
        return replace(page, threads=[replace(one, interrupted=None) for one in page.threads])


async def test_a_coroutine_method_works_under_asweep_and_is_a_clear_error_under_sweep():
    saver = foreign.SyncForeignSaver()
    backend = backends.Backend("x", saver, "asweep", False, backends.MemoryStorage(saver.hidden))
    await backend.put("t", OLD)
    sweeper = backend.sweeper(POLICY, strategy=Half(saver), clock=lambda: NOW)
    with pytest.raises(AsyncRequiredError, match=r"asweep\(\)"):
        sweeper.sweep()
    assert (await sweeper.asweep()).deleted_thread_ids == ["t"]
