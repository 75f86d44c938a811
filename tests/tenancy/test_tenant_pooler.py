"""Behind pgbouncer in transaction mode, prepared statements off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.tenancy import (
    AsyncTenantPostgresSaver,
    TenantPostgresSaver,
)
from tests import pgbouncer
from tests.tenancy.graphs import HAS_DELTA, at, config, delta_graph, plain_graph, put

if pgbouncer.COLLECT:

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
