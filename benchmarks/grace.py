"""What the triggers of the trash add to a save of an upstream PostgresSaver."""

from __future__ import annotations

from statistics import median

from benchmarks.harness import Goal, Options, Row, describe, main
from benchmarks.put_with_undo import compare
from benchmarks.server import postgres


def measure(options: Options) -> Row:
    rounds, trash = max(20, round(150 * options.scale)), options.threads(1_000)
    with postgres() as server:
        times = compare("postgres", server.dsn, rounds=rounds, saves=25, trash=trash)
    by_pairs = median(
        with_ / without for with_, without in zip(times[True], times[False], strict=True)
    )
    return Row(
        "grace trigger, save by upstream PostgresSaver",
        f"put and put_writes, {rounds} x 25 saves, {trash:,} threads in the trash",
        [Goal("without the triggers (median of the pairs)", by_pairs, 1.1)],
        [
            *describe({"without, each save": times[False], "with, each save": times[True]}),
            f"fastest by fastest: {min(times[True]) / min(times[False]):.2f} x",
        ],
    )


if __name__ == "__main__":
    main(measure)
