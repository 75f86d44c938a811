"""Single histories in which other tools have lost something, on every saver."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing

import psycopg
import pytest
from langgraph.types import Command

from tests.support.backends import PRUNED_KINDS, open_pair, open_place, prune
from tests.support.features import HAS_DELTA
from tests.support.prune_graphs import RUNS, Driver, new_thread, shape
from tests.support.prune_histories import History, check


def turn(cmd="plain", **more):
    return {"kind": "turn", "cmd": cmd, **more}


@asynccontextmanager
async def driven(kind, locate, frequency=5):
    async with open_place(kind, locate(kind)[0]) as place:
        yield place, Driver(place, new_thread(), frequency)


def thread_of(driver):
    return driver.config["configurable"]["thread_id"]


def spaces(place, thread_id):
    return {namespace for namespace, _ in place.rows(thread_id)["checkpoints"]}


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("frequency", [1, 2, 5, 1000])
@pytest.mark.parametrize("kind", PRUNED_KINDS)
def test_a_delta_channel_reads_and_goes_on_as_before(kind, frequency, keep, locate):
    operations = (
        turn(), turn(), {"kind": "update", "cmd": "plain", "at": 4}, turn(durability="exit"),
        {"kind": "copy", "at": 3}, turn(),
    )  # fmt: skip
    assert check(kind, locate, History(operations, frequency, keep)) or frequency > 2


@pytest.mark.parametrize("kind", PRUNED_KINDS)
def test_each_replay_from_a_kept_root_finds_the_persistent_subgraph_as_it_was_then(kind, locate):
    operations = (turn("keep"), turn("keep"), turn("keep"))
    assert check(kind, locate, History(operations, 1, 3))


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_a_thread_that_is_left_whole_does_not_keep_the_others_from_being_pruned(kind, locate):
    async with driven(kind, locate) as (place, plain):
        delta, broken = (Driver(place, new_thread(), 1000) for _ in range(2))
        for driver in (plain, delta, broken):
            for _ in range(3):
                await driver.perform(turn())
        ids = await broken.ids()
        drop(place, thread_of(broken), ids[5])
        before = place.rows(thread_of(broken))
        outcomes = await prune(place.saver, [thread_of(d) for d in (broken, plain, delta)], 2)
        if HAS_DELTA:
            assert f"rebuilt from checkpoint {ids[5]}" in outcomes[thread_of(broken)].left_whole
            assert place.rows(thread_of(broken)) == before
        assert outcomes[thread_of(plain)].removed_checkpoints > 0
        assert outcomes[thread_of(delta)].left_whole is None
        assert len(await plain.ids()) < 9


def drop(place, thread_id, checkpoint_id):
    """Take away one checkpoint, as a tool does that does not know of delta channels."""
    if place.kind == "memory":
        del place.saver.storage[thread_id][""][checkpoint_id]
    elif "sqlite" in place.kind:
        execute(place, "DELETE FROM checkpoints WHERE checkpoint_id = ?", checkpoint_id)
    else:
        execute(place, "DELETE FROM checkpoints WHERE checkpoint_id = %s", checkpoint_id)


def execute(place, sql, *params):
    if "sqlite" in place.kind:
        with closing(sqlite3.connect(place.where)) as conn, conn:
            return conn.execute(sql, params).fetchall()
    with psycopg.connect(place.where, autocommit=True) as conn:
        cur = conn.execute(sql, params)
        return cur.fetchall() if cur.description else []


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_three_parallel_tasks_that_wait_run_once_each_with_prunes_in_between(kind, locate):
    async with driven(kind, locate) as (place, driver):
        await driver.perform(turn())
        await driver.perform(turn("fan ask"))
        RUNS.clear()
        removed = 0
        waiting = [one.id for one in (await driver.state()).interrupts]
        for interrupt_id in waiting:
            removed += (await place.prune(thread_of(driver), 1)).removed_checkpoints
            await driver.invoke(Command(resume={interrupt_id: "yes"}))
        assert removed > 0
        assert sorted(run for run in RUNS if run.startswith("w")) == ["w0", "w1", "w2"]
        assert not (await driver.state()).next


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_dead_calls_go_with_their_roots_and_a_waiting_one_stays(kind, locate):
    async with driven(kind, locate, 1) as (place, driver):
        for _ in range(2):
            await driver.perform(turn("call"))
        await driver.perform(turn("call ask"))
        assert len([space for space in spaces(place, thread_of(driver)) if ":" in space]) == 3
        await place.prune(thread_of(driver), 2)
        [call] = [space for space in spaces(place, thread_of(driver)) if ":" in space]
        assert (await driver.state()).tasks[0].state.config["configurable"]["checkpoint_ns"] == call
        RUNS.clear()
        await driver.invoke(Command(resume="yes"))
        assert [run.split("/")[0] for run in RUNS] == ["c2", "z"]


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_a_call_inside_a_persistent_subgraph_goes_on_after_the_root_was_updated(kind, locate):
    async with driven(kind, locate, 1) as (place, driver):
        await driver.perform(turn())
        await driver.perform(turn("keep deep"))
        await driver.update({"cmd": "keep"}, as_node="a")
        assert (await place.prune(thread_of(driver), 1)).removed_checkpoints > 0
        RUNS.clear()
        await driver.invoke(None)  # the waiting question is asked again: nothing else reran
        assert RUNS == []
        await driver.invoke(Command(resume="yes"))
        assert [run.split("/")[0] for run in RUNS] == ["ik2", "k2", "z"]


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_pruning_twice_changes_nothing_more(kind, locate):
    async with driven(kind, locate) as (place, driver):
        for cmd in ("plain", "keep", "call", "fan", "keep ask"):
            await driver.perform(turn(cmd))
        await place.prune(thread_of(driver), 3)
        before = place.rows(thread_of(driver))
        outcome = await place.prune(thread_of(driver), 3)
        assert (outcome.removed_checkpoints, outcome.left_whole) == (0, None)
        assert place.rows(thread_of(driver)) == before


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_a_thread_that_was_pruned_in_its_first_turn_can_be_pruned_again(kind, locate):
    """Before its delta channel began: what was taken then is not missed later."""
    async with open_pair(kind, locate(kind)) as (place, twin):
        thread_id = new_thread()
        pruned, whole = (Driver(one, thread_id, 1000) for one in (place, twin))
        for side in (pruned, whole):
            await side.update({"cmd": "plain"}, as_node="__start__")
            await side.update({"cmd": "plain"}, as_node="a")
        assert (await place.prune(thread_id, 1)).removed_checkpoints > 0
        for side in (pruned, whole):
            for _ in range(2):
                await side.perform(turn())
        outcome = await place.prune(thread_id, 1)
        assert outcome.left_whole is None
        assert shape(await pruned.state()) == shape(await whole.state())
        assert (await pruned.state()).values["delta"]


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_writes_and_blobs_that_no_checkpoint_names_yet_stay(kind, locate):
    async with driven(kind, locate) as (place, driver):
        for _ in range(3):
            await driver.perform(turn())
        thread_id = thread_of(driver)
        first = min(key[1] for key in place.rows(thread_id)["checkpoints"])
        late = {"00000000-0000-6000-8000-000000000000", f"{first}0"}  # below all, and in between
        for config in map(driver.at, late):
            if place.is_async:
                await place.saver.aput_writes(config, [("plain", ["late"])], "task")
            else:
                place.saver.put_writes(config, [("plain", ["late"])], "task")
        if place.kind == "memory":
            place.saver.blobs[thread_id, "", "plain", "1.5"] = ("null", b"")
        elif "postgres" in place.kind:
            execute(
                place,
                "INSERT INTO checkpoint_blobs (thread_id, channel, version, type) "
                "VALUES (%s, 'plain', '1.5', 'null')",
                thread_id,
            )
        await place.prune(thread_id, 1)
        after = place.rows(thread_id)
        assert {("", one) for one in late} <= {key[:2] for key in after["writes"]}
        assert "blobs" not in after or ("", "plain", "1.5") in after["blobs"]


@pytest.mark.parametrize("thread_id", ["a\x00b", "A", "a ", "a%", "ä", "x" * 400])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "async-sqlite"])
async def test_thread_ids_are_taken_exactly(kind, thread_id, locate):
    async with open_place(kind, locate(kind)[0]) as place:
        others = ["a", "a\x00", "a_", "a\x00bc", "AA"]
        for name in (thread_id, *others):
            for _ in range(2):
                await Driver(place, name).perform(turn())
        before = {name: place.rows(name)["checkpoints"] for name in others}
        assert (await place.prune(thread_id, 1)).removed_checkpoints > 0
        assert {name: place.rows(name)["checkpoints"] for name in others} == before


def test_no_thread_and_an_unknown_thread_are_nothing_to_do(locate):
    async def run(kind):
        async with open_place(kind, locate(kind)[0]) as place:
            assert await prune(place.saver, [], 1) == {}
            outcome = await place.prune("unknown", 1)
            assert (outcome.removed_checkpoints, outcome.left_whole) == (0, None)
            if kind == "memory":
                assert "unknown" not in place.saver.storage

    for kind in PRUNED_KINDS:
        asyncio.run(run(kind))
