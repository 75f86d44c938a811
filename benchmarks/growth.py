"""How the time of a sweep grows with the threads, on Postgres; one thread in ten goes."""

from __future__ import annotations

from benchmarks import rivals
from benchmarks.data import fill_postgres
from benchmarks.harness import IDLE_TTL, Goal, Options, Row, describe, main, take_turns
from benchmarks.server import postgres

_CHECKPOINTS = 2


def measure(options: Options) -> Row:
    sizes = [options.threads(size) for size in (10_000, 100_000, 1_000_000)]
    times: dict[str, list[float]] = {}
    for threads in sizes:
        with postgres() as server:
            filled = server.new(
                lambda dsn, threads=threads: fill_postgres(dsn, threads, _CHECKPOINTS, 0.1)
            )

            def sweep(threads: int = threads, filled: str = filled, server=server) -> float:  # type: ignore[no-untyped-def]
                with server.copy(filled) as dsn:
                    done = rivals.sweep(backend="postgres", where=dsn, idle_ttl_seconds=IDLE_TTL)
                assert done["deleted"] == int(threads * 0.1), done
                return float(done["seconds"])

            times |= take_turns(min(options.rounds, 3), **{f"{threads:,}_threads": sweep})
    each = [min(found) / threads for found, threads in zip(times.values(), sizes, strict=True)]
    return Row(
        "growth",
        f"Postgres, {', '.join(f'{size:,}' for size in sizes)} threads x {_CHECKPOINTS} "
        "checkpoints, 10% expired",
        [
            Goal(
                f"time per thread at {sizes[-1]:,} by that at {sizes[0]:,} (1 is a straight line)",
                each[-1] / each[0],
                1.1,
            )
        ],
        [*describe(times), "us a thread: " + ", ".join(f"{one * 1e6:.1f}" for one in each)],
        why="likely: the indexes of the largest tables are a level deeper and outgrow the caches "
        "of the CPU; plans and statements are the same at every size",
    )


if __name__ == "__main__":
    main(measure)
