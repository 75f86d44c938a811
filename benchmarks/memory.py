"""How much a process grows while it sweeps a million threads, of which one in a hundred goes.

The ids of what was deleted are part of the result, so they grow with the deletes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import rivals
from benchmarks.data import fill_postgres, fill_sqlite
from benchmarks.harness import IDLE_TTL, Goal, Options, Row, main
from benchmarks.server import postgres

_MB = 1e6


def measure(options: Options) -> Row:
    threads = options.threads(1_000_000)
    grown, notes = {}, []
    with postgres() as server, tempfile.TemporaryDirectory(prefix="lgec-bench-") as folder:
        dsn = server.new(lambda dsn: fill_postgres(dsn, threads, 1, 0.01))
        path = str(Path(folder, "threads.db"))
        fill_sqlite(path, threads, 1, 0.01)
        for backend, where in (("postgres", dsn), ("sqlite", path)):
            done = rivals.sweep(backend=backend, where=where, idle_ttl_seconds=IDLE_TTL)
            assert done["deleted"] == int(threads * 0.01), done
            if done["grown"] is None:
                raise SystemExit("the growth of a process can be read on Linux only")
            grown[backend] = done["grown"]
            notes.append(f"{backend}: {done['grown'] / _MB:.1f} MB in {done['seconds']:.1f} s")
    return Row(
        "memory",
        f"Postgres and SQLite, {threads:,} threads, policy without resolver",
        [Goal("growth", max(grown.values()) / _MB, 50, unit="MB")],
        notes,
        why="likely: a page of threads, a batch, and the ids of what was deleted are held at once",
    )


if __name__ == "__main__":
    main(measure)
