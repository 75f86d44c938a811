"""A sweep of Postgres that finds nothing expired, against the aggregate it cannot do without."""

from __future__ import annotations

import time

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver

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
from benchmarks.server import postgres, warm
from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper

_PLAIN = "SELECT thread_id FROM checkpoints GROUP BY thread_id HAVING max(checkpoint_id) < %s"


def measure(options: Options) -> Row:
    threads = options.threads(100_000)
    with postgres() as server:
        dsn = server.new(lambda dsn: fill_postgres(dsn, threads, 10, 0.0))
        warm(dsn)
        with (
            PostgresSaver.from_conn_string(dsn) as saver,
            psycopg.connect(dsn, autocommit=True) as conn,
            psycopg.connect(dsn, autocommit=True) as alone,
        ):
            alone.execute("SET max_parallel_workers_per_gather = 0")
            policy = TTLPolicy(idle_ttl_seconds=IDLE_TTL)
            scanning = TTLSweeper(saver, policy, orphan_age_seconds=None)
            sweeping = TTLSweeper(saver, policy)
            cut_off = checkpoint_id(time.time() - IDLE_TTL, 0)

            def plain(on: psycopg.Connection) -> float:
                return clock(lambda: on.execute(_PLAIN, (cut_off,)).fetchall())

            def ours(sweeper: TTLSweeper) -> float:
                result = sweeper.sweep()
                assert result.active_thread_count == threads
                return result.sweep_duration_seconds

            times = take_turns(
                options.rounds,
                plain=lambda: plain(conn),
                plain_without_parallel_workers=lambda: plain(alone),
                scan=lambda: ours(scanning),
                sweep_with_its_look_for_orphans=lambda: ours(sweeping),
            )
    return Row(
        "scan, nothing expired",
        f"Postgres, {threads:,} threads x 10 checkpoints",
        [
            Goal(
                "GROUP BY thread_id HAVING max(checkpoint_id)",
                ratio(times["scan"], times["plain"]),
                1.3,
            )
        ],
        describe(times),
        why="a sweep reads a page of threads in a statement and looks at the form of their ids, "
        "without parallel workers; it is "
        f"{ratio(times['scan'], times['plain_without_parallel_workers']):.2f} x the plain query "
        "without such workers",
    )


if __name__ == "__main__":
    main(measure)
