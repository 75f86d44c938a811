"""A policy that can be made means what it says; every other one is refused with its reason."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer import TTLPolicy
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, judge, wanted_by

SECONDS = ["idle_ttl_seconds", "hard_age_ttl_seconds", "interrupted_ttl_seconds"]
HUGE = [timedelta.max, 10**400, 1e308, sys.float_info.max, 2**1024]


def test_the_rules_come_in_the_promised_order():
    policy = TTLPolicy(1, 2, 3, 4)
    assert (policy.idle_ttl_seconds, policy.hard_age_ttl_seconds) == (1, 2)
    assert (policy.max_checkpoints_per_thread, policy.interrupted_ttl_seconds) == (3, 4)


def test_a_policy_is_a_frozen_value():
    assert TTLPolicy(60) == TTLPolicy(timedelta(minutes=1))
    assert hash(TTLPolicy(60)) == hash(TTLPolicy(60.0))
    with pytest.raises(AttributeError):
        TTLPolicy(60).idle_ttl_seconds = 5  # type: ignore[misc]


def test_a_policy_without_a_rule_names_the_rules():
    with pytest.raises(ValueError, match=r"at least one rule.*idle_ttl_seconds"):
        TTLPolicy()


@pytest.mark.parametrize("name", SECONDS)
class TestSeconds:
    @pytest.mark.parametrize("value", [1, 0.5, 5e-324, timedelta(microseconds=1), *HUGE])
    def test_any_positive_finite_size_is_legal(self, name, value):
        assert getattr(TTLPolicy(**{name: value}), name) > 0

    @pytest.mark.parametrize(
        "value",
        [0, -1, -0.0, -(10**400), timedelta(0), timedelta.min, math.nan, math.inf, -math.inf],
    )
    def test_not_positive_or_not_finite_is_a_value_error(self, name, value):
        with pytest.raises(ValueError, match=name):
            TTLPolicy(**{name: value})

    @pytest.mark.parametrize(
        "value", [True, False, "60", b"60", Decimal(60), Fraction(60), [60], 60 + 0j, object()]
    )
    def test_another_type_is_a_type_error(self, name, value):
        with pytest.raises(TypeError, match=name):
            TTLPolicy(**{name: value})


@pytest.mark.parametrize("value", [0, -5])
def test_a_count_below_one_is_a_value_error(value):
    with pytest.raises(ValueError, match="max_checkpoints_per_thread"):
        TTLPolicy(max_checkpoints_per_thread=value)


@pytest.mark.parametrize("value", [True, 1.0, "1", timedelta(1)])
def test_a_count_of_another_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="max_checkpoints_per_thread"):
        TTLPolicy(max_checkpoints_per_thread=value)


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("ttl", HUGE, ids=["timedelta", "int", "1e308", "max", "2**1024"])
@given(now=st.one_of(st.floats(0, 1e11), st.integers(0, 10**11)), at=st.floats(-1e10, 1e11))
def test_a_ttl_longer_than_history_never_expires_anything(name, ttl, now, at):
    policy = TTLPolicy(**{name: ttl})
    for interrupted in (False, True):
        facts = ThreadFacts("t", at, at, 1, 1, interrupted)
        verdict = judge(facts, policy, now)
        assert verdict.reason is None
        assert verdict.kept is None
        assert not wanted_by(policy, now).matches(facts)
