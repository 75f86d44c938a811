"""What a graph's saves feel of a sweep: puts at a steady rate on a Postgres that is half expired.

The sweep runs in a process of its own. A put is late from the moment it was due, so one that
had to wait for another counts too. Quiet and swept phases of one length take turns on one
server, and the percentiles are those of all their puts together: one sweep alone gives a few
hundred puts, of which the slowest hundredth is chance.

The puts, the sweep and their two backends share the cores. How much of it is just that shows
while the same sweep runs on another database of the server, which nobody saves into.

A put that has to wait for a core waits until the scheduler takes it from the sweep, or until the
sweep waits for an answer itself. Small batches make it do that sooner, and take longer in all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver

from benchmarks import rivals
from benchmarks.data import fill_postgres
from benchmarks.harness import IDLE_TTL, Goal, Options, Row, main
from benchmarks.server import postgres

_EVERY = 0.005  # seconds between two puts
_ENOUGH = 5_000  # puts during sweeps: the hundredth of them is then fifty
_SMALL = 50  # threads of a small batch: its statements take about a millisecond each
_KINDS: dict[str, dict[str, Any]] = {
    "swept": {},
    "swept elsewhere": {},
    "swept in small batches": {"batch_size": _SMALL},
}

Puts = list[tuple[float, float]]
"""When each put was due, in seconds since the epoch, and how many seconds later it was done."""


def puts(saver: Any, until: threading.Event, thread_id: str) -> Puts:
    """Put one checkpoint after the other at a steady rate."""
    took: Puts = []
    epoch = time.time() - time.perf_counter()
    where: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    due = time.perf_counter()
    while not until.is_set():
        version = f"{len(took) + 1:032}.0123456789"
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": ["x" * 200] * 10}
        checkpoint["channel_versions"] = {"messages": version}
        metadata: Any = {"source": "loop", "step": len(took), "parents": {}}
        where = saver.put(where, checkpoint, metadata, {"messages": version})
        took.append((epoch + due, time.perf_counter() - due))
        due += _EVERY
        time.sleep(max(0.0, due - time.perf_counter()))
    return took


def percentile(times: list[float], hundredth: int) -> float:
    """Give a percentile, in the unit of the times."""
    return quantiles(times, n=100, method="inclusive")[hundredth - 1]


class Phases:
    """The puts of every kind of phase, together.

    Attributes:
        took: Seconds of each put.
        sweeps: Seconds of each sweep.
    """

    def __init__(self, threads: int) -> None:
        self.took: dict[str, list[float]] = {kind: [] for kind in ("quiet", *_KINDS)}
        self.sweeps: dict[str, list[float]] = {kind: [] for kind in _KINDS}
        self._threads = threads

    def quiet(self, saver: Any, seconds: float, *, counted: bool = True) -> None:
        """Put for a while, and nothing else."""
        found = self._during(saver, lambda: time.sleep(seconds))
        if counted:
            self.took["quiet"] += [took for _, took in found]

    def swept(self, saver: Any, kind: str, dsn: str) -> float:
        """Put while a database is swept, and give the seconds that took."""
        done: dict[str, Any] = {}

        def sweep() -> None:
            done.update(
                rivals.sweep(
                    backend="postgres",
                    where=dsn,
                    idle_ttl_seconds=IDLE_TTL,
                    options=_KINDS[kind],
                )
            )
            assert done["deleted"] == self._threads // 2, done

        found = self._during(saver, sweep)
        end = done["began"] + done["seconds"]
        self.took[kind] += [took for due, took in found if done["began"] <= due <= end]
        self.sweeps[kind].append(done["seconds"])
        return float(done["seconds"])

    def _during(self, saver: Any, call: Callable[[], None]) -> Puts:
        until = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(puts, saver, until, f"puts-{time.time_ns()}")
            try:
                call()
            finally:
                until.set()
            return found.result()


def measure(options: Options) -> Row:
    threads = options.threads(50_000)
    phases = Phases(threads)
    with postgres() as server:
        filled = server.new(lambda dsn: fill_postgres(dsn, threads, 10, 0.5))
        for number in range(options.rounds * 3):
            kinds = list(_KINDS)
            for kind in kinds[number % 3 :] + kinds[: number % 3]:
                with (
                    server.copy(filled) as dsn,
                    server.copy(filled) as elsewhere,
                    PostgresSaver.from_conn_string(dsn) as saver,
                ):
                    phases.quiet(saver, 0.5, counted=False)  # prepares the statements
                    where = elsewhere if kind == "swept elsewhere" else dsn
                    phases.quiet(saver, phases.swept(saver, kind, where))
            if number + 1 >= options.rounds and len(phases.took["swept"]) >= _ENOUGH:
                break
    worst = {kind: percentile(times, 99) for kind, times in phases.took.items()}
    small = worst["swept in small batches"] / worst["quiet"]
    return Row(
        "graph latency during a sweep",
        f"a put every {_EVERY * 1e3:.0f} ms, Postgres, {threads:,} threads x 10, half expired",
        [
            Goal("the p99 of quiet puts", worst["swept"] / worst["quiet"], 2),
            Goal(f"the p99 of quiet puts, with batch_size={_SMALL}", small, 2),
        ],
        [
            f"{kind}: p50 {percentile(times, 50) * 1e3:.2f} ms, p90 "
            f"{percentile(times, 90) * 1e3:.2f} ms, p99 {worst[kind] * 1e3:.2f} ms, slowest "
            f"{max(times) * 1e3:.2f} ms of {len(times):,}"
            for kind, times in phases.took.items()
        ]
        + [
            f"swept by swept elsewhere: {worst['swept'] / worst['swept elsewhere']:.2f} x",
            *(
                f"{kind}, seconds of a sweep: fastest {min(times):.2f}, median "
                f"{median(times):.2f}, slowest {max(times):.2f}"
                for kind, times in phases.sweeps.items()
            ),
        ],
        why="the puts, the sweep and their two backends share the cores: the p99 is "
        f"{worst['swept elsewhere'] / worst['quiet']:.2f} x while a database is swept that the "
        "puts have nothing to do with",
    )


if __name__ == "__main__":
    main(measure)
