"""Durations as people type them."""

from __future__ import annotations

import math
import re

from langgraph_ephemeral_checkpointer.common.conninfo import shown

_UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PARTS = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in _UNITS))
_SECONDS = re.compile(_NUMBER)
_FORMS = "write seconds, or 90s, 15m, 2h, 1h30m, 7d, 4w"


def parse_duration(text: str) -> float:
    """Read a duration.

    Args:
        text: Seconds, or numbers with the units w, d, h, m (minutes), s, the greater unit
            first, each at most once: ``90``, ``1h30m``, ``4w``, ``1.5h``.

    Returns:
        Seconds, > 0; an int where they are whole.

    Raises:
        ValueError: Anything else; the message tells the forms.
    """
    if _SECONDS.fullmatch(text):
        numbers = {"s": text}
    else:
        match = _PARTS.fullmatch(text)
        found = zip(_UNITS, match.groups(), strict=True) if match else ()
        numbers = {unit: number for unit, number in found if number}
    if not numbers:
        raise ValueError(f"{shown(text)} is no duration: {_FORMS}")
    try:
        seconds = sum(_number(number) * _UNITS[unit] for unit, number in numbers.items())
    except (OverflowError, ValueError):  # the latter: more digits than int() reads
        seconds = math.inf
    if seconds == math.inf:
        raise ValueError("the duration is too long to count its seconds")
    if seconds <= 0:
        raise ValueError(f"a duration must be greater than 0, not {shown(text)}")
    return int(seconds) if seconds == int(seconds) else seconds


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def format_duration(seconds: float) -> str:
    """Write a duration for people, in at most two units, rounded down.

    Args:
        seconds: Any finite number; a negative one is a time in the future.
    """
    sign, rest = ("-", -seconds) if seconds < 0 else ("", seconds)
    whole = int(rest)
    parts: list[tuple[int, str]] = []
    for unit in ("d", "h", "m", "s"):
        count, whole = divmod(whole, _UNITS[unit])
        if count or parts:
            parts.append((count, unit))
    text = "".join(f"{count}{unit}" for count, unit in parts[:2] if count)
    return f"{sign}{text}" if text else "0s"
