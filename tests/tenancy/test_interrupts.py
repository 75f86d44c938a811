"""Interrupts at every point, and errors in a pipeline of the caller's: what is left behind."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus

from langgraph_ephemeral_checkpointer.drivers import transactions
from langgraph_ephemeral_checkpointer.errors import StorageError, StorageUnavailableError
from langgraph_ephemeral_checkpointer.tenancy import (
    AsyncTenantPostgresSaver,
    TenantPostgresSaver,
    sending,
    wire,
)
from langgraph_ephemeral_checkpointer.tenancy import saver as saver_module
from tests.support.tenant_graphs import META, at, checkpoint, put


@lru_cache
def _points(code: Any) -> frozenset[int]:
    """Where a signal that came a moment before is handled: as a function begins, behind calls.

    Python handles it as a part of the call. So what comes behind does not count where it has
    another handler than the call: a lock that is about to be released would never be.
    """
    found = dis.Bytecode(code)

    def handler(offset: int) -> int | None:
        targets = [one.target for one in found.exception_entries if one.start <= offset < one.end]
        return targets[-1] if targets else None

    return frozenset(
        after.offset
        for before, after in pairwise(found)
        if before.opname in {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX"}
        and handler(before.offset) == handler(after.offset)
    )


class _InterruptedAt:
    """Raises KeyboardInterrupt at points where Python looks for signals, in some modules.

    Args:
        modules: Where to count points.
        counts: So many points before the first interrupt, and from each to the next.
    """

    def __init__(self, modules: Iterable[Any], *counts: int) -> None:
        self._files = {module.__file__ for module in modules}
        self._counts = [*counts]
        self.interrupts = 0

    def trace(self, frame: Any, event: str, arg: Any) -> Any:
        """What to tell ``sys.settrace``."""
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        points = _points(frame.f_code)

        def within(frame: Any, event: str, arg: Any) -> Any:
            if event == "opcode" and frame.f_lasti in points and self._counts:
                self._counts[0] -= 1
                if not self._counts[0]:
                    del self._counts[0]
                    self.interrupts += 1
                    raise KeyboardInterrupt
            return within

        return within

    def profile(self, frame: Any, event: str, arg: Any) -> None:
        """What to tell ``sys.setprofile``: a tracer that raises is switched off by Python."""
        if self._counts and sys.gettrace() is None:
            sys.settrace(self.trace)
            while frame:
                frame.f_trace = self.trace(frame, "call", None)
                frame = frame.f_back


def _interrupted(call: Callable[[], Any], modules: Iterable[Any], *counts: int) -> int:
    """Run a call that is interrupted, and return how often it was."""
    interrupt, before = _InterruptedAt(modules, *counts), (sys.gettrace(), sys.getprofile())
    sys.setprofile(interrupt.profile)
    sys.settrace(interrupt.trace)
    try:
        with suppress(KeyboardInterrupt, StorageError):
            call()
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])
    return interrupt.interrupts


_PARTS = ("connection", "cursor", "transaction", "_pipeline", "_pipeline_base")
_PSYCOPG = [found for part in _PARTS if (found := sys.modules.get(f"psycopg.{part}"))]


def _check_at_rest_or_closed(conn: psycopg.Connection[Any], first: int) -> None:
    if not conn.closed:
        states = (conn.info.transaction_status, conn.pgconn.pipeline_status)
        assert states == (TransactionStatus.IDLE, PipelineStatus.OFF), f"at {first}"
        assert conn.autocommit, f"at {first}"
        assert conn.execute("SELECT 1").fetchone() == (1,), f"at {first}"


@pytest.mark.parametrize("then", [(), (1,), (4,)], ids=["once", "twice", "twice, later"])
@pytest.mark.parametrize("name", ["put", "prune"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_leave_the_connection_at_rest_or_closed(
    make_saver: Any, app_dsn: str, schema: str, name: str, then: tuple[int, ...]
) -> None:
    """In pipeline mode the next call would wait for ever, or be refused.

    What is raised as a generator is let go is written to stderr by Python, and lost.
    """
    modules = (*_PSYCOPG, transactions, saver_module, sending, wire)
    first, place, n = 1, at("t"), 0
    connect = partial(psycopg.connect, app_dsn, autocommit=True)
    with make_saver() as other, ExitStack() as stack:
        other.setup()
        other.conn.execute("SET lock_timeout = '5s'")
        conn = stack.enter_context(closing(connect()))
        while True:
            saver = TenantPostgresSaver(conn, schema=schema, keep_checkpoints=1)
            place = put(saver, "t", n + 1, config=place)
            n += 2
            calls: dict[str, Any] = {
                "put": partial(put, saver, "t", n, config=place),
                "prune": partial(saver.prune, ["t"]),
            }
            if not _interrupted(calls[name], modules, first, *then):
                break
            _check_at_rest_or_closed(conn, first)
            if conn.closed:
                conn = stack.enter_context(closing(connect()))
            other.prune(["t"])  # nobody has the thread's lock
            assert len([*other.list(at("t"))]) == 1
            first += 1
    assert first > 10


@pytest.mark.parametrize("then", [(), (1,), (2,)], ids=["once", "twice", "twice, later"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_delete_that_is_interrupted_is_done_whole_or_not_at_all(
    make_saver: Any, app_dsn: str, schema: str, superuser: Any, then: tuple[int, ...]
) -> None:
    """The end of psycopg's pipeline commits what was sent before the interrupt."""
    found: list[bool] = []
    with make_saver() as other:
        other.setup()
        counts = [f"(SELECT count(*) FROM {schema}.{table})" for table in other.names.tables]
        while True:
            with psycopg.connect(app_dsn, autocommit=True) as conn:
                saver = TenantPostgresSaver(conn, schema=schema)
                other.put_writes(put(other, "t", 1), [("log", 2)], "task")
                delete = partial(saver.delete_thread, "t")
                modules = (*_PSYCOPG, transactions, saver_module, sending)
                if not _interrupted(delete, modules, len(found) + 1, *then):
                    break
                _check_at_rest_or_closed(conn, len(found) + 1)
            # In one statement: the server may still be at it where the connection was closed.
            rows = superuser.execute(f"SELECT {', '.join(counts)}").fetchone()
            assert rows in {(0, 0, 0), (1, 1, 1)}, f"at {len(found) + 1}"
            found.append(any(rows))
    assert set(found) == {True, False}


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
