"""Savers that share a connection: none works within what another has begun."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg

from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from tests.support.tenant_graphs import META, at, checkpoint, put

TURNS = 25


def test_two_savers_on_one_connection_use_it_in_turn(app_dsn: str, schema: str) -> None:
    """A transaction of one would take in the saves of the other, and its tenant."""
    wrong: list[Any] = []
    with psycopg.connect(app_dsn, autocommit=True) as conn:

        def work(tenant: str) -> None:
            saver = TenantPostgresSaver(conn, schema=schema, tenant=tenant, keep_checkpoints=1)
            try:
                for n in range(TURNS):
                    place = put(saver, "t", n, {"a": [tenant, n]})
                    saver.put_writes(place, [("a", n)], "task")
                    saver.prune(["t"])
                    found = saver.get_tuple(at("t"))
                    if found is None or found.checkpoint["channel_values"] != {"a": [tenant, n]}:
                        wrong.append((tenant, n, found))
            except Exception as error:  # noqa: BLE001 - the test shows it
                wrong.append(error)

        TenantPostgresSaver(conn, schema=schema).setup()
        threads = [
            threading.Thread(target=work, args=(f"tenant {n}",), daemon=True) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), wrong
    assert wrong == []


async def test_so_do_two_asynchronous_ones(app_dsn: str, schema: str) -> None:
    async with await psycopg.AsyncConnection.connect(app_dsn, autocommit=True) as conn:

        async def work(tenant: str) -> None:
            saver = AsyncTenantPostgresSaver(conn, schema=schema, tenant=tenant, keep_checkpoints=1)
            for n in range(TURNS):
                made = checkpoint(n, {"a": [tenant, n]})
                place = await saver.aput(at("t"), made, META, made["channel_versions"])
                await saver.aput_writes(place, [("a", n)], "task")
                await saver.aprune(["t"])
                found = await saver.aget_tuple(at("t"))
                assert found.checkpoint["channel_values"] == {"a": [tenant, n]}

        await AsyncTenantPostgresSaver(conn, schema=schema).setup()
        async with asyncio.timeout(60):
            await asyncio.gather(*(work(f"tenant {n}") for n in range(4)))
