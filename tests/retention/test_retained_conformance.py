"""RetainedCheckpointer is a checkpointer: the same conformance results as without it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import ProgressCallbacks
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer


@contextlib.asynccontextmanager
async def _saver(name: str, dsn: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    if name == "memory":
        yield InMemorySaver()
    elif name == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(":memory:") as sqlite:
            yield sqlite
    else:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes")
        async with AsyncPostgresSaver.from_conn_string(dsn) as postgres:
            yield postgres


async def _results(name: str, dsn: str, *, wrapped: bool) -> Any:
    @checkpointer_test(name=f"{name} {wrapped}")
    async def factory() -> Any:
        async with _saver(name, dsn) as saver:
            yield (RetainedCheckpointer(saver, max_age=timedelta(days=30)) if wrapped else saver)

    report = await validate(factory, progress=ProgressCallbacks.quiet())
    assert report.passed_all_base()
    return {
        capability: (result.detected, result.passed, result.tests_passed, result.failures)
        for capability, result in report.results.items()
    }


@pytest.mark.parametrize("name", ["memory", "sqlite", "postgres"])
async def test_same_conformance_results_with_and_without_it(name, pg_dsn):
    with_it = await _results(name, pg_dsn, wrapped=True)
    assert with_it == await _results(name, pg_dsn, wrapped=False)
    assert not with_it["copy_thread"][0]  # which none of the three can do
