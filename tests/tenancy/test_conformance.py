"""LangGraph's own conformance suite, on both classes, with and without retention."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

_NAMES = [capability.value for capability in Capability]


class InThreads(BaseCheckpointSaver[str]):
    """The synchronous saver behind the asynchronous names that the suite calls."""

    def __init__(self, inner: Any) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner

    async def aget_tuple(self, config: Any) -> Any:
        return await asyncio.to_thread(self.inner.get_tuple, config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
        for found in await asyncio.to_thread(lambda: [*self.inner.list(config, **options)]):
            yield found

    async def aput(self, *args: Any) -> Any:
        return await asyncio.to_thread(self.inner.put, *args)

    async def aput_writes(self, *args: Any, **more: Any) -> None:
        await asyncio.to_thread(self.inner.put_writes, *args, **more)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.inner.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        await asyncio.to_thread(self.inner.delete_for_runs, run_ids)

    async def acopy_thread(self, source: str, target: str) -> None:
        await asyncio.to_thread(self.inner.copy_thread, source, target)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self.inner.prune(thread_ids, strategy=strategy))


async def _report(make: Callable[[], Any]) -> Any:
    @checkpointer_test(name="tenant saver")
    async def registered() -> AsyncIterator[Any]:
        async with make() as saver:
            yield saver

    return await validate(registered)


@pytest.mark.parametrize("name", _NAMES)
async def test_async_class_passes_the_capability(name: str, async_report: Any) -> None:
    result = async_report.results[name]
    assert result.detected
    assert result.passed, result.failures


_OPTIONS = {"plain": {}, "retention": {"message_retention": timedelta(days=30)}}


@pytest.fixture(scope="module", params=_OPTIONS)
def async_report(request: pytest.FixtureRequest, tenant_database: str) -> Any:
    from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver

    return asyncio.run(
        _report(
            lambda: AsyncTenantPostgresSaver.from_conn_string(
                tenant_database, schema="conformance_a", **_OPTIONS[request.param]
            )
        )
    )


@pytest.fixture(scope="module", params=_OPTIONS)
def sync_report(request: pytest.FixtureRequest, tenant_database: str) -> Any:
    from contextlib import asynccontextmanager

    from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver

    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        options: Any = {"schema": "conformance_s", **_OPTIONS[request.param]}
        with TenantPostgresSaver.from_conn_string(tenant_database, **options) as s:
            yield InThreads(s)

    return asyncio.run(_report(make))


@pytest.mark.parametrize("name", _NAMES)
def test_sync_class_passes_the_capability(name: str, sync_report: Any) -> None:
    result = sync_report.results[name]
    assert result.detected
    assert result.passed, result.failures


def test_the_whole_base_passes(async_report: Any) -> None:
    assert async_report.passed_all_base()


def test_the_whole_base_passes_on_the_sync_class(sync_report: Any) -> None:
    assert sync_report.passed_all_base()
