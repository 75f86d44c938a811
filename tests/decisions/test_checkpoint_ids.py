"""Times come out of checkpoint ids exactly as LangGraph put them in, and out of nothing else."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base.id import uuid6

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import (
    first_id_at,
    is_uuid6,
    moment,
    time_of_id,
    time_of_saved,
    time_of_ts,
)
from tests.support.aging import uuid6_at, uuid7_at

MOMENTS = st.floats(min_value=-1e9, max_value=1e10)


def test_an_id_that_langgraph_makes_now_tells_now():
    assert time_of_id(str(uuid6(clock_seq=-2))) == pytest.approx(time.time(), abs=5)


@pytest.mark.parametrize(
    ("checkpoint_id", "seconds"),
    [
        ("1ef4f797-8335-6428-8001-8a1503f9b875", 1722456859.804164),
        ("1EF4F797-8335-6428-8001-8A1503F9B875", 1722456859.804164),  # upper case
        ("1ef4f797-8335-6428-0001-8a1503f9b875", 1722456859.804164),  # the JS client's variant
        ("1ef4f797-8335-6428-ffff-8a1503f9b875", 1722456859.804164),
        ("01910d8c-0a00-7000-8000-000000000000", 1722509167.104),  # version 7
    ],
)
def test_versions_6_and_7_tell_their_time_whatever_case_and_variant(checkpoint_id, seconds):
    assert time_of_id(checkpoint_id) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    "checkpoint_id",
    [
        "",
        "latest",
        "1ef4f797-8335-4428-8001-8a1503f9b875",  # version 4
        "1ef4f797-8335-1428-8001-8a1503f9b875",  # version 1
        "1ef4f79783356428800-18a1503f9b875",
        "{1ef4f797-8335-6428-8001-8a1503f9b875}",
        "1ef4f797-8335-6428-8001-8a1503f9b875\n",
        "zzzzzzzz-zzzz-6zzz-zzzz-zzzzzzzzzzzz",
        "١ef4f797-8335-6428-8001-8a1503f9b875",  # an Arabic digit  # noqa: RUF001
    ],
)
def test_anything_else_tells_no_time(checkpoint_id):
    assert time_of_id(checkpoint_id) is None


@given(MOMENTS)
def test_a_time_survives_the_way_through_an_id(seconds):
    assert time_of_id(uuid6_at(seconds)) == pytest.approx(seconds, abs=1e-5)
    assert time_of_id(uuid7_at(abs(seconds))) == pytest.approx(abs(seconds), abs=1e-3)


@given(cutoff=MOMENTS, ticks=st.integers(-40, 40))
def test_every_id_from_before_a_moment_sorts_below_its_first_id(cutoff, ticks):
    """To the tick of 100 ns: a scan that misses a thread which the rules take is a thread kept."""
    checkpoint_id = uuid6_at(cutoff + ticks / 1e7)
    if time_of_id(checkpoint_id) < cutoff:
        assert checkpoint_id < first_id_at(cutoff)


@given(cutoff=MOMENTS, later=st.floats(min_value=1e-5, max_value=1e9))
def test_no_later_id_sorts_below_the_first_id_of_a_moment(cutoff, later):
    assert not uuid6_at(cutoff + later) < first_id_at(cutoff)


@pytest.mark.parametrize("seconds", [-math.inf, -1e308, -(10**400), -1e11])
def test_a_time_before_all_ids_gives_the_smallest_id(seconds):
    assert first_id_at(seconds) == "00000000-0000-6000-0000-000000000000"


@pytest.mark.parametrize("seconds", [math.inf, 1e308, 10**400, 1e12])
def test_a_time_after_all_ids_gives_the_greatest_id(seconds):
    assert first_id_at(seconds) > uuid6_at(1e10)
    assert is_uuid6(first_id_at(seconds))


def test_only_lower_case_ids_sort_by_time():
    assert is_uuid6(uuid6_at(0))
    assert not is_uuid6(uuid6_at(0).upper())
    assert not is_uuid6(uuid7_at(0))


@pytest.mark.parametrize(
    ("ts", "seconds"),
    [
        ("2024-08-01T08:45:07.158352+00:00", 1722501907.158352),
        ("2024-08-01T08:45:07.158352Z", 1722501907.158352),
        ("2024-08-01T10:45:07.158352+02:00", 1722501907.158352),
        ("2024-08-01T08:45:07.158352", 1722501907.158352),  # without a zone it is UTC
        ("2024-08-01", 1722470400.0),
        ("1960-01-01T00:00:00Z", -315619200.0),
        ("0001-01-01T00:00:00+23:59", -62135683140.0),
    ],
)
def test_iso_times_are_read(ts, seconds):
    assert time_of_ts(ts) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    "ts", [None, 5, 1.5, True, "", "soon", "2024-13-01", "1722501907", [], {}, b"2024-08-01"]
)
def test_any_other_ts_tells_no_time(ts):
    assert time_of_ts(ts) is None


def test_a_checkpoint_was_saved_when_its_id_says_the_first_second_of_all_included():
    assert time_of_saved(first_id_at(0), "2026-01-01T00:00:00+00:00") == 0


def test_a_checkpoint_whose_id_tells_no_time_was_saved_when_its_ts_says():
    assert time_of_saved("one", "1970-01-01T00:00:07+00:00") == 7
    assert time_of_saved("one", None) is None


def test_a_time_that_no_datetime_can_hold_is_no_moment():
    assert moment(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert moment(None) is None
    beyond = time_of_id("ffffffff-ffff-7000-8000-000000000000")  # a UUID 7 of the year 10889
    assert beyond is not None
    assert moment(beyond) is None
