"""A sweep that may delete only so many threads: those that have been overdue longest.

Over several tenants it is one limit, and whose thread it is does not matter. So every sweep
decides alike, in whatever process it runs, and no tenant waits for another's later threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.sweeps.parts import Candidate, batches
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps

T = TypeVar("T")


class LimitedSweep(Protocol):
    """What a limit needs of a sweep; see :class:`.Sweep` for what each does."""

    batch_size: int
    result: SweepResult

    def find_oldest(self, room: int | None, *, prune: bool) -> Steps[list[Candidate]]:
        """Find the candidates that have been overdue longest and were not tried yet."""

    def delete(self, batch: Sequence[Candidate]) -> Steps[None]:
        """Delete a batch of them."""

    def note_overdue(self, left: Sequence[Candidate]) -> None:
        """Remember how long the threads that stay have been overdue."""


class Attempt(Protocol):
    """Runs steps of one of several sweeps."""

    def __call__(self, number: int, steps: Steps[T]) -> Steps[T | None]:
        """Run them; None where they failed and this sweep has no more to do."""


def oldest_first(
    sweeps: Sequence[LimitedSweep], limit: int, attempt: Attempt, *, resolves: bool
) -> Steps[None]:
    """Delete at most ``limit`` threads of all sweeps together.

    Threads that are kept do not count, so this goes on until enough are deleted or none is
    left. Only as many candidates are remembered as one round can use, and another round walks
    the storage again.

    Args:
        sweeps: The sweeps, begun.
        limit: How many threads.
        attempt: Runs steps of one of them.
        resolves: Whether a resolver is asked, which is once a thread: there is one round then,
            and all candidates are remembered.
    """
    room = None if resolves else limit + max((one.batch_size for one in sweeps), default=0)
    prune = True
    while True:
        found, left_out = yield from _find(sweeps, room, attempt, prune=prune)
        rest = iter(found)
        while (missing := limit - sum(len(one.result.deleted_thread_ids) for one in sweeps)) > 0:
            some = list(islice(rest, missing))
            if not some:
                break
            for number, mine in _by_sweep(some):
                for batch in batches(mine, sweeps[number].batch_size):
                    yield from attempt(number, sweeps[number].delete(batch))
        if missing <= 0 or not left_out:
            for number, mine in _by_sweep([*rest, *left_out]):
                sweeps[number].note_overdue(mine)
            return
        prune = False


def _find(
    sweeps: Sequence[LimitedSweep], room: int | None, attempt: Attempt, *, prune: bool
) -> Steps[tuple[list[tuple[Candidate, int]], list[tuple[Candidate, int]]]]:
    """The ``room`` candidates overdue longest, and of each sweep with more the next one."""
    found: list[tuple[Candidate, int]] = []
    left_out: dict[int, Candidate] = {}
    for number, sweep in enumerate(sweeps):
        # One more than there is room for tells whether there are more.
        most = None if room is None else room + 1
        mine = yield from attempt(number, sweep.find_oldest(most, prune=prune))
        found = sorted([*found, *((candidate, number) for candidate in mine or ())])
        if room is not None:
            for candidate, whose in found[room:]:
                left_out[whose] = min(candidate, left_out.get(whose, candidate))
            del found[room:]
    return found, [(candidate, whose) for whose, candidate in left_out.items()]


def _by_sweep(some: Sequence[tuple[Candidate, int]]) -> Iterator[tuple[int, list[Candidate]]]:
    grouped: dict[int, list[Candidate]] = defaultdict(list)
    for candidate, number in some:
        grouped[number].append(candidate)
    yield from grouped.items()
