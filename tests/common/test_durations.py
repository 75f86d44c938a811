"""Durations are read as people type them, and nothing is guessed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer.common.durations import (
    doubt,
    duration_in_words,
    format_duration,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("1h30m", 5400),
        ("7d", 604800),
        ("4w", 2419200),
        ("1w2d3h4m5s", 604800 + 2 * 86400 + 3 * 3600 + 4 * 60 + 5),
        ("1.5h", 5400),
        ("0.5", 0.5),
        ("007", 7),
        ("9" * 400, int("9" * 400)),
    ],
)
def test_every_form_is_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "0",
            "0s",
            "0h0m",
            "-5",
            "+5",
            "1 h",
            " 5",
            "5\n",
            "h",
            "1x",
            "1mo",
            "1min",
            "1H",
        ),
        *("30m1h", "1h1h", "1h30", "inf", "nan", "1e9", "1_000", "٣", "1,5h", ".5", "5.", "infw"),
        *("9" * 5000, "9" * 400 + ".5"),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.9, "0s"),
        (59.99, "59s"),
        (60, "1m"),
        (3599, "59m59s"),
        (3600, "1h"),
        (3601, "1h"),
        (93784, "1d2h"),
        (86400 * 400, "400d"),
        (86401, "1d"),
        (-90, "-1m30s"),
    ],
)
def test_durations_are_written_in_at_most_two_units(seconds, text):
    assert format_duration(seconds) == text


@settings(derandomize=True, max_examples=200)
@given(st.integers(1, 10**10))
def test_what_is_written_can_be_read_and_is_rounded_down(seconds):
    read = parse_duration(format_duration(seconds))
    assert 0 <= seconds - read < max(1, seconds / 23)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1y", "365d"),
        ("2 years", "730d"),
        ("1mo", "30d"),
        ("6 months", "180d"),
        ("7 days", "7d"),
        ("7D", "7d"),
        ("7 d", "7d"),
        ("1 Week", "1w"),
        ("1H", "1h"),
        ("15 min", "15m"),
        ("90 sec", "90s"),
        ("1h 30m", "1h30m"),
        ("30m1h", "1h30m"),
        ("1 year, 2 days", "367d"),
        ("0.5y", "182.5d"),
    ],
)
def test_a_duration_in_other_words_is_refused_with_the_right_spelling(text, meant):
    with pytest.raises(ValueError, match="is no duration") as caught:
        parse_duration(text)
    assert str(caught.value).endswith(f": write {meant}")
    assert parse_duration(meant) > 0


@pytest.mark.parametrize("text", ["1M", "7 moons", "0 days", "-7 days", "1e9 days", "7 days ago"])
def test_what_is_not_clear_is_refused_without_a_guess(text):
    with pytest.raises(ValueError, match=r"is no duration: write seconds, or 90s, 15m, 2h"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("7", "7 means 7 seconds; did you mean 7d? Write 7s if not"),
        (7, "7 means 7 seconds; did you mean 7d? Write 7s if not"),
        ("1", "1 means 1 second; did you mean 1d? Write 1s if not"),
        (0.5, "0.5 means 0.5 seconds; did you mean 0.5d? Write 0.5s if not"),
        ("3599", "3599 means 3599 seconds; did you mean 3599d? Write 3599s if not"),
    ],
)
def test_a_short_duration_without_a_unit_is_in_doubt(value, said):
    assert doubt(value) == said


@pytest.mark.parametrize("value", ["3600", 3600, 86400.0, "7s", "7d", "1h30m", True, "", "x", None])
def test_any_other_is_not_in_doubt(value):
    assert doubt(value) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (7 * 86400, "7 days"),
        (86400, "1 day"),
        (3600, "1 hour"),
        (5400, "1 hour 30 minutes"),
        (3661.5, "1 hour 1 minute 1.5 seconds"),
        (0.5, "0.5 seconds"),
        (31536000, "365 days"),
        (0, "0 seconds"),
    ],
)
def test_a_duration_in_words_is_exact(seconds, words):
    assert duration_in_words(seconds) == words
