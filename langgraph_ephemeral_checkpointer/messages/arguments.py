"""What users pass in: ages, moments, messages and names of channels. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from langchain_core.messages import BaseMessage

M = TypeVar("M", bound=BaseMessage)


def check_age(age: object, name: str) -> timedelta:
    """A positive duration, from a timedelta or a number of seconds.

    Raises:
        TypeError: If it is neither.
        ValueError: If it is not positive and finite.
    """
    if isinstance(age, (int, float)) and not isinstance(age, bool):
        try:
            age = timedelta(seconds=age)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{name} must be a finite duration, not {age!r}") from error
    if not isinstance(age, timedelta):
        raise TypeError(f"{name} must be a timedelta or seconds, not {type(age).__name__}")
    if age <= timedelta(0):
        raise ValueError(f"{name} must be longer than nothing, not {age!r}")
    return age


def check_moment(moment: object, name: str) -> None:
    """Refuse what is no moment.

    Raises:
        TypeError: If it is no datetime; a date is none.
    """
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(moment).__name__}")


def check_messages(messages: Iterable[M]) -> list[M]:
    """A new list of the same messages.

    Raises:
        TypeError: If it is one message, or something in it is no message.
    """
    if isinstance(messages, BaseMessage):
        raise TypeError("messages must be a list of messages, not one message")
    found = list(messages)
    for message in found:
        if not isinstance(message, BaseMessage):
            raise TypeError(
                f"messages must be messages of langchain_core, not {type(message).__name__}; "
                "its convert_to_messages() makes them"
            )
    return found


def cutoff_at(seconds: float, age: timedelta) -> datetime:
    """The moment before which an exchange is older than an age.

    Args:
        seconds: The time now, in seconds since the epoch.
        age: The age; longer than recorded history means that nothing is that old.
    """
    try:
        return datetime.fromtimestamp(seconds, UTC) - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def check_channels(channels: Collection[str] | None) -> frozenset[str] | None:
    """The names of channels, or None for all.

    Raises:
        TypeError: If it is one name instead of a collection of names.
    """
    if isinstance(channels, (str, bytes)):
        raise TypeError(f"channels must be a collection of names, not the one name {channels!r}")
    return None if channels is None else frozenset(channels)
