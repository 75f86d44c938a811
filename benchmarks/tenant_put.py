"""Saves by the tenant saver, which prunes at each, against upstream's of the same state."""

from __future__ import annotations

import itertools

from benchmarks.far_away import far_away
from benchmarks.harness import Goal, Options, Row, clock, describe, main, take_turns
from benchmarks.server import postgres
from benchmarks.states import SAVES, save
from benchmarks.tenants import both, prepare

_DELAY = 0.002


def measure(options: Options) -> Row:
    rounds = max(20, round(200 * options.scale))
    numbers = itertools.count()
    with postgres() as server:
        dsn = prepare(server)
        with (
            far_away(dsn, _DELAY) as far_dsn,
            both(dsn, keep_checkpoints=1) as (ours, upstream),
            both(far_dsn, keep_checkpoints=1) as (far_ours, far_upstream),
        ):

            def timed(saver: object) -> float:
                thread_id = f"thread-{next(numbers)}"
                return clock(lambda: save(saver, thread_id)) / SAVES

            for saver in (ours, upstream, far_ours, far_upstream):
                timed(saver)
            times = take_turns(rounds, ours=lambda: timed(ours), upstream=lambda: timed(upstream))
            far = take_turns(
                max(5, rounds // 10),
                ours_at_2_ms=lambda: timed(far_ours),
                upstream_at_2_ms=lambda: timed(far_upstream),
            )
    trips = (min(far["ours_at_2_ms"]) - min(times["ours"])) / _DELAY
    theirs = (min(far["upstream_at_2_ms"]) - min(times["upstream"])) / _DELAY
    return Row(
        "tenant saver put",
        f"Row-Level Security, keep_checkpoints=1, {rounds} x {SAVES} saves",
        [
            Goal(
                "the rate of upstream's PostgresSaver.put",
                min(times["upstream"]) / min(times["ours"]),
                0.9,
                at_most=False,
            ),
            # Timers wake late, so a trip through the relay takes a little more than its delay.
            Goal("each save at 2 ms of added latency", trips, 1.3, unit="round trips"),
        ],
        [*describe(times | far), f"upstream: {theirs:.2f} round trips at 2 ms"],
        why="a save pins its tenant, locks its thread, checks the policy of each row and prunes, "
        "all of which upstream does not",
    )


if __name__ == "__main__":
    main(measure)
