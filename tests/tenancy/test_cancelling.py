"""Calls that are cancelled at every point at which they wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import AsyncExitStack, suppress
from typing import Any

import psycopg
import psycopg.waiting
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver
from tests.support.tenant_graphs import META, at, checkpoint

LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"

MENDS = hasattr(psycopg.waiting, "MAX_BUSY_TIME")
"""Whether psycopg is as new as that: the oldest stumbles over a cancellation by itself."""


class CancelledAt:
    """An awaitable whose task is cancelled when it waits for the n-th time."""

    def __init__(self, work: Any, n: int) -> None:
        self._work = work
        self._n = n
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        send: Any = lambda: steps.send(None)  # noqa: E731
        while True:
            try:
                waiting = send()
            except StopIteration as end:
                return end.value
            self.waits += 1
            if self.waits == self._n:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waiting
            except BaseException as error:  # noqa: BLE001 - it is the work's to handle
                send = lambda error=error: steps.throw(error)  # noqa: E731
            else:
                send = lambda: steps.send(None)  # noqa: E731


async def _put(saver: Any, n: int) -> None:
    made = checkpoint(n, {"a": n, "b": n})
    await saver.aput(at("t"), made, META, made["channel_versions"])


CALLS: dict[str, Any] = {
    "aput": _put,
    "aget_tuple": lambda saver, n: saver.aget_tuple(at("t")),
    "aput_writes": lambda saver, n: saver.aput_writes(at("t", id_="x"), [("a", n)], "task"),
    "aprune": lambda saver, n: saver.aprune(["t"]),
    "acopy_thread": lambda saver, n: saver.acopy_thread("t", f"copy {n}"),
    "adelete_thread": lambda saver, n: saver.adelete_thread("t"),
    "vacuum": lambda saver, n: saver.vacuum(1),
    "asweep": lambda saver, n: TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=1)).asweep(),
}


async def _awaited(attempt: CancelledAt) -> Any:
    return await attempt


if MENDS:

    @pytest.mark.parametrize("autocommit", [True, False])
    @pytest.mark.parametrize("name", CALLS)
    async def test_a_cancelled_call_leaves_the_connection_as_it_was(
        app_dsn: str, schema: str, name: str, autocommit: bool, monkeypatch: Any
    ) -> None:
        """No transaction stays open, into which later saves would go and never be committed."""
        # psycopg then yields to the loop also where there is nothing to wait for.
        monkeypatch.setattr(psycopg.waiting, "MAX_BUSY_TIME", 0)
        call = CALLS[name]
        connect = psycopg.AsyncConnection.connect
        conn = await connect(app_dsn, autocommit=autocommit)
        saver = AsyncTenantPostgresSaver(conn, schema=schema)
        await saver.setup()
        n, cancelled = 1, 0
        async with await connect(app_dsn, autocommit=True) as watch, AsyncExitStack() as stack:
            stack.push_async_callback(lambda: conn.close())
            while True:
                for more in (1, 2):
                    await _put(saver, 1000 + 2 * n + more)
                attempt = CancelledAt(call(saver, n), n)
                with suppress(asyncio.CancelledError):
                    await asyncio.create_task(_awaited(attempt))
                states = (conn.info.transaction_status, conn.pgconn.pipeline_status)
                assert states == (TransactionStatus.IDLE, PipelineStatus.OFF), f"at wait {n}"
                assert conn.autocommit is autocommit
                deadline = time.monotonic() + 10  # a closed session ends in its own time
                while await (await watch.execute(LOCKS)).fetchone() != (0,):
                    assert time.monotonic() < deadline, f"at wait {n}"
                if attempt.waits < n:
                    break
                cancelled += 1
                n += 1
            assert cancelled > 0
            await _put(saver, 5000)
            await conn.close()
        async with AsyncTenantPostgresSaver.from_conn_string(app_dsn, schema=schema) as other:
            found = await other.aget_tuple(at("t"))
            assert found.checkpoint["channel_values"] == {"a": 5000, "b": 5000}
