"""Who is expired: each rule, each boundary, and how the rules go together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from langgraph_ephemeral_checkpointer.decisions.expiry import (
    ThreadFacts,
    judge,
    still_expired,
    verdicts,
    wanted_by,
)

NOW = 1_000_000.0


def facts(*, newest=0.0, born=None, interrupted=False, unknown=False):
    born = newest if born is None else born
    if unknown:
        return ThreadFacts("t", None, None, 3, 2, interrupted)
    return ThreadFacts("t", NOW - newest, NOW - born, 3, 2, interrupted)


@pytest.mark.parametrize(
    ("policy", "thread", "reason"),
    [
        (TTLPolicy(100), facts(newest=100), None),  # not longer than that
        (TTLPolicy(100), facts(newest=100.001), "idle_ttl"),
        (TTLPolicy(100), facts(newest=99, born=10_000), None),
        (TTLPolicy(100), facts(newest=-500), None),  # from the future
        (TTLPolicy(100), facts(newest=101, interrupted=True), None),
        (TTLPolicy(None, 100), facts(newest=0, born=100), None),
        (TTLPolicy(None, 100), facts(newest=0, born=100.001), "hard_age_ttl"),
        (TTLPolicy(None, 100), facts(newest=0, born=101, interrupted=True), "hard_age_ttl"),
        (TTLPolicy(interrupted_ttl_seconds=100), facts(newest=101), None),
        (TTLPolicy(interrupted_ttl_seconds=100), facts(newest=100, interrupted=True), None),
        (
            TTLPolicy(interrupted_ttl_seconds=100),
            facts(newest=101, interrupted=True),
            "interrupted_ttl",
        ),
        (
            TTLPolicy(10, interrupted_ttl_seconds=100),
            facts(newest=50, interrupted=True),
            None,
        ),
        # Of two that match, the one that matched first.
        (TTLPolicy(100, 500), facts(newest=200, born=590), "idle_ttl"),
        (TTLPolicy(100, 500), facts(newest=200, born=650), "hard_age_ttl"),
        (TTLPolicy(100, 500), facts(newest=200, born=510), "idle_ttl"),
        (TTLPolicy(max_checkpoints_per_thread=1), facts(newest=10**9), None),
    ],
)
def test_each_rule_at_its_boundary(policy, thread, reason):
    assert judge(thread, policy, NOW).reason == reason


def test_an_interrupted_thread_that_would_be_idle_is_reported_as_interrupted():
    thread = facts(newest=101, interrupted=True)
    assert judge(thread, TTLPolicy(100), NOW).kept is KeepReason.INTERRUPTED
    young = facts(newest=99, interrupted=True)
    assert judge(young, TTLPolicy(100), NOW).kept is None


@pytest.mark.parametrize("policy", [TTLPolicy(1), TTLPolicy(None, 1)])
def test_an_unknown_age_is_kept_and_reported(policy):
    verdict = judge(facts(unknown=True), policy, NOW)
    assert (verdict.reason, verdict.kept) == (None, KeepReason.AGE_UNKNOWN)


def test_an_unknown_age_is_nothing_to_a_policy_that_asks_no_age():
    verdict = judge(facts(unknown=True), TTLPolicy(max_checkpoints_per_thread=1), NOW)
    assert (verdict.reason, verdict.kept) == (None, None)


class TestAtTheDelete:
    """The second look, with the facts that the deleting transaction reads."""

    def test_a_thread_that_is_still_expired_goes(self):
        assert still_expired(facts(newest=101), TTLPolicy(100), "idle_ttl", NOW) is None

    def test_a_thread_that_is_gone_is_gone(self):
        assert still_expired(None, TTLPolicy(100), "idle_ttl", NOW) is KeepReason.GONE

    def test_a_thread_with_a_new_checkpoint_woke_up(self):
        thread = facts(newest=0, born=101)
        assert still_expired(thread, TTLPolicy(100), "idle_ttl", NOW) is KeepReason.WOKE_UP

    def test_a_thread_that_now_waits_is_interrupted(self):
        thread = facts(newest=101, interrupted=True)
        assert still_expired(thread, TTLPolicy(100), "idle_ttl", NOW) is KeepReason.INTERRUPTED

    def test_a_thread_whose_age_became_unknown_is_kept(self):
        thread = facts(unknown=True)
        assert still_expired(thread, TTLPolicy(100), "idle_ttl", NOW) is KeepReason.AGE_UNKNOWN

    def test_another_rule_than_the_callbacks_were_told_waits_for_the_next_sweep(self):
        thread = facts(newest=0, born=900)
        policy = TTLPolicy(100, 500)
        assert judge(thread, policy, NOW).reason == "hard_age_ttl"
        assert still_expired(thread, policy, "idle_ttl", NOW) is KeepReason.WOKE_UP


SECONDS = st.one_of(st.none(), st.integers(1, 1000), st.floats(0.001, 1000))
AGES = st.one_of(st.none(), st.floats(-500, 1500), st.integers(-500, 1500))


@st.composite
def policies(draw):
    idle, hard, waiting = draw(SECONDS), draw(SECONDS), draw(SECONDS)
    count = draw(st.one_of(st.none(), st.integers(1, 5)))
    if idle is hard is waiting is count is None:
        idle = 10
    return TTLPolicy(idle, hard, count, waiting)


@st.composite
def threads(draw):
    newest, older = draw(AGES), draw(st.floats(0, 1000))
    roots = draw(st.integers(0, 7))
    interrupted = draw(st.booleans())
    if newest is None:
        return ThreadFacts("t", None, None, roots + 1, roots, interrupted)
    return ThreadFacts("t", NOW - newest, NOW - newest - older, roots + 1, roots, interrupted)


@given(thread=threads(), policy=policies())
def test_a_verdict_has_at_most_one_of_deleted_and_kept(thread, policy):
    verdict = judge(thread, policy, NOW)
    assert verdict.reason is None or verdict.kept is None
    assert (verdict.reason is None) or verdict.overdue_since < NOW


@given(thread=threads(), policy=policies())
def test_a_scan_reports_every_thread_that_a_verdict_speaks_of(thread, policy):
    verdict = judge(thread, policy, NOW)
    if verdict.reason is not None or verdict.kept is not None:
        assert wanted_by(policy, NOW).matches(thread)


@given(thread=threads(), policy=policies())
def test_both_verdicts_are_those_of_a_thread_that_was_looked_at(thread, policy):
    unseen = replace(thread, interrupted=None)
    assert verdicts(unseen, policy, NOW) == tuple(
        judge(replace(thread, interrupted=is_), policy, NOW) for is_ in (False, True)
    )


@given(thread=threads(), policy=policies(), later=st.floats(0, 1000))
def test_what_is_expired_stays_expired_as_time_goes_by(thread, policy, later):
    if judge(thread, policy, NOW).reason is not None:
        assert judge(thread, policy, NOW + later).reason is not None


@given(thread=threads(), policy=policies())
def test_the_idle_rule_never_takes_a_thread_that_waits(thread, policy):
    assert judge(replace(thread, interrupted=True), policy, NOW).reason != "idle_ttl"


@given(thread=threads(), policy=policies())
def test_what_nobody_touched_is_still_expired_at_its_delete(thread, policy):
    reason = judge(thread, policy, NOW).reason
    if reason is not None:
        assert still_expired(thread, policy, reason, NOW) is None
