"""Trimming long threads on Postgres, against upstream's own prune of the same threads."""

from __future__ import annotations

from langgraph.checkpoint.postgres import PostgresSaver

from benchmarks import rivals
from benchmarks.data import fill_postgres
from benchmarks.harness import Goal, Options, Row, clock, describe, main, ratio, take_turns
from benchmarks.server import postgres

_CHECKPOINTS, _KEEP = 200, 10


def measure(options: Options) -> Row:
    threads = options.threads(2_000)
    ids = [f"thread-{number:08d}" for number in range(threads)]
    with postgres() as server:
        filled = server.new(lambda dsn: fill_postgres(dsn, threads, _CHECKPOINTS, 0.0))

        def ours() -> float:
            with server.copy(filled) as dsn:
                done = rivals.sweep(backend="postgres", where=dsn, max_checkpoints_per_thread=_KEEP)
            assert done["pruned"] == threads * (_CHECKPOINTS - _KEEP), done
            return float(done["seconds"])

        def upstream() -> float:
            with server.copy(filled) as dsn, PostgresSaver.from_conn_string(dsn) as saver:
                took = clock(lambda: saver.prune(ids, strategy="keep_latest"))
                left = saver.conn.execute("SELECT count(*) AS n FROM checkpoints").fetchone()
                assert left is not None
                assert left["n"] == threads, left
                return took

        times = take_turns(min(options.rounds, 3), ours=ours, upstream_to_1=upstream)
    return Row(
        "prune to 10, Postgres",
        f"Postgres, {threads:,} threads x {_CHECKPOINTS} checkpoints",
        [
            Goal(
                "faster than upstream's prune(keep_latest)",
                ratio(times["upstream_to_1"], times["ours"]),
                5,
                at_most=False,
            )
        ],
        describe(times),
        why="most of it is what any prune does: each row is found, told from those that stay, "
        "logged and deleted; three plain DELETEs of these rows take half of our time",
    )


if __name__ == "__main__":
    main(measure)
