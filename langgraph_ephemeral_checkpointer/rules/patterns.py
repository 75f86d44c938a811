"""Regular expressions whose time is bounded, whatever text they are tried on. Pure.

Python's ``re`` tries one way after the other. A repetition that can split the same text in several
ways takes exponential time; several such in a row take a power of the length of the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]  # no public one since sre_parse went
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_MOST_STEPS = 100_000_000
"""What one match may take at worst: some seconds."""
_MOST_REPETITIONS = 4
_MOST_CHOICES = 10
_FEW_TIMES = 3

_REMEDY = "write it without, as [a-z-]+, or as one that never goes back: a++ or (?>...)"


def bounded(text: str) -> re.Pattern[str]:
    """Compile a regular expression.

    Raises:
        ValueError: It is none, or may take very long on some text.
    """
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    _degree(text)
    return pattern


def is_quick(pattern: re.Pattern[str], text: str) -> bool:
    """Say whether the pattern is surely done soon with a text of that length."""
    degree = _degree(pattern.pattern)
    steps: float = len(text) ** degree / math.factorial(degree)
    return steps <= _MOST_STEPS


@lru_cache(maxsize=1000)
def _degree(text: str) -> int:
    """Give the power of the length of a text to which the time grows at worst, at least 1.

    Raises:
        ValueError: It is too high, or there is none.
    """
    tree = _parser.parse(text)
    measured = _Measured()
    measured.read(tree)
    anchored = (
        bool(tree)
        and tree[0][0] is op.AT
        and tree[0][1]
        in (
            op.AT_BEGINNING,
            op.AT_BEGINNING_STRING,
        )
    )
    degree = max(measured.repetitions + (0 if anchored else 1), measured.apart, 1)
    if degree > _MOST_REPETITIONS:
        raise ValueError(
            f"may take very long on some thread ids: it has {measured.repetitions} repetitions "
            "without a limit; anchor it with ^, and use fewer"
        )
    if measured.choices > _MOST_CHOICES:
        raise ValueError(
            f"may take very long on some thread ids: it has {measured.choices} parts that may be "
            f"one thing or another; {_MOST_CHOICES} are the limit"
        )
    return degree


class _Measured:
    """What makes an expression slow.

    Attributes:
        repetitions: Without a limit, one after the other.
        choices: Parts that may be left out, or may be one of several.
        apart: The most repetitions in a part that is tried once by itself.
    """

    def __init__(self) -> None:
        self.repetitions = self.choices = self.apart = 0

    def read(self, items: Iterable[Any]) -> None:
        for kind, value in items:
            if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
                self._repeat(*value)
            elif kind is op.POSSESSIVE_REPEAT:
                self._alone(value[2])
            elif kind is op.ATOMIC_GROUP:
                self._alone(value)
            elif kind in (op.ASSERT, op.ASSERT_NOT):
                self._alone(value[1])
            elif kind is op.SUBPATTERN:
                self.read(value[-1])
            elif kind is op.BRANCH:
                self.choices += 0 if _apart_at_once(value[1]) else 1
                for one in value[1]:
                    self.read(one)
            elif kind is op.GROUPREF_EXISTS:
                for one in value[1:]:
                    self.read(one or ())

    def _alone(self, items: Iterable[Any]) -> None:
        inner = _Measured()
        inner.read(items)
        self.apart = max(self.apart, inner.repetitions + 1, inner.apart)

    def _repeat(self, least: int, most: int, items: Any) -> None:
        inner = _Measured()
        inner.read(items)
        self.apart = max(self.apart, inner.apart)
        if most > _FEW_TIMES and (inner.repetitions or inner.choices):
            raise ValueError(
                "may take very long on some thread ids: it repeats what can itself match the same "
                f"text in several ways; {_REMEDY}"
            )
        times = min(most, _FEW_TIMES)
        self.choices += inner.choices * times
        self.repetitions += inner.repetitions * times
        if least != most:
            if most > _FEW_TIMES:
                self.repetitions += 1
            else:
                self.choices += 1


def _apart_at_once(branches: Iterable[Any]) -> bool:
    """Whether the first character tells which of the branches it is."""
    firsts = [branch[0] if len(branch) else None for branch in branches]
    letters = [first[1] for first in firsts if first is not None and first[0] is op.LITERAL]
    return len(letters) == len(set(letters)) == len(firsts)
