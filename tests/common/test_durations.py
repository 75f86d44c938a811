"""Durations are read as people type them, and nothing is guessed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer.common.durations import format_duration, parse_duration


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
