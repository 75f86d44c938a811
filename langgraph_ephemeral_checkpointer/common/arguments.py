"""Checks of arguments that many calls take."""

from __future__ import annotations

import math
from datetime import timedelta


def checked_count(name: str, value: object) -> int:
    """Check a number of things.

    Args:
        name: What to call it in the error.
        value: An int of at least 1; ``bool`` is no number here.

    Raises:
        TypeError: It is no int.
        ValueError: It is below 1.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, not {value}")
    return value


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


def checked_flag(name: str, value: object) -> bool:
    """Check a switch: what is merely false, like None, would switch a guarantee off.

    Args:
        name: What to call it in the error.
        value: True or False, nothing else.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def check_callable(name: str, value: object) -> None:
    """Refuse what cannot be called.

    Args:
        name: What to call it in the error.
        value: A function, or anything else that can be called.

    Raises:
        TypeError: It cannot.
    """
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")


def positive_seconds(name: str, value: object) -> float:
    """Check a duration.

    Args:
        name: What to call it in the error.
        value: Seconds as int or float, or a timedelta.

    Returns:
        The seconds; an int stays an int.

    Raises:
        TypeError: Neither a number nor a timedelta.
        ValueError: Not finite, or not > 0.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(
            f"{name} must be seconds (int or float) or a timedelta, not {type(value).__name__}"
        )
    if seconds <= 0 or (isinstance(seconds, float) and not math.isfinite(seconds)):
        raise ValueError(f"{name} must be finite and > 0, not {value!r}")
    return seconds
