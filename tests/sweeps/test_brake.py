"""max_delete_percent: a sweep that would take too much takes nothing."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer import PolicyOverride, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.decisions.brake import refusal
from langgraph_ephemeral_checkpointer.strategies import MemoryStrategy
from tests.support import backends

DAY = 86_400.0
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
SAVERS = backends.ONE_EACH


async def fill(backend, old: int, young: int) -> list[str]:
    """Save threads, the old ones with different ages; give the ids of the old ones."""
    now = time.time()
    for number in range(old):
        await backend.put(f"old-{number}", now - (10 + number) * DAY)
    for number in range(young):
        await backend.put(f"young-{number}", now - number)
    return [f"old-{number}" for number in range(old)]


def left(backend, ids) -> list[str]:
    return [one for one in ids if backend.storage.rows(one)["checkpoints"]]


@pytest.mark.parametrize("backend", SAVERS, indirect=True, ids="-".join)
async def test_a_sweep_beyond_the_share_deletes_nothing_and_says_so(backend):
    old = await fill(backend, 3, 1)
    told = []
    result = await backend.sweep(
        POLICY,
        max_delete_percent=50,
        on_before_delete=lambda *_: told.append("asked"),
        on_sweep_complete=told.append,
    )
    assert left(backend, old) == old
    assert told == [result]
    assert result.refused
    assert "3 of 4 threads (75%)" in result.errors[""]
    assert result.deleted_thread_ids == []
    assert (result.deferred_count, result.active_thread_count) == (3, 4)
    assert result.oldest_overdue_seconds == pytest.approx(11 * DAY, abs=60)


@pytest.mark.parametrize("backend", SAVERS, indirect=True, ids="-".join)
async def test_a_sweep_within_the_share_is_as_without_the_brake(backend):
    old = await fill(backend, 2, 2)
    dry = await backend.sweep(POLICY, max_delete_percent=50, dry_run=True)
    result = await backend.sweep(POLICY, max_delete_percent=50)
    assert sorted(result.deleted_thread_ids) == sorted(dry.deleted_thread_ids) == old
    assert not result.refused
    assert (result.errors, result.kept, result.deferred_count) == ({}, {}, 0)
    assert (result.active_thread_count, result.oldest_overdue_seconds) == (2, 0)


ONE = pytest.mark.parametrize("backend", [("memory", "sweep")], indirect=True, ids="-".join)


@ONE
async def test_a_dry_run_is_refused_like_the_live_one(backend):
    await fill(backend, 3, 1)
    dry = await backend.sweep(POLICY, max_delete_percent=50, dry_run=True)
    assert dry.refused
    assert dry.deleted_thread_ids == []


@ONE
async def test_a_limit_does_not_slip_a_wrong_rule_past_the_brake(backend):
    old = await fill(backend, 3, 1)
    result = await backend.sweep(POLICY, max_delete_percent=50, max_deletes_per_sweep=1)
    assert result.refused
    assert left(backend, old) == old


@ONE
async def test_the_limit_still_counts_behind_the_brake(backend):
    await fill(backend, 3, 3)
    result = await backend.sweep(POLICY, max_delete_percent=50, max_deletes_per_sweep=1)
    assert result.deleted_thread_ids == ["old-2"]
    assert result.deferred_count == 2
    assert result.oldest_overdue_seconds == pytest.approx(10 * DAY, abs=60)


@ONE
async def test_the_resolver_is_asked_once_a_thread(backend):
    await fill(backend, 3, 1)
    asked = []

    def resolver(thread_id):
        asked.append(thread_id)
        return PolicyOverride.EXEMPT if thread_id == "old-0" else PolicyOverride.USE_DEFAULT

    result = await backend.sweep(POLICY, policy_resolver=resolver, max_delete_percent=50)
    assert sorted(result.deleted_thread_ids) == ["old-1", "old-2"]
    assert sorted(asked) == ["old-0", "old-1", "old-2", "young-0"]


@ONE
async def test_a_resolver_that_answers_nonsense_is_reported_once(backend):
    await fill(backend, 1, 1)
    result = await backend.sweep(POLICY, policy_resolver=lambda _: None, max_delete_percent=50)
    assert sorted(result.kept) == sorted(result.errors) == ["old-0", "young-0"]


class Counting(MemoryStrategy):
    scans = 0

    def scan(self, *args):
        self.scans += 1
        return super().scan(*args)


@ONE
async def test_without_the_option_nothing_is_read_twice(backend):
    await fill(backend, 1, 1)
    for options, scans in (({}, 1), ({"max_delete_percent": 60}, 2)):
        strategy = Counting(backend.saver)
        TTLSweeper(backend.saver, POLICY, strategy=strategy, **options).sweep(dry_run=True)
        assert strategy.scans == scans


class Vanishing(MemoryStrategy):
    """Lose a thread between the walk that counts and the one that deletes."""

    scans = 0

    def scan(self, *args):
        self.scans += 1
        if self.scans == 2:
            self.checkpointer.delete_thread("ageless")
        return super().scan(*args)


@ONE
async def test_what_the_count_saw_and_the_sweep_did_not_is_not_reported(backend):
    await fill(backend, 1, 1)
    await backend.put("ageless", "no uuid", ts=None)
    strategy = Vanishing(backend.saver)
    result = await backend.sweep(POLICY, max_delete_percent=50, strategy=strategy)
    assert (result.kept, result.errors) == ({}, {})
    assert (result.deleted_thread_ids, result.active_thread_count) == (["old-0"], 1)


@ONE
@pytest.mark.parametrize(
    ("percent", "error"),
    [(0, ValueError), (-1, ValueError), (101, ValueError), (float("nan"), ValueError),
     (True, TypeError), ("50", TypeError)],
)  # fmt: skip
async def test_a_share_out_of_range_is_refused_by_name(backend, percent, error):
    with pytest.raises(error, match="max_delete_percent"):
        TTLSweeper(backend.saver, POLICY, max_delete_percent=percent)


@settings(derandomize=True, max_examples=100)
@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.01, 100))
def test_the_share_decides_and_nothing_else(expired, alive, percent):
    threads = expired + alive
    refused = refusal(expired, threads, percent) is not None
    assert refused == (expired * 100 > percent * threads)
    assert not (refused and percent == 100)
