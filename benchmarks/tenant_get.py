"""Loading the newest checkpoint by the tenant saver, against upstream's get_tuple."""

from __future__ import annotations

from benchmarks.harness import Goal, Options, Row, clock, describe, main, take_turns
from benchmarks.server import postgres
from benchmarks.states import load, save
from benchmarks.tenants import both, prepare

_LOADS = 50


def measure(options: Options) -> Row:
    rounds = max(20, round(200 * options.scale))
    with postgres() as server, both(dsn := prepare(server)) as (ours, upstream):
        for number in range(20):
            save(ours, f"thread-{number}")
            save(upstream, f"thread-{number}")
        server.analyze(dsn)

        def timed(saver: object) -> float:
            return clock(lambda: load(saver, "thread-7", _LOADS)) / _LOADS

        timed(ours)
        timed(upstream)
        times = take_turns(rounds, ours=lambda: timed(ours), upstream=lambda: timed(upstream))
    return Row(
        "tenant saver get_tuple",
        f"Row-Level Security, threads of 25 checkpoints, {rounds} x {_LOADS} loads",
        [
            Goal(
                "the rate of upstream's PostgresSaver.get_tuple",
                min(times["upstream"]) / min(times["ours"]),
                0.9,
                at_most=False,
            )
        ],
        describe(times),
        why="a load pins its tenant in a statement of its own, and each row is checked by a policy",
    )


if __name__ == "__main__":
    main(measure)
