"""The background loop starts, ticks, survives, and stops, at every moment."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from langgraph_ephemeral_checkpointer.engine import background
from langgraph_ephemeral_checkpointer.engine.background import BackgroundLoop
from langgraph_ephemeral_checkpointer.errors import NotSetUpError, StorageUnavailableError

LIMIT = 20


class Ticks:
    """Counts ticks, holds them up, and lets a test wait for one."""

    def __init__(self):
        self.count = 0
        self.finished = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail = None
        self.changed = asyncio.Condition()

    async def __call__(self):
        self.count += 1
        async with self.changed:
            self.changed.notify_all()
        if self.fail is not None:
            raise self.fail
        await self.gate.wait()
        self.finished += 1

    async def reach(self, count):
        async with asyncio.timeout(LIMIT), self.changed:
            await self.changed.wait_for(lambda: self.count >= count)


@pytest.fixture
async def ticks():
    return Ticks()


@pytest.fixture(autouse=True)
async def nothing_is_left_behind():
    threads = threading.active_count()
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert threading.active_count() == threads


async def test_start_returns_once_the_task_runs_and_it_ticks_at_once_and_again(ticks):
    loop = BackgroundLoop(ticks, "sweeper")
    assert not loop.running
    await loop.start(0.001)
    assert loop.running
    await ticks.reach(3)
    await loop.stop()
    assert not loop.running
    count = ticks.count
    await asyncio.sleep(0.01)
    assert ticks.count == count


async def test_a_created_start_task_works_as_well(ticks):
    loop = BackgroundLoop(ticks, "sweeper")
    started = asyncio.create_task(loop.start(60))
    await ticks.reach(1)
    await started
    await loop.stop()


@pytest.mark.parametrize("steps", range(5))
async def test_stop_at_any_step_after_a_start_task_was_created_leaves_nothing(ticks, steps):
    loop = BackgroundLoop(ticks, "sweeper")
    started = asyncio.create_task(loop.start(60))
    for _ in range(steps):
        await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT):
        await loop.stop()
        await started
    assert not loop.running


async def test_stop_lets_the_tick_in_progress_finish(ticks):
    ticks.gate.clear()
    loop = BackgroundLoop(ticks, "sweeper")
    await loop.start(60)
    await ticks.reach(1)
    stopping = asyncio.create_task(loop.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not stopping.done()
    ticks.gate.set()
    async with asyncio.timeout(LIMIT):
        await stopping
    assert ticks.finished == 1


async def test_stop_may_come_twice_or_without_a_start_or_at_the_same_time(ticks):
    loop = BackgroundLoop(ticks, "sweeper")
    await loop.stop()
    await loop.start(60)
    await ticks.reach(1)
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(loop.stop(), loop.stop())
        await loop.stop()


async def test_stop_that_is_cancelled_still_ends_the_loop_after_its_tick(ticks):
    ticks.gate.clear()
    loop = BackgroundLoop(ticks, "sweeper")
    await loop.start(60)
    await ticks.reach(1)
    stopping = asyncio.create_task(loop.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    ticks.gate.set()
    async with asyncio.timeout(LIMIT):
        await loop.stop()


async def test_starting_twice_is_an_error_and_starting_after_a_stop_is_not(ticks):
    loop = BackgroundLoop(ticks, "sweeper")
    first, second = await asyncio.gather(loop.start(60), loop.start(60), return_exceptions=True)
    assert first is None
    assert isinstance(second, RuntimeError)
    assert "call stop() first" in str(second)
    await loop.stop()
    await loop.start(60)
    await loop.stop()


async def test_a_start_that_is_cancelled_has_not_started(ticks):
    loop = BackgroundLoop(ticks, "sweeper")
    starting = asyncio.create_task(loop.start(60))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    async with asyncio.timeout(LIMIT):
        while loop.running:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "error", [OSError("away"), asyncio.CancelledError(), RuntimeError(), TimeoutError()], ids=repr
)
async def test_the_loop_survives_any_exception_of_a_tick(ticks, error, caplog):
    """Also a cancellation that is not of the loop itself: one that leaked out of a callback."""
    ticks.fail = error
    loop = BackgroundLoop(ticks, "sweeper")
    await loop.start(0.001)
    await ticks.reach(3)
    assert loop.running
    assert "a sweep failed" in caplog.text
    ticks.fail = None
    await loop.stop()
    assert ticks.count >= 3


@pytest.mark.parametrize(
    ("error", "repeats"),
    [(StorageUnavailableError(), False), (NotSetUpError(), True), (OSError("?"), False)],
    ids=repr,
)
async def test_the_loop_says_which_failures_come_again_until_something_is_changed(
    ticks, error, repeats, caplog
):
    ticks.fail = error
    loop = BackgroundLoop(ticks, "sweeper")
    await loop.start(0.001)
    await ticks.reach(2)
    await loop.stop()
    assert ("fails too until the cause is changed" in caplog.text) == repeats


async def test_cancelling_the_task_ends_it(ticks):
    ticks.gate.clear()
    loop = BackgroundLoop(ticks, "sweeper")
    await loop.start(60)
    await ticks.reach(1)
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not loop.running
    async with asyncio.timeout(LIMIT):
        await loop.stop()
        ticks.gate.set()
        await loop.start(60)
        await loop.stop()


async def test_a_tick_may_stop_the_loop_it_runs_in():
    stopped = []

    async def tick():
        await loop.stop()
        stopped.append(True)

    loop = BackgroundLoop(tick, "sweeper")
    await loop.start(0.001)
    async with asyncio.timeout(LIMIT):
        while loop.running:
            await asyncio.sleep(0)
    assert stopped == [True]
    await loop.stop()


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), timedelta(0)])
async def test_an_interval_that_is_not_positive_and_finite_is_a_value_error(ticks, interval):
    with pytest.raises(ValueError, match="interval_seconds"):
        await BackgroundLoop(ticks, "sweeper").start(interval)


@pytest.mark.parametrize("interval", [10**400, 1.7e308, timedelta.max], ids=["int", "float", "max"])
async def test_a_huge_interval_is_a_long_pause(ticks, interval):
    loop = BackgroundLoop(ticks, "sweeper")
    await loop.start(interval)
    await ticks.reach(1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert loop.running
    await loop.stop()


async def test_pauses_are_jittered_around_the_interval(monkeypatch, ticks):
    pauses = []

    async def wait_for(awaitable, seconds):
        awaitable.close()
        pauses.append(seconds)
        await asyncio.sleep(0)
        raise TimeoutError

    monkeypatch.setattr(background.asyncio, "wait_for", wait_for)
    loop = BackgroundLoop(ticks, "sweeper")
    await loop.start(100)
    await ticks.reach(40)
    await loop.stop()
    assert len(set(pauses)) > 20
    assert 90 <= min(pauses) < 97
    assert 103 < max(pauses) <= 110


def test_a_loop_that_died_with_its_event_loop_can_be_stopped_and_started_anew():
    loops = []

    async def first():
        loops.append(BackgroundLoop(Ticks(), "sweeper"))
        await loops[0].start(60)

    async def second():
        assert not loops[0].running
        await loops[0].stop()
        await loops[0].start(60)
        await loops[0].stop()

    asyncio.run(first())
    asyncio.run(second())
