"""SweepOptions: how to sweep, for a sweeper, in a rules file and on the command line.

Each option is declared once, here, with its kind, its default, its help and its names; the code
that acts on it reads it from this object. The rules of when a thread is expired are declared in
the same way by :class:`.TTLPolicy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from langgraph_ephemeral_checkpointer.common.kinds import (
    COUNT,
    DURATION,
    FLAG,
    PERCENT,
    declared,
    option,
)


class MoreArguments(TypedDict, total=False):
    """Options that :class:`.TTLSweeper` takes as arguments too, beside those that it names."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How to sweep.

    Args:
        interval: Pause between two sweeps of the command ``run``; for a task of your own, pass
            it to :meth:`.TTLSweeper.start`.
        batch_size: Threads per delete transaction, at least 1.
        max_deletes: Stop after this many deletes, longest overdue first.
        max_delete_percent: Refuse a sweep whose rules match more than this share of all threads.
        coordinate: Let only one of several instances sweep at a time. Postgres only.
        grace: Keep what is deleted in a trash for so long.

    Durations are seconds, as int, float or timedelta, and are stored as a number.
    :class:`.TTLSweeper` tells more of each.

    Raises:
        TypeError: A value of the wrong type; ``bool`` is no number here.
        ValueError: A number out of range.
    """

    interval: float = option(
        DURATION,
        "Pause between two sweeps, a tenth more or less at random (default: 5m).",
        default=300,
        again=True,
    )
    batch_size: int = option(
        COUNT,
        "Threads per delete transaction (default: 500).",
        default=500,
    )
    max_deletes: int | None = option(
        COUNT,
        "Delete at most N threads in one sweep, longest overdue first; the next sweep goes on.",
        argument="max_deletes_per_sweep",
    )
    max_delete_percent: float | None = option(
        PERCENT,
        "Refuse to sweep if the rules match more than this share of all threads, as after a "
        "wrong unit. Costs a second scan.",
    )
    coordinate: bool = option(
        FLAG,
        "Do nothing while another instance sweeps the same tables with this option "
        "(Postgres only).",
        default=False,
        argument="enable_coordination",
    )
    grace: float | None = option(
        DURATION,
        "Keep what is deleted in the trash for this long; needs 'setup' once.",
        argument="grace_seconds",
    )

    if TYPE_CHECKING:  # more can be given than is read

        def __init__(
            self,
            interval: float | timedelta = 300,
            batch_size: int = 500,
            max_deletes: int | None = None,
            max_delete_percent: float | None = None,
            coordinate: bool = False,
            grace: float | timedelta | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for one in declared(SweepOptions):
            object.__setattr__(self, one.name, one.checked(getattr(self, one.name)))

    def with_arguments(self, arguments: Mapping[str, object]) -> SweepOptions:
        """Give the options with what a function was given as arguments of its own.

        Args:
            arguments: By the names that arguments have; one that is at its default is not given.

        Raises:
            TypeError: There is no such argument, one is of the wrong type, or one says something
                else than the options do.
            ValueError: A number out of range.
        """
        known = {one.argument: one for one in declared(SweepOptions)}
        given: dict[str, Any] = {}
        for name, value in arguments.items():
            if name not in known:
                raise TypeError(f"TTLSweeper got an unexpected keyword argument {name!r}")
            one = known[name]
            checked = one.checked(value, name)
            if checked == one.default:
                continue
            if getattr(self, one.name) not in (one.default, checked):
                raise TypeError(f"{name} is given twice: as an argument, and as options.{one.name}")
            given[one.name] = checked
        return replace(self, **given)
