"""The kinds of values that an option has, and the declaration of an option by a field.

A dataclass declares each of its options once, by :func:`option`. What checks its values, reads
the rules file, builds a command line or writes help goes over these declarations.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from langgraph_ephemeral_checkpointer.common.arguments import (
    checked_count,
    checked_flag,
    checked_percent,
    positive_seconds,
)
from langgraph_ephemeral_checkpointer.common.conninfo import shown
from langgraph_ephemeral_checkpointer.common.durations import doubt, parse_duration

_COUNT = re.compile(r"[0-9]{1,18}")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values.

    Attributes:
        type: Of a value.
        metavar: What stands for a value in the help; None for a flag, which has none.
        check: Checks a value of Python's by the name to call it in the error, and gives it.
        from_line: Reads a word of a command line.
        from_file: Reads a value of a rules file.
        doubt: Says what a word or value may mean instead, or None.
    """

    type: type
    metavar: str | None
    check: Callable[[str, object], Any]
    from_line: Callable[[Any], Any]
    from_file: Callable[[object], Any]
    doubt: Callable[[object], str | None] = lambda _: None


def duration_in(value: object) -> float:
    """Read seconds, or text such as ``7d``."""
    if isinstance(value, str):
        return parse_duration(value)
    return positive_seconds("a duration", value)


def count_in(value: object) -> int:
    """Read a whole number >= 1 of a file."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"must be a whole number >= 1, not {value_shown(value)}")
    return value


def duration(raw: Any) -> float:
    """Read a duration of a line, in seconds."""
    return parse_duration(raw)


def count(raw: Any) -> int:
    """Read a whole number >= 1 of a line."""
    if not _COUNT.fullmatch(raw) or int(raw) < 1:
        raise ValueError(f"{shown(raw)} is no whole number >= 1")
    return int(raw)


def percent(raw: Any) -> float:
    """Read a share of a line."""
    if not _NUMBER.fullmatch(raw):
        raise ValueError(f"{shown(raw)} is no number of percent")
    return checked_percent("it", float(raw))


def flag_in(value: object) -> bool:
    """Read true or false of a file."""
    if not isinstance(value, bool):
        raise TypeError(f"must be true or false, not {value_shown(value)}")
    return value


def value_shown(value: object) -> str:
    """Give a value for a message, or not if it may be a misplaced connection string."""
    text = repr(value)
    return text if len(text) <= 30 and not re.search(r"[@=/]", text) else "this value"


DURATION = Kind(float, "DURATION", positive_seconds, duration, duration_in, doubt)
COUNT = Kind(int, "N", checked_count, count, count_in)
PERCENT = Kind(float, "PERCENT", checked_percent, percent, lambda it: checked_percent("it", it))
FLAG = Kind(bool, None, checked_flag, bool, flag_in)
KINDS = (DURATION, COUNT, PERCENT, FLAG)


@dataclass(frozen=True, slots=True)
class Option:
    """What is declared of an option.

    Attributes:
        name: The field of the dataclass.
        kind: Of its values.
        help: One sentence or more, for the help of a command.
        default: None where there is none; then None is a value of it too.
        key: The name in the rules file; the flag is the same with dashes.
        argument: The name as an argument of a function, where that is another one.
        words: How people say it, ``{}`` being the value: ``idle for {}``.
        again: Whether it is only for commands that sweep again and again.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    key: str = ""
    argument: str = ""
    words: str = ""
    again: bool = False

    def checked(self, value: object, name: str | None = None) -> Any:
        """Check a value of Python's and give it; ``name`` is what to call it in the error.

        Raises:
            TypeError: Of the wrong type.
            ValueError: Out of range.
        """
        if value is None and self.default is None:
            return None
        return self.kind.check(name or self.name, value)


def option(kind: Kind, help: str, *, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Declare an option as a field of a dataclass; the arguments are those of :class:`Option`."""
    return field(default=default, metadata={"option": {"kind": kind, "help": help, **more}})


def declared(where: type) -> tuple[Option, ...]:
    """Give the options that a dataclass declares, in order."""
    return _declared(where)


@cache
def _declared(where: type) -> tuple[Option, ...]:
    found = []
    for one in fields(where):
        if (told := one.metadata.get("option")) is not None:
            names = {"key": one.name, "argument": one.name, **told}
            found.append(Option(one.name, default=one.default, **names))
    return tuple(found)
