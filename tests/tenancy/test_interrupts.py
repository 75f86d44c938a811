"""Interrupts at every point, and errors in a pipeline of the caller's: what is left behind."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus

from langgraph_ephemeral_checkpointer.errors import StorageUnavailableError
from langgraph_ephemeral_checkpointer.tenancy import (
    AsyncTenantPostgresSaver,
    TenantPostgresSaver,
    wire,
)
from tests.support.tenant_graphs import META, at, checkpoint, put


@lru_cache
def _points(code: Any) -> frozenset[int]:
    """Where a signal that came a moment before is handled: as a function begins, behind calls."""
    found = [*dis.get_instructions(code)]
    return frozenset(
        after.offset
        for before, after in pairwise(found)
        if before.opname in {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX"}
    )


class _InterruptedAt:
    """Raises KeyboardInterrupt in a module at the n-th point where Python looks for signals."""

    def __init__(self, module: Any, n: int) -> None:
        self._file = module.__file__
        self._left = n
        self.done = False

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        frame.f_trace_opcodes = True
        points = _points(frame.f_code)

        def within(frame: Any, event: str, arg: Any) -> Any:
            if event == "opcode" and frame.f_lasti in points and not self.done:
                self._left -= 1
                if not self._left:
                    self.done = True
                    raise KeyboardInterrupt
            return within

        return within


def _interrupted(call: Callable[[], Any], module: Any, n: int) -> bool:
    """Run a call with an interrupt at the n-th point; False where it has fewer."""
    interrupt, before = _InterruptedAt(module, n), sys.gettrace()
    sys.settrace(interrupt)
    try:
        with suppress(KeyboardInterrupt):
            call()
    finally:
        sys.settrace(before)
    return interrupt.done


@pytest.mark.parametrize("name", ["put", "get_tuple"])
def test_an_interrupt_on_the_wire_leaves_the_connection_at_rest_or_closed(
    make_saver: Any, app_dsn: str, schema: str, superuser: Any, name: str
) -> None:
    """In pipeline mode the next call would wait for ever, or be refused."""
    points, place, n = 1, at("t"), 0
    with make_saver() as other:
        other.setup()
        other.conn.execute("SET lock_timeout = '5s'")
        conn = psycopg.connect(app_dsn, autocommit=True)
        while True:
            saver = TenantPostgresSaver(conn, schema=schema, keep_checkpoints=1)
            place = put(saver, "t", n + 1, config=place)
            place = put(saver, "t", n + 2, config=place)
            n += 3
            calls: dict[str, Any] = {
                "put": partial(put, saver, "t", n, config=place),
                "get_tuple": partial(saver.get_tuple, at("t")),
            }
            if not _interrupted(calls[name], wire, points):
                break
            if not conn.closed:
                states = (conn.info.transaction_status, conn.pgconn.pipeline_status)
                assert states == (TransactionStatus.IDLE, PipelineStatus.OFF), f"at {points}"
                saver.prune(["t"])
            other.prune(["t"])  # nobody has the thread's lock
            assert len([*other.list(at("t"))]) == 1
            if conn.closed:
                conn = psycopg.connect(app_dsn, autocommit=True)
            points += 1
        conn.close()
    assert points > 10


def _hold(superuser: Any, saver: Any) -> None:
    superuser.execute("SELECT pg_advisory_lock(%s::bigint)", [saver.names.key("default", "t")])


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_call_that_fails_in_a_pipeline_of_the_callers_leaves_autocommit_as_it_was(
    app_dsn: str, schema: str, superuser: Any, autocommit: bool
) -> None:
    """Where it stays on, nothing that the caller does afterwards can be rolled back."""
    with psycopg.connect(app_dsn, autocommit=autocommit) as conn:
        saver = TenantPostgresSaver(conn, schema=schema, keep_checkpoints=1)
        place = put(saver, "t", 1)
        conn.execute("SET lock_timeout = '20ms'")
        conn.commit()
        _hold(superuser, saver)
        for call in (lambda: put(saver, "t", 2, config=place), lambda: saver.delete_thread("t")):
            with conn.pipeline(), pytest.raises(StorageUnavailableError, match="lock timeout"):
                call()
            assert not conn.closed
            assert conn.autocommit is autocommit
            assert conn.info.transaction_status == TransactionStatus.IDLE
        superuser.execute("SELECT pg_advisory_unlock_all()")
        put(saver, "t", 3, config=place)
        assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(3)["id"]


@pytest.mark.parametrize("autocommit", [True, False])
async def test_so_does_an_asynchronous_one(
    app_dsn: str, schema: str, superuser: Any, autocommit: bool
) -> None:
    async with await psycopg.AsyncConnection.connect(app_dsn, autocommit=autocommit) as conn:
        saver = AsyncTenantPostgresSaver(conn, schema=schema, keep_checkpoints=1)
        made = checkpoint(1)
        await saver.aput(at("t"), made, META, made["channel_versions"])
        await conn.execute("SET lock_timeout = '20ms'")
        await conn.commit()
        _hold(superuser, saver)
        async with conn.pipeline():
            with pytest.raises(StorageUnavailableError, match="lock timeout"):
                await saver.adelete_thread("t")
        superuser.execute("SELECT pg_advisory_unlock_all()")
        assert not conn.closed
        assert conn.autocommit is autocommit
        await saver.adelete_thread("t")
        assert await saver.aget_tuple(at("t")) is None
