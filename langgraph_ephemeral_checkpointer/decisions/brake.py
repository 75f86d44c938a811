"""The brake: a sweep that would take too large a share of all threads is refused. Pure.

It is for the first run after a wrong unit (days taken for hours) or a rule that matches
too much: then nearly everything is expired at once, which no ordinary day looks like.
"""

from __future__ import annotations

import math


def checked_percent(name: str, value: object) -> float:
    """Check a share.

    Args:
        name: What to call it in the error.
        value: A number of percent.

    Returns:
        The number as it is.

    Raises:
        TypeError: Not a number.
        ValueError: Not > 0, or > 100.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of percent, not {type(value).__name__}")
    if not math.isfinite(value) or not 0 < value <= 100:
        raise ValueError(f"{name} must be > 0 and <= 100, not {value!r}")
    return value


def refusal(expired: int, threads: int, percent: float) -> str | None:
    """Say why a sweep must not go on, or None if it may.

    Args:
        expired: How many threads the rules match, whether or not a limit would stop the
            sweep sooner: a limit makes a wrong rule slow, not right.
        threads: How many there are.
        percent: The greatest share that may go.
    """
    if expired * 100 <= percent * threads:
        return None
    share = 100 * expired / max(threads, 1)
    return (
        f"refused: the rules match {expired} of {threads} threads ({share:.0f}%), more than "
        f"max_delete_percent={percent:g} allows; nothing was deleted. If that is what you want, "
        "sweep once without the brake (--force)"
    )
