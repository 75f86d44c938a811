"""Every thread that a rule matched is deleted, kept or deferred, and a dry run tells the same."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer import (
    KeepReason,
    StorageUnavailableError,
    TTLPolicy,
    TTLSweeper,
)
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, judge
from langgraph_ephemeral_checkpointer.strategies import Outcome, Page, Strategy
from tests.support import backends, foreign

DAY = 86400.0
NOW = 1_750_000_000.0
POLICY = TTLPolicy(idle_ttl_seconds=100, hard_age_ttl_seconds=500)

one_each = pytest.mark.parametrize("backend", backends.ONE_EACH, ids="-".join, indirect=True)


class History(Strategy):
    """Threads as facts, each with what becomes of it: a strategy as users may write them."""

    blocks = False

    def __init__(self, threads, page_size):
        super().__init__(foreign.ForeignSaver())
        self.threads, self.page_size = dict(threads), page_size
        self.deleted = []

    def scan(self, wanted, after, limit):
        ids = sorted(one for one in self.threads if after is None or one > after)
        page = ids[: self.page_size]
        facts = [self.threads[one][0] for one in page]
        return Page(
            [one for one in facts if wanted is None or wanted.matches(one)],
            len(page),
            page[-1] if len(ids) > len(page) else None,
        )

    def find_interrupted(self, thread_ids):
        return {one for one in thread_ids if self.threads[one][1] == "waits"}

    def delete_threads(self, thread_ids, recheck):
        outcomes = {}
        for one in thread_ids:
            facts, fate = self.threads[one]
            if fate == "raises":
                raise OSError("a bad row")
            if fate == "wakes":
                # By the idle rule only: by hard age it is as old as before.
                facts = ThreadFacts(one, NOW, facts.born_at, 1, 1, False)
                self.threads[one] = (facts, fate)
                outcomes[one] = Outcome(recheck(one, facts))
            elif fate == "gone":
                outcomes[one] = Outcome(KeepReason.GONE)
            elif fate == "busy":
                outcomes[one] = Outcome(KeepReason.BUSY)
            else:
                outcomes[one] = Outcome(recheck(one, facts))
        for one, outcome in outcomes.items():
            if outcome.kept is None or outcome.kept is KeepReason.GONE:
                del self.threads[one]
            if outcome.kept is None:
                self.deleted.append(one)
        return outcomes


FATES = st.sampled_from(
    ["goes", "goes", "goes", "waits", "vetoed", "veto fails", "raises", "wakes", "gone", "busy"]
)


@st.composite
def histories(draw):
    threads = {}
    for n in range(draw(st.integers(0, 12))):
        thread_id = f"t{n:02}"
        newest = draw(st.one_of(st.none(), st.integers(0, 300)))
        if newest is None:
            facts = ThreadFacts(thread_id, None, None, 1, 1)
        else:
            born = newest + draw(st.integers(0, 400))
            facts = ThreadFacts(thread_id, NOW - newest, NOW - born, 1, 1)
        threads[thread_id] = (facts, draw(FATES))
    return threads


@settings(max_examples=200)
@given(
    threads=histories(),
    limit=st.one_of(st.none(), st.integers(1, 6)),
    batch_size=st.integers(1, 5),
    page_size=st.integers(1, 15),
    colour=st.sampled_from(["sweep", "asweep"]),
    resolver=st.booleans(),
)
def test_deleted_kept_and_deferred_are_a_partition_of_what_matched(
    threads, limit, batch_size, page_size, colour, resolver
):
    strategy = History(threads, page_size)

    def veto(thread_id, _policy, _reason):
        fate = threads[thread_id][1]
        if fate == "veto fails":
            raise OSError("archive full")
        return fate != "vetoed"

    options = {"policy_resolver": lambda _: POLICY} if resolver else {}
    sweeper = TTLSweeper(
        strategy.checkpointer,
        POLICY,
        strategy=strategy,
        on_before_delete=veto,
        max_deletes_per_sweep=limit,
        batch_size=batch_size,
        clock=lambda: NOW,
        **options,
    )
    result = sweeper.sweep() if colour == "sweep" else asyncio.run(sweeper.asweep())

    matched = set()
    for thread_id, (facts, fate) in threads.items():
        waits = ThreadFacts(thread_id, facts.newest_at, facts.born_at, 1, 1, fate == "waits")
        verdict = judge(waits, POLICY, NOW)
        if verdict.reason or verdict.kept:
            matched.add(thread_id)
    deleted, kept = set(result.deleted_thread_ids), set(result.kept)
    assert len(result.deleted_thread_ids) == len(deleted)
    assert strategy.deleted == result.deleted_thread_ids
    assert not deleted & kept
    assert deleted | kept <= matched
    assert result.deferred_count == len(matched) - len(deleted) - len(kept)
    assert result.active_thread_count == len(strategy.threads)
    if limit is not None:
        assert len(deleted) <= limit
    if limit is None or len(deleted) < limit:
        assert result.deferred_count == 0
    for thread_id in deleted:
        assert threads[thread_id][1] in ("goes", "waits", "wakes")
    failed = {one for one, why in result.kept.items() if why is KeepReason.FAILED}
    assert failed == {one for one in kept if threads[one][1] == "raises"} - {
        one for one, why in result.kept.items() if why is KeepReason.AGE_UNKNOWN
    }
    assert failed <= set(result.errors)


async def _fill(backend):
    for n in range(12):
        await backend.plant(f"old{n:02}", NOW - 1000 + n)
    for n in range(3):
        await backend.plant(f"young{n}", NOW - n)
    await backend.put("unknown", "an id", ts="no time")
    waiting = await backend.plant("waiting", NOW - 400)
    await backend.put_writes("waiting", waiting, ("__interrupt__", "may I?"), task_id="asks")


@pytest.mark.parametrize("limit", [None, 5, 100])
async def test_a_dry_run_reports_what_the_live_run_then_does_and_writes_nothing(backend, limit):
    await _fill(backend)
    everything = [*(f"old{n:02}" for n in range(12)), "young0", "unknown", "waiting"]
    before = {thread_id: backend.dump(thread_id) for thread_id in everything}
    options = {"max_deletes_per_sweep": limit, "batch_size": 2, "clock": lambda: NOW}

    dry = await backend.sweep(POLICY, dry_run=True, **options)
    assert {thread_id: backend.dump(thread_id) for thread_id in everything} == before
    live = await backend.sweep(POLICY, **options)

    assert (dry.dry_run, live.dry_run) == (True, False)
    for name in ("deleted_thread_ids", "active_thread_count", "kept", "deferred_count", "errors"):
        assert getattr(dry, name) == getattr(live, name), name
    assert live.kept == {"unknown": KeepReason.AGE_UNKNOWN, "waiting": KeepReason.INTERRUPTED}
    assert live.deferred_count == (7 if limit == 5 else 0)
    assert len(live.deleted_thread_ids) == (5 if limit == 5 else 12)


async def test_a_limit_takes_the_longest_overdue_first_and_the_rest_next_time(backend):
    ages = {"e": 500, "a": 400, "d": 300, "b": 250, "c": 240}
    for thread_id, age in ages.items():
        await backend.plant(thread_id, NOW - age)
    sweeper = backend.sweeper(POLICY, clock=lambda: NOW, max_deletes_per_sweep=2)
    sweeps = [await backend.sweep(sweeper) for _ in range(4)]
    assert [one.deleted_thread_ids for one in sweeps] == [["e", "a"], ["d", "b"], ["c"], []]
    assert [one.deferred_count for one in sweeps] == [3, 1, 0, 0]
    assert [one.active_thread_count for one in sweeps] == [3, 1, 0, 0]


async def test_threads_that_are_kept_each_time_do_not_starve_the_next(backend):
    """Also when there are far more of them than the limit and the batch together."""
    for n in range(30):
        await backend.plant(f"t{n:02}", NOW - 1000 + n)
    vetoes = Counter()

    async def veto(thread_id, _policy, _reason):
        vetoes[thread_id] += 1
        return thread_id >= "t25"

    sweeper = backend.sweeper(
        POLICY,
        clock=lambda: NOW,
        max_deletes_per_sweep=3,
        batch_size=2,
        on_before_delete=backend.callback(veto),
    )
    first, second = await backend.sweep(sweeper), await backend.sweep(sweeper)
    assert first.deleted_thread_ids == ["t25", "t26", "t27"]
    assert second.deleted_thread_ids == ["t28", "t29"]
    assert (first.deferred_count, second.deferred_count) == (2, 0)
    assert len(first.kept) == len(second.kept) == 25
    assert set(vetoes.values()) == {1, 2}  # once a sweep


@one_each
async def test_pages_and_batches_of_any_size_see_each_thread_once(backend, monkeypatch):
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.paging.PAGE_SIZE", 3)
    for n in range(10):
        await backend.plant(f"t{n}", NOW - (1000 if n % 3 else 10))
    for batch_size in (1, 2, 50):
        result = await backend.sweep(POLICY, dry_run=True, batch_size=batch_size, clock=lambda: NOW)
        assert result.deleted_thread_ids == ["t1", "t2", "t4", "t5", "t7", "t8"]
        assert result.active_thread_count == 4


@one_each
async def test_an_empty_storage_is_an_empty_result(backend):
    result = await backend.sweep(POLICY)
    assert (result.deleted_thread_ids, result.active_thread_count) == ([], 0)
    assert (result.kept, result.errors, result.deferred_count) == ({}, {}, 0)


def test_a_thread_that_woke_up_is_not_tried_again_in_the_same_sweep_under_another_rule():
    """The limit makes the sweep walk again; what was settled in the first walk stays settled."""
    threads = {
        "a": (ThreadFacts("a", NOW - 150, NOW - 150, 1, 1), "busy"),
        "b": (ThreadFacts("b", NOW - 130, NOW - 505, 1, 1), "wakes"),
        "c": (ThreadFacts("c", NOW - 101, NOW - 101, 1, 1), "goes"),
        "d": (ThreadFacts("d", NOW - 100.5, NOW - 100.5, 1, 1), "goes"),
    }
    strategy = History(threads, 10)
    sweeper = TTLSweeper(
        strategy.checkpointer,
        POLICY,
        strategy=strategy,
        max_deletes_per_sweep=1,
        batch_size=1,
        clock=lambda: NOW,
    )
    result = sweeper.sweep()
    assert result.kept == {"a": KeepReason.BUSY, "b": KeepReason.WOKE_UP}
    assert result.deleted_thread_ids == ["c"]
    assert result.deferred_count == 1
    assert result.active_thread_count == 3


class Away(History):
    """A storage that goes away after some deletes."""

    def __init__(self, threads, page_size, good_deletes):
        super().__init__(threads, page_size)
        self.good_deletes = good_deletes

    def delete_threads(self, thread_ids, recheck):
        if not self.good_deletes:
            raise StorageUnavailableError("the cable is out")
        self.good_deletes -= 1
        return super().delete_threads(thread_ids, recheck)


@pytest.mark.parametrize("good_deletes", [0, 1, 2])
@pytest.mark.parametrize("limit", [None, 6])
def test_a_storage_that_goes_away_is_reported_and_nothing_is_lost_in_the_counts(
    good_deletes, limit
):
    threads = {
        f"t{n}": (ThreadFacts(f"t{n}", NOW - 200 + n, NOW - 200 + n, 1, 1), "goes")
        for n in range(8)
    }
    strategy = Away(threads, 100, good_deletes)
    results = []
    sweeper = TTLSweeper(
        strategy.checkpointer,
        POLICY,
        strategy=strategy,
        batch_size=2,
        max_deletes_per_sweep=limit,
        clock=lambda: NOW,
        on_sweep_complete=results.append,
    )
    result = sweeper.sweep()
    assert results == [result]
    assert "the cable is out" in result.errors[""]
    assert len(result.deleted_thread_ids) == 2 * good_deletes
    assert result.active_thread_count == 8 - 2 * good_deletes
    assert len(result.kept) == 2
    assert result.deferred_count == 8 - 2 * good_deletes - 2


def test_a_strategy_that_says_nothing_of_a_thread_has_that_thread_reported():
    class Silent(History):
        def delete_threads(self, thread_ids, recheck):
            return super().delete_threads([one for one in thread_ids if one != "t1"], recheck)

    threads = {
        f"t{n}": (ThreadFacts(f"t{n}", NOW - 200, NOW - 200, 1, 1), "goes") for n in range(3)
    }
    strategy = Silent(threads, 100)
    result = TTLSweeper(strategy.checkpointer, POLICY, strategy=strategy, clock=lambda: NOW).sweep()
    assert result.deleted_thread_ids == ["t0", "t2"]
    assert result.kept == {"t1": KeepReason.FAILED}
    assert "Silent" in result.errors["t1"]
