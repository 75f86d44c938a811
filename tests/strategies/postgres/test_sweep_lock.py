"""Only one of several instances sweeps at a time, and none is ever locked out for good."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from contextlib import contextmanager

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg_pool import (
    AsyncConnectionPool,
    AsyncNullConnectionPool,
    ConnectionPool,
    NullConnectionPool,
)

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy, TTLSweeper
from tests.support import pgbouncer

POLICY = TTLPolicy(idle_ttl_seconds=60)


def _later() -> float:
    return time.time() + 3600


def _put(saver, *thread_ids):
    for thread_id in thread_ids:
        where = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        saver.put(where, empty_checkpoint(), {}, {})


def _sweeper(saver, **options):
    return TTLSweeper(saver, POLICY, enable_coordination=True, clock=_later, **options)


def _locks(dsn):
    with psycopg.connect(dsn) as conn:
        sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        return conn.execute(sql).fetchone()[0]


@contextmanager
def _pool(dsn, size):
    with ConnectionPool(dsn, min_size=1, max_size=size, kwargs={"autocommit": True}) as pool:
        yield PostgresSaver(pool)


@contextmanager
def _closing_pool(dsn, _size=None):
    """A pool that closes each connection when it comes back."""
    with NullConnectionPool(dsn, max_size=1, kwargs={"autocommit": True}) as pool:
        yield PostgresSaver(pool)


@contextmanager
def _single(dsn, _size=None):
    with PostgresSaver.from_conn_string(dsn) as saver:
        yield saver


@contextmanager
def _pooler(dsn, _size=None):
    with pgbouncer.pgbouncer(dsn) as through:
        kwargs = {"autocommit": True, "prepare_threshold": None}
        with ConnectionPool(through, min_size=1, max_size=3, kwargs=kwargs) as pool:
            yield PostgresSaver(pool)


KINDS = [
    pytest.param((_single, None), id="connection"),
    *(pytest.param((_pool, size), id=f"pool-{size}") for size in (1, 3)),
    pytest.param((_closing_pool, None), id="closing-pool"),
    pytest.param((_pooler, None), id="pgbouncer"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_eight_sweeps_in_a_row_all_run_and_leave_no_lock(pg_dsn, kind):
    opened, size = kind
    with opened(pg_dsn, size) as saver:
        sweeper = _sweeper(saver)
        for round_ in range(8):
            _put(saver, f"thread-{round_}")
            result = sweeper.sweep()
            assert not result.lock_held_elsewhere
            assert result.deleted_thread_ids == [f"thread-{round_}"]
        assert _locks(pg_dsn) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_during_another_is_skipped_says_so_and_fires_its_callback(pg_dsn, kind):
    opened, size = kind
    seen, inner = [], []

    def sweep_elsewhere(_thread_id, _policy, _reason):
        with opened(pg_dsn, size) as other:
            inner.append(_sweeper(other, on_sweep_complete=seen.append).sweep())

    with opened(pg_dsn, size) as saver:
        _put(saver, "t")
        pooled = opened is _pooler
        hook = None if pooled else sweep_elsewhere
        if pooled:  # the lock is there only while a batch runs, so hold one open
            with psycopg.connect(pg_dsn) as batch:
                batch.execute(
                    "SELECT pg_advisory_xact_lock("
                    "1279739203::bigint << 32 | 'checkpoints'::regclass::oid::bigint)"
                )
                sweep_elsewhere("t", POLICY, "idle_ttl")
        assert _sweeper(saver, on_before_delete=hook).sweep().deleted_thread_ids == ["t"]
    assert inner[0].lock_held_elsewhere
    assert inner[0].deleted_thread_ids == []
    assert seen == inner


def test_two_sweepers_on_one_connection_do_not_share_the_lock(pg_dsn):
    inner = []
    with _single(pg_dsn) as saver:
        _put(saver, "t")
        other = _sweeper(saver)
        _sweeper(saver, on_before_delete=lambda *_: inner.append(other.sweep())).sweep()
    assert inner[0].lock_held_elsewhere


def test_a_dry_run_takes_no_lock_and_is_not_kept_out_by_one(pg_dsn):
    with _single(pg_dsn) as saver, _pool(pg_dsn, 1) as other:
        _put(saver, "t")
        dry = []
        hook = lambda *_: dry.append(_sweeper(other).sweep(dry_run=True))  # noqa: E731
        _sweeper(saver, on_before_delete=hook).sweep()
    assert dry[0].deleted_thread_ids == ["t"]
    assert not dry[0].lock_held_elsewhere


def test_the_lock_is_released_when_the_sweep_fails(pg_dsn):
    def fail(_thread_id):
        raise KeyboardInterrupt

    for opened, size in ((_single, None), (_pool, 1)):
        with opened(pg_dsn, size) as saver:
            _put(saver, "t")
            with pytest.raises(KeyboardInterrupt):
                _sweeper(saver, policy_resolver=fail).sweep()
            assert _locks(pg_dsn) == 0
            assert _sweeper(saver).sweep().deleted_thread_ids == ["t"]


async def test_the_lock_is_released_when_the_sweep_is_cancelled(pg_dsn):
    reached = asyncio.Event()

    async def hang(_thread_id):
        reached.set()
        await asyncio.Event().wait()

    async with AsyncPostgresSaver.from_conn_string(pg_dsn) as single:
        await single.aput(
            {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {}
        )
        async with AsyncConnectionPool(
            pg_dsn, min_size=1, max_size=1, open=False, kwargs={"autocommit": True}
        ) as pool:
            for saver in (single, AsyncPostgresSaver(pool)):
                reached.clear()
                task = asyncio.create_task(_sweeper(saver, policy_resolver=hang).asweep())
                await reached.wait()
                assert _locks(pg_dsn) == 1
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert _locks(pg_dsn) == 0
            assert (await _sweeper(AsyncPostgresSaver(pool)).asweep()).deleted_thread_ids == ["t"]


async def test_an_asynchronous_pool_may_close_each_connection_that_comes_back(pg_dsn):
    with _single(pg_dsn) as saver:
        _put(saver, "t")
    async with AsyncNullConnectionPool(
        pg_dsn, max_size=1, open=False, kwargs={"autocommit": True}
    ) as pool:
        result = await _sweeper(AsyncPostgresSaver(pool)).asweep()
    assert result.deleted_thread_ids == ["t"]
    assert _locks(pg_dsn) == 0


_HOLD = """
import sys, time
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper

def hang(*_):
    print("held", flush=True)
    sys.stdin.read()

with PostgresSaver.from_conn_string(sys.argv[1]) as saver:
    TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=1), enable_coordination=True,
               on_before_delete=hang, clock=lambda: time.time() + 3600).sweep()
"""


@pytest.mark.parametrize("through", ["direct", "pgbouncer"])
def test_a_killed_instance_blocks_nobody(pg_dsn, through):
    with _single(pg_dsn) as saver:
        _put(saver, "t")
        if through == "pgbouncer":
            with pgbouncer.pgbouncer(pg_dsn, pool_size=1) as dsn:
                _kill_a_holder(dsn)
                with ConnectionPool(dsn, min_size=1, kwargs={"autocommit": True}) as pool:
                    result = _sweeper(PostgresSaver(pool)).sweep()
        else:
            _kill_a_holder(pg_dsn)
            _until(lambda: _locks(pg_dsn) == 0)
            result = _sweeper(saver).sweep()
    assert result.deleted_thread_ids == ["t"]


def _kill_a_holder(dsn):
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout.readline() == b"held\n"
        process.kill()


def _until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_schemas_of_one_database_do_not_block_each_other(pg_dsn):
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA IF EXISTS second CASCADE")
        conn.execute("CREATE SCHEMA second")
    elsewhere = psycopg.conninfo.make_conninfo(pg_dsn, options="-c search_path=second")
    with _single(pg_dsn) as one, _single(elsewhere) as two:
        two.setup()
        _put(one, "t")
        _put(two, "t")
        inner = []
        hook = lambda *_: inner.append(_sweeper(two).sweep())  # noqa: E731
        assert _sweeper(one, on_before_delete=hook).sweep().deleted_thread_ids == ["t"]
    assert inner[0].deleted_thread_ids == ["t"]


def test_a_pool_of_one_still_serves_the_graph_while_the_lock_is_held(pg_dsn):
    with _pool(pg_dsn, 1) as saver:
        _put(saver, "t")
        hook = lambda *_: _put(saver, "from the graph")  # noqa: E731
        assert "t" in _sweeper(saver, on_before_delete=hook).sweep().deleted_thread_ids


@pytest.mark.parametrize("safe_delete", [True, False])
def test_sweepers_without_coordination_delete_and_report_each_thread_once(pg_dsn, safe_delete):
    ids = [f"thread-{number}" for number in range(300)]
    fired = []
    with _pool(pg_dsn, 8) as saver:
        _put(saver, *ids)

        async def race():
            sweepers = [
                TTLSweeper(
                    saver,
                    POLICY,
                    safe_delete=safe_delete,
                    batch_size=7,
                    clock=_later,
                    on_after_delete=lambda thread_id, _reason: fired.append(thread_id),
                )
                for _ in range(4)
            ]
            return await asyncio.gather(*(sweeper.asweep() for sweeper in sweepers))

        results = asyncio.run(race())
    assert sorted(thread_id for one in results for thread_id in one.deleted_thread_ids) == sorted(
        ids
    )
    assert sorted(fired) == sorted(ids)
    assert all(one.errors == {} for one in results)
    kept = {reason for one in results for reason in one.kept.values()}
    assert kept <= {KeepReason.BUSY, KeepReason.GONE}


def test_a_backend_without_a_shared_lock_warns_once_and_sweeps(caplog):
    with caplog.at_level(logging.WARNING):
        sweeper = _sweeper(InMemorySaver())
        sweeper.sweep()
        sweeper.sweep()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "enable_coordination has no effect for InMemorySaver"
    ]
