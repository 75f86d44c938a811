"""A sweep of an InMemorySaver of which half is expired, against the namesake."""

from __future__ import annotations

import subprocess
from functools import partial

from benchmarks import rivals
from benchmarks.harness import IDLE_TTL, Goal, Options, Row, describe, main, ratio, take_turns

_PATIENCE = 300.0  # seconds: the namesake's time is quadratic, and a lower bound is answer enough


def measure(options: Options) -> Row:
    threads = options.threads(100_000)

    def sweep(run) -> float:  # type: ignore[no-untyped-def]
        done = run(
            backend="memory",
            threads=threads,
            checkpoints=10,
            expired_share=0.5,
            idle_ttl_seconds=IDLE_TTL,
        )
        assert done["deleted"] == threads // 2, done
        return float(done["seconds"])

    notes = []

    def namesake() -> float:
        try:
            return sweep(partial(rivals.namesake_sweep, patience=_PATIENCE))
        except subprocess.TimeoutExpired:
            notes.append("the namesake did not end: it was stopped, so its time is a lower bound")
            return _PATIENCE

    times = take_turns(
        min(options.rounds, 3),
        ours=lambda: sweep(rivals.sweep),
        namesake=namesake,
    )
    return Row(
        "sweep, InMemorySaver",
        f"InMemorySaver, {threads:,} threads x 10 checkpoints, half expired",
        [
            Goal(
                "faster than the namesake",
                ratio(times["namesake"], times["ours"]),
                1,
                at_most=False,
            )
        ],
        [*describe(times), *notes],
        why="each thread is looked at twice, before and in its delete",
    )


if __name__ == "__main__":
    main(measure)
