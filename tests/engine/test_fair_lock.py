"""One holder at a time, first come first served, from threads and event loops alike."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from langgraph_ephemeral_checkpointer.engine.fair_lock import Turns
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError

LIMIT = 20  # seconds after which a test has deadlocked


class Inside:
    """Counts who is inside, and remembers the most there were."""

    def __init__(self):
        self.now = self.most = self.total = 0

    def enter(self):
        self.now += 1
        self.total += 1
        self.most = max(self.most, self.now)

    def leave(self):
        self.now -= 1


def test_threads_and_loops_take_turns():
    turns, inside = Turns(), Inside()

    def in_thread():
        for _ in range(50):
            with turns.wait():
                inside.enter()
                inside.leave()

    async def in_task():
        for _ in range(20):
            async with turns.await_turn():
                inside.enter()
                await asyncio.sleep(0)
                inside.leave()

    async def in_loop():
        await asyncio.gather(*(in_task() for _ in range(3)))

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(in_thread) for _ in range(3)]
        jobs += [pool.submit(lambda: asyncio.run(in_loop())) for _ in range(3)]
        for job in jobs:
            job.result(LIMIT)
    assert (inside.now, inside.most, inside.total) == (0, 1, 3 * 50 + 3 * 3 * 20)


async def test_turns_come_in_the_order_they_were_asked_for():
    turns, order = Turns(), []

    async def take(number):
        async with turns.await_turn():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(take(n) for n in range(5)))
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("steps", range(6))
async def test_a_wait_that_is_cancelled_at_any_step_passes_the_turn_on(steps):
    turns = Turns()
    release, reached = asyncio.Event(), []

    async def hold():
        async with turns.await_turn():
            await release.wait()

    async def take(name):
        async with turns.await_turn():
            reached.append(name)

    holder = asyncio.create_task(hold())
    await asyncio.sleep(0)
    cancelled, last = asyncio.create_task(take("cancelled")), asyncio.create_task(take("last"))
    await asyncio.sleep(0)
    release.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    cancelled.cancel()
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(holder, last)
        await asyncio.wait({cancelled})
        async with turns.await_turn():
            reached.append("again")
    assert reached[-2:] == ["last", "again"]


async def test_an_error_inside_passes_the_turn_on():
    turns = Turns()
    with pytest.raises(KeyError), turns.wait():
        raise KeyError
    with pytest.raises(KeyError):
        async with turns.await_turn():
            raise KeyError
    with turns.wait():
        pass


async def test_blocking_a_loop_for_a_turn_that_this_loop_holds_is_an_error_and_no_deadlock():
    turns, release = Turns(), asyncio.Event()

    async def hold():
        async with turns.await_turn():
            await release.wait()

    holder = asyncio.create_task(hold())
    await asyncio.sleep(0)
    with pytest.raises(AsyncRequiredError, match="asweep"), turns.wait():
        pytest.fail("entered")
    release.set()
    await holder
    with turns.wait():  # nobody of this loop holds it or waits any more
        pass


async def test_a_thread_beside_the_loop_may_wait_for_a_turn_that_the_loop_holds():
    turns, asked = Turns(), threading.Event()

    def take():
        asked.set()
        with turns.wait():
            return "taken"

    async with turns.await_turn():
        waiting = asyncio.create_task(asyncio.to_thread(take))
        await asyncio.to_thread(asked.wait)
    async with asyncio.timeout(LIMIT):
        assert await waiting == "taken"
