"""A pruned thread keeps its birth, where LangGraph neither reads nor writes it."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_ephemeral_checkpointer.strategies.births import has_time
from langgraph_ephemeral_checkpointer.strategies.memory.birth import memory_birth_of
from langgraph_ephemeral_checkpointer.strategies.postgres.birth import postgres_birth
from langgraph_ephemeral_checkpointer.strategies.sqlite.birth import sqlite_birth_of
from tests.strategies.test_prune_cases import execute, turn
from tests.support.backends import PRUNED_KINDS, open_place
from tests.support.prune_graphs import Driver, exact, new_thread


def birth_of(place, thread_id):
    """The marker, read as a scan would."""
    if place.kind == "memory":
        return memory_birth_of(place.saver, thread_id)
    if "sqlite" in place.kind:
        [(found,)] = execute(place, f"SELECT {sqlite_birth_of('?')}", thread_id)
        return found
    found = execute(
        place,
        f"SELECT {postgres_birth('type')} FROM checkpoints WHERE thread_id = %s "
        "AND checkpoint_ns = '' ORDER BY checkpoint_id LIMIT 1",
        thread_id,
    )
    return found[0][0] if found else None


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_the_birth_is_carried_over_every_prune_and_goes_with_the_thread(kind, locate):
    async with open_place(kind, locate(kind)[0]) as place:
        thread_id = new_thread()
        driver = Driver(place, thread_id, 1)
        await driver.perform(turn())
        first = (await driver.ids())[-1]
        assert birth_of(place, thread_id) is None
        await place.prune(thread_id, 50)
        assert birth_of(place, thread_id) is None  # nothing went, so nothing is to be marked
        for keep in (2, 1, 3):
            await driver.perform(turn())
            before = [exact(state) for state in await driver.history()][:keep]
            await place.prune(thread_id, keep)
            assert birth_of(place, thread_id) == first
            assert [exact(state) for state in await driver.history()] == before
        listed = place._list(thread_id) if kind != "async-sqlite" else []
        assert all(found.config["configurable"]["checkpoint_ns"] == "" for found in listed)

        if place.is_async:
            await place.saver.adelete_thread(thread_id)
        else:
            place.saver.delete_thread(thread_id)
        await driver.perform(turn())
        assert birth_of(place, thread_id) is None


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_where_ids_carry_no_time_the_time_itself_is_kept(kind, locate):
    async with open_place(kind, locate(kind)[0]) as place:
        thread_id = new_thread()
        for at in range(3):
            checkpoint = empty_checkpoint()
            checkpoint["id"] = f"custom-{at}"
            checkpoint["ts"] = f"2020-01-0{at + 1}T00:00:00+00:00"
            config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
            put = place.saver.aput if place.is_async else place.saver.put
            given = put(config, checkpoint, {"source": "loop", "step": at, "parents": {}}, {})
            if place.is_async:
                await given
        assert (await place.prune(thread_id, 1)).removed_checkpoints == 2
        assert birth_of(place, thread_id) == "2020-01-01T00:00:00+00:00"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_marker_does_not_outlive_the_checkpoint_it_was_left_with(kind, locate):
    async with open_place(kind, locate(kind)[0]) as place:
        thread_id = new_thread()
        driver = Driver(place, thread_id, 1)
        await driver.perform(turn())
        await place.prune(thread_id, 1)
        assert birth_of(place, thread_id) is not None
        if kind == "memory":
            place.saver.storage[thread_id][""].clear()
        else:
            execute(place, "DELETE FROM checkpoints WHERE thread_id = ?", thread_id)
        assert birth_of(place, thread_id) is None


@pytest.mark.parametrize(
    ("id_", "timed"),
    [
        ("1ef4f797-8335-6428-8001-8a1503f9b875", True),
        ("0190a1b2-8335-7428-8001-8a1503f9b875", True),
        ("1EF4F797-8335-6428-8001-8A1503F9B875", True),
        ("1ef4f797-8335-4428-8001-8a1503f9b875", False),
        ("1ef4f797-8335-6428-8001-8a1503f9b875\n", False),
        ("custom", False),
        ("", False),
    ],
)
def test_which_ids_carry_their_time(id_, timed):
    assert has_time(id_) is timed
