"""Thread ids are compared exactly, and ints and UUIDs mean their text."""

from __future__ import annotations

import uuid

import pytest

from langgraph_ephemeral_checkpointer import TTLPolicy
from tests.support import backends

DAY = 86400.0
NOW = 1_750_000_000.0
OLD, YOUNG = NOW - 10 * DAY, NOW - 60
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
ALIKE = [
    "a",
    "A",
    "a ",
    " a",
    "a%",
    "a_",
    "a:b",
    "a'b",
    'a"b',
    "a\\",
    "á",
    "a\u0301",
    "🐌",
    "ab",
    "%",
]
NUL = ["a\0", "a\0b", "\0"]  # Postgres stores no NUL


def _ids(backend):
    return ALIKE if backends.is_postgres(backend.kind) else ALIKE + NUL


async def test_ids_that_look_alike_are_threads_of_their_own(backend):
    """Each of them goes alone, whatever the others are called."""
    left = _ids(backend)
    for thread_id in left:
        await backend.plant(thread_id, OLD)
    for goes in list(left):

        async def veto(thread_id, _policy, _reason, goes=goes):
            return thread_id == goes

        result = await backend.sweep(
            POLICY, clock=lambda: NOW, on_before_delete=backend.callback(veto)
        )
        left.remove(goes)
        assert result.deleted_thread_ids == [goes]
        assert set(result.kept) == set(left)
        assert backend.storage.threads() == set(left)


@pytest.mark.parametrize(
    "thread_id", [5, uuid.UUID("8f14e45f-ceea-4e7a-9c1d-1b5e9f0c7b11")], ids=["int", "uuid"]
)
async def test_an_int_or_a_uuid_means_its_text(backend, thread_id):
    await backend.put(thread_id, OLD)
    told = []

    async def veto(*args):
        told.append(args[0])

    result = await backend.sweep(POLICY, clock=lambda: NOW, on_before_delete=backend.callback(veto))
    assert told == result.deleted_thread_ids == [str(thread_id)]
    assert result.active_thread_count == 0
    assert backend.count(str(thread_id))["checkpoints"] == 0


async def test_an_int_and_its_text_are_one_thread(backend):
    """Which is as young as the youngest checkpoint of either, and goes as one."""
    await backend.put(5, OLD)
    await backend.put("5", YOUNG)
    await backend.put(7, OLD)
    await backend.put("7", OLD - 1)
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == ["7"]
    assert result.active_thread_count == 1
    assert backend.count("7")["checkpoints"] == 0
    assert backend.count("5")["checkpoints"] == 2
