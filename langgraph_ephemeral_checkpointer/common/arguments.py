"""Checks of arguments that many calls take."""

from __future__ import annotations


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
