"""Behind pgbouncer in transaction mode, prepared statements off."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from langgraph_ephemeral_checkpointer.testing import save_thread
from tests.support import pgbouncer
from tests.support.program import run
from tests.support.tenant_graphs import HAS_DELTA, at, config, delta_graph, plain_graph, put
from tests.support.tenant_sweeping import DAY, IDLE, NOW


@pytest.fixture
def pooled(app_dsn: str) -> Iterator[str]:
    """Two server connections for everybody, so that sessions are mixed up for sure."""
    with pgbouncer.pgbouncer(app_dsn, pool_size=2) as dsn:
        yield dsn


def test_tenants_stay_apart_on_mixed_up_sessions(pooled: str, schema: str) -> None:
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
    with ConnectionPool(pooled, min_size=6, max_size=6, kwargs=options) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, tenant=None, keep_checkpoints=1)
        saver.setup()
        graph = plain_graph(saver)
        found: dict[str, Any] = {}

        def turn(tenant: str) -> None:
            with saver.tenant_scope(tenant):
                for n in range(3):
                    graph.invoke({"log": [f"{tenant}:{n}"]}, config("shared"))
                assert saver.tenants() == [tenant]
                assert len([*saver.list(None)]) == 1
                log = graph.get_state(config("shared")).values["log"]
                found[tenant] = [item for item in log if ":" in item]

        tenants = [f"tenant-{n}" for n in range(6)]
        threads = [threading.Thread(target=turn, args=(tenant,)) for tenant in tenants]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {tenant: [f"{tenant}:{n}" for n in range(3)] for tenant in tenants}
        with pool.connection() as conn:
            query = f"SELECT count(*) FROM {schema}.agent_threads"
            assert conn.execute(query).fetchone() == (0,)


@pytest.fixture
def keepers(maintenance_dsn: str) -> Iterator[str]:
    """A way through the pooler for the role that sees every tenant."""
    with pgbouncer.pgbouncer(maintenance_dsn, pool_size=2) as dsn:
        yield dsn


@contextmanager
def pool_of(dsn: str, schema: str) -> Iterator[TenantPostgresSaver]:
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
    with ConnectionPool(dsn, min_size=4, max_size=4, kwargs=options) as pool:
        yield TenantPostgresSaver(pool, schema=schema, tenant=None)


@contextmanager
def connection_of(dsn: str, schema: str) -> Iterator[TenantPostgresSaver]:
    with TenantPostgresSaver.from_conn_string(
        dsn, schema=schema, tenant=None, prepare_threshold=None
    ) as saver:
        yield saver


OPENED = [pool_of, connection_of]
OLD = NOW - 2 * DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY, max_checkpoints_per_thread=2)


def fill(saver: Any, tenants: Any, threads: int = 5, idle_since: float = OLD) -> None:
    for tenant in tenants:
        with saver.tenant_scope(tenant):
            for n in range(threads):
                save_thread(saver, f"idle {n}", [idle_since - n])
            save_thread(saver, "long", [NOW - n for n in range(5)])
            place = put(saver, "gone", 1)
            saver.delete_thread("gone")
            saver.put_writes(place, [("log", 1)], "task")


def advisory_locks(superuser: Any) -> int:
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    return superuser.execute(query).fetchone()[0]


@pytest.mark.parametrize("opened", OPENED)
def test_one_tenant_is_swept(
    pooled: str, schema: str, make_saver: Any, superuser: Any, opened: Any
) -> None:
    with make_saver(clock=lambda: OLD) as saver:
        fill(saver, ["a", "b"])
    with opened(pooled, schema) as saver, saver.tenant_scope("a"):
        for coordinated in (True, False):
            sweeper = TTLSweeper(
                saver,
                POLICY,
                enable_coordination=coordinated,
                clock=lambda: NOW,
                batch_size=2,
            )
            result = sweeper.sweep()
            assert (result.errors, result.lock_held_elsewhere) == ({}, False)
            if coordinated:
                assert sorted(result.deleted_thread_ids) == [f"idle {n}" for n in range(5)]
                assert (result.pruned_checkpoint_count, result.orphan_count) == (3, 1)
            else:
                assert (result.deleted_thread_ids, result.orphan_count) == ([], 0)
    assert advisory_locks(superuser) == 0
    with make_saver() as saver, saver.tenant_scope("b"):
        assert len({one.config["configurable"]["thread_id"] for one in saver.list(None)}) == 6


@pytest.mark.parametrize("limit", [None, 7])
@pytest.mark.parametrize("opened", OPENED)
def test_every_tenant_is_swept(
    keepers: str, schema: str, make_saver: Any, superuser: Any, opened: Any, limit: Any
) -> None:
    """Coordinated: each batch takes the lock itself, and none is left behind."""
    with make_saver(clock=lambda: OLD) as saver:
        fill(saver, "abc")
    with opened(keepers, schema) as saver:
        sweeper = TTLSweeper(
            saver,
            POLICY,
            enable_coordination=True,
            clock=lambda: NOW,
            max_deletes_per_sweep=limit,
        )
        gone, pruned, orphans = [], 0, 0
        for _ in range(4):
            result = sweeper.sweep()
            assert (result.errors, result.lock_held_elsewhere) == ({}, False)
            gone += result.deleted_thread_ids
            pruned += result.pruned_checkpoint_count
            orphans += result.orphan_count
        assert sorted(gone) == sorted(f"idle {n}" for n in range(5) for _ in "abc")
        assert (pruned, orphans) == (9, 3)
    assert advisory_locks(superuser) == 0


async def test_every_tenant_is_swept_asynchronously(
    keepers: str, schema: str, make_saver: Any, superuser: Any
) -> None:
    with make_saver(clock=lambda: OLD) as saver:
        fill(saver, "abc")
    async with AsyncTenantPostgresSaver.from_conn_string(
        keepers, schema=schema, tenant=None, prepare_threshold=None
    ) as saver:
        sweeper = TTLSweeper(saver, POLICY, enable_coordination=True, clock=lambda: NOW)
        result = await sweeper.asweep()
    assert (result.errors, len(result.deleted_thread_ids)) == ({}, 15)
    assert (result.pruned_checkpoint_count, result.orphan_count) == (9, 3)
    assert advisory_locks(superuser) == 0


@pytest.mark.parametrize("opened", OPENED)
def test_two_instances_never_take_the_same_batch(
    keepers: str, schema: str, make_saver: Any, opened: Any
) -> None:
    """Every thread is reported deleted once, and what a rival's batch held waits its turn."""
    with make_saver() as saver:
        fill(saver, "abc", threads=30)
    gone: list[tuple[str, str]] = []
    kept: set[KeepReason] = set()

    def instance() -> None:
        with opened(keepers, schema) as saver:
            for _ in range(3):
                result = TTLSweeper(
                    saver, IDLE, enable_coordination=True, clock=lambda: NOW, batch_size=3
                ).sweep()
                for tenant, part in result.by_tenant.items():
                    gone.extend((tenant, one) for one in part.deleted_thread_ids)
                    kept.update(part.kept.values())

    threads = [threading.Thread(target=instance) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    instance()
    assert sorted(gone) == sorted((t, f"idle {n}") for t in "abc" for n in range(30))
    assert kept <= {KeepReason.BUSY, KeepReason.GONE}


@pytest.mark.parametrize("opened", OPENED)
def test_a_sweep_is_skipped_while_a_batch_of_another_instance_runs(
    keepers: str, schema: str, make_saver: Any, superuser: Any, opened: Any
) -> None:
    with make_saver() as saver:
        fill(saver, "a")
    with opened(keepers, schema) as saver:
        sweeper = TTLSweeper(saver, IDLE, enable_coordination=True, clock=lambda: NOW)
        with superuser.transaction():
            superuser.execute(
                "SELECT pg_advisory_xact_lock(1279739203::bigint << 32 | "
                f"'{schema}.agent_threads'::regclass::oid::bigint)"
            )
            assert sweeper.sweep().lock_held_elsewhere
        assert len(sweeper.sweep().deleted_thread_ids) == 5


def test_the_command_line_sweeps_every_tenant_through_it(
    keepers: str, schema: str, make_saver: Any, superuser: Any, tmp_path: Any
) -> None:
    """One process after the other on the same server connections; more tenants than it
    takes uses of a statement until psycopg would prepare it."""
    tenants = "abcdefghijkl"
    with make_saver(clock=lambda: OLD) as saver:
        fill(saver, tenants, threads=1, idle_since=time.time() - 3 * DAY)
    words = ["--backend", "tenant-postgres", "--all-tenants", "--schema", schema]
    rules = ["--idle-ttl", "1d", "--coordinate", "--json"]
    for deleted in (12, 0):
        done = run("sweep", *words, *rules, cwd=tmp_path, LGEC_DSN=keepers)
        assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
        told = json.loads(done.stdout)
        assert (len(told["deleted_thread_ids"]), told["errors"]) == (deleted, {})
    assert advisory_locks(superuser) == 0


def test_every_call_works(pooled: str, schema: str) -> None:
    with TenantPostgresSaver.from_conn_string(
        pooled, schema=schema, prepare_threshold=None, keep_checkpoints=2
    ) as saver:
        for n in range(8):
            place = put(saver, "t", n)
            saver.put_writes(place, [("log", n)], "task")
        saver.copy_thread("t", "u")
        saver.prune(["t"])
        assert [len([*saver.list(at(name))]) for name in ("t", "u")] == [1, 2]
        saver.delete_for_runs(["none"])
        saver.delete_thread("u")
        assert saver.vacuum(1) == 1
        assert saver.forget_tenant("default") == 0
        if HAS_DELTA:
            graph = delta_graph(saver, every=3)
            for n in range(4):
                graph.invoke({"log": [str(n)]}, config("d"))
            assert len(graph.get_state(config("d")).values["log"]) == 12


async def test_the_asynchronous_class_works(pooled: str, schema: str) -> None:
    async with AsyncTenantPostgresSaver.from_conn_string(
        pooled, schema=schema, prepare_threshold=None, keep_checkpoints=1, tenant=None
    ) as saver:
        graph = plain_graph(saver)

        async def turn(tenant: str) -> Any:
            with saver.tenant_scope(tenant):
                await graph.ainvoke({"log": [f"{tenant}:"]}, config("t"))
                return (await graph.aget_state(config("t"))).values["log"][0]

        tenants = [f"t{n}" for n in range(5)]
        found = await asyncio.gather(*(turn(tenant) for tenant in tenants))
        assert found == [f"{tenant}:" for tenant in tenants]
