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
            far_away(dsn, _DELAY) as (far_dsn, trips),
            both(dsn, keep_checkpoints=1) as (ours, upstream),
            both(far_dsn, keep_checkpoints=1) as (far_ours, far_upstream),
        ):

            def timed(saver: object) -> float:
                thread_id = f"thread-{next(numbers)}"
                return clock(lambda: save(saver, thread_id)) / SAVES

            for saver in (ours, upstream, far_ours, far_upstream):
                timed(saver)
            times = take_turns(rounds, ours=lambda: timed(ours), upstream=lambda: timed(upstream))
            counts: dict[str, list[float]] = {"ours": [], "upstream": []}

            def far_away_timed(name: str, saver: object) -> float:
                before = trips.count
                seconds = timed(saver)
                counts[name].append((trips.count - before) / SAVES)
                return seconds

            far = take_turns(
                max(5, rounds // 10),
                ours_at_2_ms=lambda: far_away_timed("ours", far_ours),
                upstream_at_2_ms=lambda: far_away_timed("upstream", far_upstream),
            )
    added = {name: (min(far[f"{name}_at_2_ms"]) - min(times[name])) / _DELAY for name in counts}
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
            Goal("each save, counted on the way", max(counts["ours"]), 1, unit="round trips"),
        ],
        [
            *describe(times | far),
            f"upstream: {max(counts['upstream']):.2f} round trips each save",
            # Timers wake late, so a trip through the relay takes a little more than its delay.
            *(
                f"{name}: {more:.2f} times the 2 ms of added latency"
                for name, more in added.items()
            ),
        ],
        why="a save pins its tenant, locks its thread, checks the policy of each row and prunes, "
        "all of which upstream does not",
    )


if __name__ == "__main__":
    main(measure)
