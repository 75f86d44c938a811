"""One sweep of a tenant saver, in each way in which it can be called."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_ephemeral_checkpointer import SweepResult, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver

WAYS = ("sweep", "asweep", "asweep of a synchronous saver", "sweep on a pool", "asweep on a pool")
NOW = 1_800_000_000.0
DAY = 86_400
IDLE = TTLPolicy(idle_ttl_seconds=DAY)


class Sweeping:
    """Sweeps in one way.

    Args:
        way: One of ``WAYS``.
        dsn: How to reach the server.
        schema: Where the tables are.
    """

    def __init__(self, way: str, dsn: str, schema: str) -> None:
        self.way = way
        self.dsn = dsn
        self.schema = schema
        self.tenant_seen: Any = None
        """Gives the tenant in scope while the sweep goes on."""

    def __call__(
        self,
        policy: TTLPolicy = IDLE,
        *,
        scope: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
        sweeper: Any = TTLSweeper,
        **options: Any,
    ) -> SweepResult:
        """Connect, sweep once at ``NOW``, and disconnect."""
        options.setdefault("clock", lambda: NOW)

        def made(saver: Any) -> Any:
            self.tenant_seen = saver.current_tenant
            return sweeper(saver, policy, **options)

        def scoped(saver: Any) -> Any:
            return nullcontext() if scope is None else saver.tenant_scope(scope)

        saver_options = {"schema": self.schema, "tenant": tenant}

        async def in_loop() -> SweepResult:
            if self.way == "asweep of a synchronous saver":
                with self._saver(saver_options) as saver, scoped(saver):
                    return await made(saver).asweep(dry_run=dry_run)
            async with self._async_saver(saver_options) as saver:
                with scoped(saver):
                    return await made(saver).asweep(dry_run=dry_run)

        if self.way.startswith("asweep"):
            return asyncio.run(in_loop())
        with self._saver(saver_options) as saver, scoped(saver):
            return made(saver).sweep(dry_run=dry_run)

    def _saver(self, options: Any) -> Any:
        if not self.way.endswith("pool"):
            return TenantPostgresSaver.from_conn_string(self.dsn, **options)
        return _Pooled(ConnectionPool, TenantPostgresSaver, self.dsn, options)

    def _async_saver(self, options: Any) -> Any:
        if not self.way.endswith("pool"):
            return AsyncTenantPostgresSaver.from_conn_string(self.dsn, **options)
        return _Pooled(AsyncConnectionPool, AsyncTenantPostgresSaver, self.dsn, options)


class _Pooled:
    def __init__(self, pool: Any, saver: Any, dsn: str, options: Any) -> None:
        self._make = lambda: pool(dsn, min_size=1, max_size=1, open=False)
        self._saver = saver
        self._options = options

    def __enter__(self) -> Any:
        self._pool = self._make()
        self._pool.open()
        return self._saver(self._pool, **self._options)

    def __exit__(self, *_: Any) -> None:
        self._pool.close()

    async def __aenter__(self) -> Any:
        self._pool = self._make()
        await self._pool.open()
        return self._saver(self._pool, **self._options)

    async def __aexit__(self, *_: Any) -> None:
        await self._pool.close()
