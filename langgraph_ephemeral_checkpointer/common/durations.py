"""Durations as people type them."""

from __future__ import annotations

import math
import re

from langgraph_ephemeral_checkpointer.common.conninfo import shown

_UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_WORDS = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PARTS = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in _UNITS))
_SECONDS = re.compile(_NUMBER)
_FORMS = "write seconds, or 90s, 15m, 2h, 1h30m, 7d, 4w"

# Units as people write them, and the ones that are meant. A capital M is a minute to some and
# a month to others, so it is left out.
_SPELLINGS = {
    "y yr yrs year years": (365, "d"),
    "mo mos mon month months": (30, "d"),
    "w wk wks week weeks": (1, "w"),
    "d day days": (1, "d"),
    "h hr hrs hour hours": (1, "h"),
    "m min mins minute minutes": (1, "m"),
    "s sec secs second seconds": (1, "s"),
}
_MEANT = {word: meant for words, meant in _SPELLINGS.items() for word in words.split()}
_LOOSE = re.compile(rf"({_NUMBER})\s*([A-Za-z]+)[\s,]*")
_LONGEST_TYPED = 40

BARE_BELOW = 3600
"""A number without a unit below this is doubtful: 7 may mean seven days."""


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
        meant = _meant(text)
        remedy = _FORMS if meant is None else f"write {meant}"
        raise ValueError(f"{shown(text)} is no duration: {remedy}")
    try:
        seconds = sum(_number(number) * _UNITS[unit] for unit, number in numbers.items())
    except (OverflowError, ValueError):  # the latter: more digits than int() reads
        seconds = math.inf
    if seconds == math.inf:
        raise ValueError("the duration is too long to count its seconds")
    if seconds <= 0:
        raise ValueError(f"a duration must be greater than 0, not {shown(text)}")
    return int(seconds) if seconds == int(seconds) else seconds


def _meant(text: str) -> str | None:
    """Give the right spelling of a duration in other words; None where it is not clear."""
    if len(text) > _LONGEST_TYPED or "".join(f[0] for f in _LOOSE.finditer(text)) != text:
        return None
    counts: dict[str, float] = {}
    for number, word in _LOOSE.findall(text):
        factor, unit = _MEANT.get("" if word == "M" else word.lower(), (0, ""))
        if not factor:
            return None
        counts[unit] = counts.get(unit, 0) + factor * _number(number)
    meant = "".join(f"{counts[unit]:.15g}{unit}" for unit in _UNITS if counts.get(unit))
    return meant if meant and _PARTS.fullmatch(meant) else None


def doubt(value: object) -> str | None:
    """Say what a duration without a unit may mean instead; None where it is not in doubt.

    Args:
        value: As typed on a line, or a number or text of a rules file.
    """
    typed = value if isinstance(value, str) else "" if isinstance(value, bool) else f"{value}"
    if not _SECONDS.fullmatch(typed) or _number(typed) >= BARE_BELOW:
        return None
    seconds = duration_in_words(_number(typed), units="s")
    return f"{typed} means {seconds}; did you mean {typed}d? Write {typed}s if not"


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


def duration_in_words(seconds: float, *, units: str = "dhms") -> str:
    """Write a duration in words, exactly: ``7 days``, ``1 hour 30 minutes``.

    Args:
        seconds: Finite and not negative.
        units: The units that may be used, from the greatest down; the last takes the rest.
    """
    parts: list[tuple[float, str]] = []
    rest = seconds
    for unit in units:
        count = rest / _UNITS[unit] if unit == units[-1] else rest // _UNITS[unit]
        rest -= count * _UNITS[unit]
        parts.append((count, _WORDS[unit]))
    told = [f"{n:.15g} {word}{'' if n == 1 else 's'}" for n, word in parts if n]
    return " ".join(told) or f"0 {_WORDS[units[-1]]}s"
