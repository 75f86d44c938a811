"""How old a thread is, on every saver, whatever its checkpoint ids look like."""

from __future__ import annotations

import time

import pytest

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from tests.support.aging import uuid6_at, uuid7_at

DAY = 86400.0
NOW = 1_750_000_000.0
OLD, YOUNG = NOW - 10 * DAY, NOW - 60
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
OLD_TS, YOUNG_TS = "2025-06-05T15:06:40+00:00", "2025-06-15T15:05:40+00:00"


def js(checkpoint_id: str) -> str:
    """With the variant bits of the JavaScript client."""
    return checkpoint_id[:19] + "0" + checkpoint_id[20:]


AGES = {
    "v6 old": ([(uuid6_at(OLD), None)], "goes"),
    "v6 young": ([(uuid6_at(YOUNG), None)], "stays"),
    "v6 old and young": ([(uuid6_at(OLD), None), (uuid6_at(YOUNG), None)], "stays"),
    "v6 in the future": ([(uuid6_at(OLD), None), (uuid6_at(NOW + DAY), None)], "stays"),
    "the id counts, not ts": ([(uuid6_at(YOUNG), OLD_TS)], "stays"),
    "the id counts also when old": ([(uuid6_at(OLD), YOUNG_TS)], "goes"),
    "js variant old": ([(js(uuid6_at(OLD)), None)], "goes"),
    "js variant young": ([(js(uuid6_at(OLD)), None), (js(uuid6_at(YOUNG)), None)], "stays"),
    "upper case old": ([(uuid6_at(OLD).upper(), None)], "goes"),
    # In text order an upper-case id may lie between two lower-case ones that are older.
    "upper case young in between": (
        [
            ("0fa0f2ea-0000-6000-8000-000000000000", None),
            (uuid6_at(YOUNG).upper(), None),
            ("1eaaaaaa-aaaa-6aaa-8000-000000000000", None),
        ],
        "stays",
    ),
    "v7 old": ([(uuid7_at(OLD), None)], "goes"),
    "v7 young": ([(uuid7_at(YOUNG), None)], "stays"),
    "v7 old, v6 young": ([(uuid7_at(OLD), None), (uuid6_at(YOUNG), None)], "stays"),
    "v6 old, v7 young": ([(uuid6_at(OLD), None), (uuid7_at(YOUNG), None)], "stays"),
    "v6 and v7 old": ([(uuid6_at(OLD), None), (uuid7_at(OLD), None)], "goes"),
    "any string, old ts": ([("step-1", OLD_TS)], "goes"),
    "any string, young ts": ([("step-1", OLD_TS), ("step-2", YOUNG_TS)], "stays"),
    "ts against text order": ([("step-1", YOUNG_TS), ("step-2", OLD_TS)], "stays"),
    "any string among v6, young": ([(uuid6_at(OLD), None), ("step-1", YOUNG_TS)], "stays"),
    "any string among v6, old": ([(uuid6_at(OLD), None), ("step-1", OLD_TS)], "goes"),
    "version 4": ([("5d2ee6b5-2b0c-4a5a-9a4e-b8d41f1d3b4b", OLD_TS)], "goes"),
    "the form of a v6, but no hex": ([("zzzzzzzz-zzzz-6zzz-zzzz-zzzzzzzzzzzz", OLD_TS)], "goes"),
    "the form of a v7, but no hex": ([("zzzzzzzz-zzzz-7zzz-zzzz-zzzzzzzzzzzz", OLD_TS)], "goes"),
    "no hex, no time": ([("zzzzzzzz-zzzz-6zzz-zzzz-zzzzzzzzzzzz", "soon")], "unknown"),
    "emoji": ([("🐌", OLD_TS)], "goes"),
    "garbage ts": ([("step-1", "soon")], "unknown"),
    "ts of another type": ([("step-1", 5)], "unknown"),
    "no ts": ([("step-1", None)], "unknown"),
    "one of them unknown": ([(uuid6_at(OLD), None), ("step-1", "soon")], "unknown"),
}


@pytest.mark.parametrize("form", ["version 4", "the form of a v6, but no hex"])
async def test_the_only_odd_id_of_all_is_noticed(backend, form):
    for thread_id, checkpoints in (("usual", AGES["v6 young"][0]), ("odd", AGES[form][0])):
        for checkpoint_id, ts in checkpoints:
            await backend.put(thread_id, checkpoint_id, ts=ts)

    result = await backend.sweep(POLICY, clock=lambda: NOW)

    assert result.deleted_thread_ids == ["odd"]


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry", "live"])
async def test_the_age_of_every_form_of_id(backend, dry_run):
    expected = {"goes": set(), "stays": set(), "unknown": set()}
    for thread_id, (checkpoints, outcome) in AGES.items():
        expected[outcome].add(thread_id)
        for checkpoint_id, ts in checkpoints:
            await backend.put(thread_id, checkpoint_id, ts=ts)

    result = await backend.sweep(POLICY, clock=lambda: NOW, dry_run=dry_run)

    assert set(result.deleted_thread_ids) == expected["goes"]
    assert result.kept == dict.fromkeys(expected["unknown"], KeepReason.AGE_UNKNOWN)
    assert result.active_thread_count == len(AGES) - len(expected["goes"])
    assert {one for one in AGES if not backend.has(one)} == (set() if dry_run else expected["goes"])


async def test_a_checkpoint_in_any_namespace_keeps_a_thread_from_being_idle(backend):
    for thread_id, namespace in (("root", ""), ("persistent", "node"), ("call", "node:1|a:2")):
        await backend.plant(thread_id, OLD)
        await backend.put(thread_id, YOUNG, ns=namespace)
    await backend.plant("idle", OLD)
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == ["idle"]


async def test_hard_age_counts_from_the_first_checkpoint_of_any_namespace(backend):
    await backend.put("root", OLD)
    await backend.put("root", YOUNG)
    await backend.put("subgraph", OLD, ns="node")
    await backend.put("subgraph", YOUNG)
    await backend.put("young", YOUNG)
    result = await backend.sweep(TTLPolicy(hard_age_ttl_seconds=DAY), clock=lambda: NOW)
    assert sorted(result.deleted_thread_ids) == ["root", "subgraph"]


async def test_the_boundary_is_the_same_everywhere(backend):
    """A thread exactly as old as the limit stays, one that is a millisecond older goes."""
    for name, at in (("at", NOW - DAY), ("older", NOW - DAY - 0.001), ("young", NOW - DAY + 0.001)):
        await backend.put(name, at)
    for policy in (POLICY, TTLPolicy(hard_age_ttl_seconds=DAY)):
        result = await backend.sweep(policy, clock=lambda: NOW, dry_run=True)
        assert result.deleted_thread_ids == ["older"]


@pytest.mark.parametrize("clock", [-1e9, 0, 1e6], ids=str)
async def test_a_clock_that_is_behind_deletes_nothing(backend, clock):
    await backend.plant("thread", OLD)
    result = await backend.sweep(TTLPolicy(1, 1), clock=lambda: clock)
    assert (result.deleted_thread_ids, result.active_thread_count) == ([], 1)


async def test_the_default_clock_is_now(backend):
    await backend.plant("young", time.time() - 60)
    await backend.plant("old", time.time() - 2 * DAY)
    assert (await backend.sweep(POLICY)).deleted_thread_ids == ["old"]


@pytest.mark.parametrize("ttl", [10**400, 1e308], ids=["int", "float"])
async def test_a_huge_ttl_never_expires_anything(backend, ttl):
    await backend.plant("old", OLD)
    policy = TTLPolicy(idle_ttl_seconds=ttl, hard_age_ttl_seconds=ttl, interrupted_ttl_seconds=ttl)
    result = await backend.sweep(policy, clock=lambda: NOW)
    assert (result.deleted_thread_ids, result.kept) == ([], {})
