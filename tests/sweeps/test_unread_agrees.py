"""Deleting unread does what reading first does, and what a dry run says, on odd threads too."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at
from tests.support.aging import uuid6_at, uuid7_at

DAY = 86400.0
NOW = 1_750_000_000.0
BEFORE = NOW - DAY
TICK = Fraction(1, 10_000_000)
TS = ["2020-01-01T00:00:00+00:00", "2025-06-15T15:06:00+00:00", "no time"]  # old, young, unknown

POLICIES = [
    TTLPolicy(idle_ttl_seconds=DAY),
    TTLPolicy(idle_ttl_seconds=DAY, interrupted_ttl_seconds=DAY / 2),
    TTLPolicy(idle_ttl_seconds=DAY, interrupted_ttl_seconds=20 * DAY),
    TTLPolicy(idle_ttl_seconds=10**12),
]


def some_id(pick):
    old, young = NOW - pick.uniform(1, 30) * DAY - 1, NOW - pick.uniform(0, 1) * DAY
    return pick.choice(
        [
            *[lambda: uuid6_at(old)] * 12,
            *[lambda: uuid6_at(young)] * 2,
            lambda: first_id_at(Fraction(BEFORE)),
            lambda: first_id_at(Fraction(BEFORE) - TICK),
            lambda: first_id_at(Fraction(BEFORE) + TICK),
            lambda: uuid6_at(old).upper(),
            lambda: uuid6_at(young).upper(),
            lambda: uuid7_at(old),
            lambda: uuid7_at(young),
            lambda: uuid6_at(old)[:14] + pick.choice("1458") + uuid6_at(old)[15:],
            lambda: uuid6_at(old)[: pick.randrange(1, 36)],
            lambda: uuid6_at(old) + "0",
            lambda: uuid6_at(old).replace("-", ""),
            lambda: pick.choice(["zzz", "0", "é", "~", "FFFFFFFF", "-"]),
            lambda: first_id_at(pick.choice([-(10**12), 10**12])),
        ]
    )()


async def plant(backend, pick, thread_id):
    heads = []
    for _ in range(pick.choice([1, 1, 2, 4])):
        ns = pick.choice(["", "", "", "node", "node:8f14e45f|inner"])
        checkpoint_id = await backend.put(thread_id, some_id(pick), ns=ns, ts=pick.choice(TS))
        heads.append((ns, checkpoint_id))
    for ns, checkpoint_id in heads:
        if pick.random() < 0.3:
            for channel in pick.choice(
                [
                    ["__interrupt__"],
                    ["__interrupt__", "__resume__"],
                    ["__interrupt__", "messages"],
                    ["messages", "__interrupt__"],
                    ["messages"],
                    ["__error__"],
                ]
            ):
                await backend.put_writes(thread_id, checkpoint_id, (channel, "x"), ns=ns)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "backend", [("sqlite", "sweep"), ("pg-connection", "sweep")], ids="-".join, indirect=True
)
async def test_all_ways_agree(backend, seed):
    pick = random.Random(seed)
    policy = POLICIES[seed % len(POLICIES)]
    ids = [f"t{number}" for number in range(40)]
    for thread_id in ids:
        await plant(backend, pick, thread_id)
    options = {"clock": lambda: NOW, "batch_size": pick.choice([1, 3, 500])}
    before = {thread_id: backend.dump(thread_id) for thread_id in ids}
    dry = await backend.sweep(policy, dry_run=True, **options)
    veto = await backend.sweep(policy, on_before_delete=lambda *_: False, **options)
    matched = {one for one, why in veto.kept.items() if why is KeepReason.VETOED}
    told = []
    live = await backend.sweep(policy, on_after_delete=lambda *args: told.append(args), **options)
    assert matched == set(live.deleted_thread_ids)
    assert live.deleted_thread_ids == dry.deleted_thread_ids
    assert sorted(told) == sorted(live.reasons.items())
    assert live.reasons == dry.reasons
    assert (
        live.kept
        == dry.kept
        == {one: why for one, why in veto.kept.items() if why is not KeepReason.VETOED}
    )
    assert live.active_thread_count == dry.active_thread_count == 40 - len(matched)
    assert (live.deferred_count, live.errors) == (0, {})
    left = set(ids) - matched
    assert backend.storage.threads() == left
    assert {one: backend.dump(one) for one in left} == {one: before[one] for one in left}
