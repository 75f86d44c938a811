"""A sweep of an SQLite file of which 90% is expired, against plain DELETEs and the namesake."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

from benchmarks import rivals
from benchmarks.data import fill_sqlite
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


def measure(options: Options) -> Row:
    threads = options.threads(40_000)
    expired = [f"thread-{number:08d}" for number in range(int(threads * 0.9))]
    refused = []
    with tempfile.TemporaryDirectory(prefix="lgec-bench-") as folder:
        filled, copy = Path(folder, "filled.db"), Path(folder, "copy.db")
        fill_sqlite(str(filled), threads, 5, 0.9)

        def fresh() -> None:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{copy}{suffix}").unlink(missing_ok=True)
            shutil.copy(filled, copy)

        def plain() -> float:
            fresh()
            conn = sqlite3.connect(copy, isolation_level=None)
            conn.execute("CREATE TEMP TABLE expired (thread_id TEXT PRIMARY KEY) WITHOUT ROWID")
            conn.executemany("INSERT INTO expired VALUES (?)", ((id_,) for id_ in expired))

            def delete() -> None:
                conn.execute("BEGIN IMMEDIATE")
                for table in ("checkpoints", "writes"):
                    conn.execute(
                        f"DELETE FROM {table} WHERE thread_id IN (SELECT thread_id FROM expired)"
                    )
                conn.execute("COMMIT")

            try:
                return clock(delete)
            finally:
                conn.close()

        def sweep(run, **settings) -> float:  # type: ignore[no-untyped-def]
            fresh()
            done = run(
                backend="sqlite", where=str(copy), idle_ttl_seconds=IDLE_TTL, options=settings
            )
            assert done["deleted"] == len(expired), done
            return float(done["seconds"])

        def namesake() -> float:
            try:
                return sweep(rivals.namesake_sweep)
            except subprocess.CalledProcessError:
                refused.append("the namesake's sweep failed; its message is on stderr")
                return float("inf")

        times = take_turns(
            options.rounds,
            plain_deletes=plain,
            ours=lambda: sweep(rivals.sweep),
            ours_without_the_look_for_orphans=lambda: sweep(rivals.sweep, orphan_age_seconds=None),
            namesake=namesake,
        )
    return Row(
        "sweep with safe_delete, SQLite",
        f"SQLite file, {threads:,} threads x 5 checkpoints, 90% expired",
        [
            Goal("plain DELETEs", ratio(times["ours"], times["plain_deletes"]), 1.4),
            Goal(
                "faster than the namesake",
                ratio(times["namesake"], times["ours"]),
                1,
                at_most=False,
            ),
        ],
        [*describe(times), *refused[:1]],
        why="the ids are found first, then each expired thread is read again in the transaction "
        "that deletes it, where plain DELETEs have their ids in a table; and the disk has to "
        "confirm a transaction for each batch, where theirs is one",
    )


if __name__ == "__main__":
    main(measure)
