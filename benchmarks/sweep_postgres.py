"""A sweep of a half expired Postgres, against three plain DELETEs and the namesake."""

from __future__ import annotations

import time

import psycopg

from benchmarks import rivals
from benchmarks.data import checkpoint_id, fill_postgres
from benchmarks.harness import (
    IDLE_TTL,
    Goal,
    Options,
    Row,
    clock,
    describe,
    main,
    ratio,
    take_turns,
)
from benchmarks.server import TABLES, postgres

_EXPIRED = "SELECT thread_id FROM checkpoints GROUP BY thread_id HAVING max(checkpoint_id) < %s"


def measure(options: Options) -> Row:
    threads = options.threads(50_000)
    finding: list[float] = []
    with postgres() as server:
        filled = server.new(lambda dsn: fill_postgres(dsn, threads, 10, 0.5))

        def plain() -> float:
            with server.copy(filled) as dsn, psycopg.connect(dsn) as conn:
                cut_off = checkpoint_id(time.time() - IDLE_TTL, 0)
                started = time.perf_counter()
                ids = [row[0] for row in conn.execute(_EXPIRED, (cut_off,))]
                finding.append(time.perf_counter() - started)
                assert len(ids) == threads // 2

                def delete() -> None:
                    for table in TABLES:
                        conn.execute(f"DELETE FROM {table} WHERE thread_id = ANY(%s)", (ids,))
                    conn.commit()

                return clock(delete)

        def sweep(run, **settings) -> float:  # type: ignore[no-untyped-def]
            with server.copy(filled) as dsn:
                done = run(
                    backend="postgres", where=dsn, idle_ttl_seconds=IDLE_TTL, options=settings
                )
            assert done["deleted"] == threads // 2, done
            return float(done["seconds"])

        times = take_turns(
            options.rounds,
            three_plain_deletes=plain,
            ours=lambda: sweep(rivals.sweep),
            ours_without_the_look_for_orphans=lambda: sweep(rivals.sweep, orphan_age_seconds=None),
            ours_without_safe_delete=lambda: sweep(rivals.sweep, safe_delete=False),
            namesake=lambda: sweep(rivals.namesake_sweep),
        )
    return Row(
        "sweep with safe_delete, Postgres",
        f"Postgres, {threads:,} threads x 10 checkpoints, half expired",
        [
            Goal("three plain DELETEs", ratio(times["ours"], times["three_plain_deletes"]), 1.6),
            Goal(
                "faster than the namesake",
                ratio(times["namesake"], times["ours"]),
                3,
                at_most=False,
            ),
        ],
        [
            *describe(times),
            f"finding the ids for the plain DELETEs, not counted: {min(finding):.3g} s more",
        ],
        why="the ids are found first, then each expired thread is read again in the transaction "
        "that deletes it, where plain DELETEs are given their ids",
    )


if __name__ == "__main__":
    main(measure)
