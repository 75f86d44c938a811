"""What the triggers of the trash add to a save of an upstream PostgresSaver."""

from __future__ import annotations

from benchmarks.harness import Goal, Options, Row, describe, main
from benchmarks.put_with_undo import compare, ratio
from benchmarks.server import postgres


def measure(options: Options) -> Row:
    rounds, trash = max(20, round(400 * options.scale)), options.threads(1_000)
    with postgres() as server:
        turns = compare("postgres", server.dsn, rounds=rounds, saves=25, trash=trash)
    return Row(
        "grace trigger, save by upstream PostgresSaver",
        f"put and put_writes, {rounds} x 25 saves, {trash:,} threads in the trash",
        [
            Goal(
                "without the triggers, CPU time of client and server (median of the pairs)",
                ratio(turns),
                1.1,
            )
        ],
        [
            *describe(
                {
                    f"{measure} time, {side}, each save": [
                        getattr(turn, measure) for turn in turns[triggers]
                    ]
                    for measure in ("cpu", "wall")
                    for side, triggers in (("without", False), ("with", True))
                }
            ),
            f"wall time, median of the pairs: {ratio(turns, 'wall'):.2f} x",
        ],
        why="calling a trigger, its lock, and one expression for each of the two transactions; "
        "a cold cache makes the call of a function dear, so other load on the cores counts",
    )


if __name__ == "__main__":
    main(measure)
