"""What a graph's saves feel of a sweep: puts at a steady rate on a Postgres that is half expired.

The sweep runs in a process of its own. A put is late from the moment it was due, so one that
had to wait for another counts too.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver

from benchmarks import rivals
from benchmarks.data import fill_postgres
from benchmarks.harness import IDLE_TTL, Goal, Options, Row, main
from benchmarks.server import postgres

_EVERY = 0.01  # seconds between two puts


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


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100, method="inclusive")[98]


def measure(options: Options) -> Row:
    threads = options.threads(50_000)
    quiet: list[float] = []
    swept: list[float] = []
    ratios, sweeps = [], []
    done: dict[str, Any] = {}
    with postgres() as server, ThreadPoolExecutor(1) as pool:
        filled = server.new(lambda dsn: fill_postgres(dsn, threads, 10, 0.5))
        for _ in range(min(options.rounds, 3)):
            with server.copy(filled) as dsn, PostgresSaver.from_conn_string(dsn) as saver:

                def phase(name: str, during: Any, saver: Any = saver) -> Puts:
                    until = threading.Event()
                    future = pool.submit(puts, saver, until, name)
                    try:
                        during()
                    finally:
                        until.set()
                    return future.result()

                def sweep(dsn: str = dsn) -> None:
                    nonlocal done
                    done = rivals.sweep(backend="postgres", where=dsn, idle_ttl_seconds=IDLE_TTL)
                    assert done["deleted"] == threads // 2, done

                phase("warm-up", lambda: time.sleep(1))
                before = [took for _, took in phase("quiet", lambda: time.sleep(6))]
                around = phase("swept", sweep)
                end = done["began"] + done["seconds"]
                during = [took for due, took in around if done["began"] <= due <= end]
                sweeps.append(done["seconds"])
            ratios.append(_p99(during) / _p99(before))
            quiet += before
            swept += during
    return Row(
        "graph latency during a sweep",
        f"a put every {_EVERY * 1e3:.0f} ms, Postgres, {threads:,} threads x 10, half expired",
        [Goal("the p99 of quiet puts (median of rounds)", median(ratios), 2)],
        [
            f"{name}: p50 {quantiles(times, n=2)[0] * 1e3:.2f} ms, p99 {_p99(times) * 1e3:.2f} ms, "
            f"slowest {max(times) * 1e3:.2f} ms of {len(times)}"
            for name, times in (("quiet", quiet), ("during the sweep", swept))
        ]
        + [
            "rounds: " + ", ".join(f"{one:.2f} x" for one in ratios),
            "sweeps took " + ", ".join(f"{one:.2f} s" for one in sweeps),
        ],
    )


if __name__ == "__main__":
    main(measure)
