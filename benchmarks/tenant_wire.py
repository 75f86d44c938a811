"""The tenant savers' own pipeline (``tenancy/wire.py``) against psycopg's, near and 1 ms away.

Run as ``python -m benchmarks.tenant_wire --rounds 100``. Both ways take turns in short blocks,
in random order, on connections of their own to the same tables, so that other work on the machine
meets all alike; the relay is a process of its own. A ratio is that of the medians of two
neighbouring blocks: psycopg's time divided by ours.

psycopg's pipeline comes in two forms. Where a save fails as it is committed, psycopg hides the
reason, and the connection is lost; "checked" has a statement more, which checks what is deferred
before that.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from statistics import median, quantiles
from typing import Any

import psycopg
from langgraph.checkpoint.base import empty_checkpoint

from benchmarks.far_away import far_away
from benchmarks.harness import clock
from benchmarks.server import postgres
from benchmarks.tenants import prepare
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.tenancy import (
    AsyncTenantPostgresSaver,
    TenantPostgresSaver,
    asending,
    sending,
)

_DELAYS = (0.0, 0.001)
_WAYS = ("ours", "psycopg", "checked")
_CALLS = ("put", "put, keep 1", "put_writes", "get_tuple")
_BLOCK = 10
_FITS, _BY_CURSORS, _ABY_CURSORS = sending.fits, sending._by_cursors, asending._by_cursors
_CHECK = Statement("SET CONSTRAINTS ALL IMMEDIATE", fetch=False)
_numbers = itertools.count()

Samples = dict[tuple[str, float, str, str], list[list[float]]]


def _relay(pipe: Any, dsn: str, delay: float) -> None:
    with far_away(dsn, delay) as (far, _):
        pipe.send(far)
        pipe.recv()


def _trip(dsn: str) -> float:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as conn:
        return median(clock(lambda: conn.execute("SELECT 1")) for _ in range(500))


@contextmanager
def _delayed(dsn: str, delay: float) -> Iterator[str]:
    """Give a DSN by which a round trip takes longer by the delay, the relay's own time included."""
    if not delay:
        yield dsn
        return
    near, wanted = _trip(dsn), delay
    for _ in range(3):
        with _relayed(dsn, delay) as far:
            delay += wanted - (_trip(far) - near)
    with _relayed(dsn, delay) as far:
        print(f"SELECT 1: {near * 1e6:.0f} us near, {_trip(far) * 1e6:.0f} us far away\n")
        yield far
        print(f"\nSELECT 1: {_trip(dsn) * 1e6:.0f} us near, {_trip(far) * 1e6:.0f} us far away")


@contextmanager
def _relayed(dsn: str, delay: float) -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    relay = context.Process(target=_relay, args=(there, dsn, delay))
    relay.start()
    try:
        yield here.recv()
    finally:
        here.send(None)
        relay.join(10)


def _choose(way: str) -> None:
    module: Any
    for module in (sending, asending):
        module.fits = _FITS if way == "ours" else lambda batch, conn: False
    sending._by_cursors = _checked if way == "checked" else _BY_CURSORS
    asending._by_cursors = _achecked if way == "checked" else _ABY_CURSORS


def _with_check(batch: Any) -> Any:
    return [*batch, _CHECK] if "INSERT" in batch[-1].sql else batch


def _checked(conn: Any, batch: Any) -> Any:
    return _BY_CURSORS(conn, _with_check(batch))[: len(batch)]


async def _achecked(conn: Any, batch: Any) -> Any:
    return (await _ABY_CURSORS(conn, _with_check(batch)))[: len(batch)]


def _where(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def _checkpoint(number: int) -> tuple[Any, Any, Any]:
    version = f"{number + 1:032}.0123456789"
    made = empty_checkpoint()
    made["channel_values"] = {"messages": ["x" * 200] * 10}
    made["channel_versions"] = {"messages": version}
    return made, {"source": "loop", "step": number, "parents": {}}, {"messages": version}


def _block(savers: dict[str, Any], call: str) -> list[float]:
    one, thread_id = savers[call], f"thread-{next(_numbers)}"
    where = one.put(_where(thread_id), *_checkpoint(0))
    where = one.put(where, *_checkpoint(1))
    times = []
    for number in range(_BLOCK):
        made = _checkpoint(number + 2)
        started = time.perf_counter()
        if call == "get_tuple":
            one.get_tuple(_where(thread_id))
        elif call == "put_writes":
            one.put_writes(where, [("messages", "x" * 200), ("branch:to:b", None)], str(number))
        else:
            where = one.put(where, *made)
        times.append(time.perf_counter() - started)
    return times


async def _ablock(savers: dict[str, Any], call: str) -> list[float]:
    one, thread_id = savers[call], f"thread-{next(_numbers)}"
    where = await one.aput(_where(thread_id), *_checkpoint(0))
    where = await one.aput(where, *_checkpoint(1))
    times = []
    for number in range(_BLOCK):
        made = _checkpoint(number + 2)
        started = time.perf_counter()
        if call == "get_tuple":
            await one.aget_tuple(_where(thread_id))
        elif call == "put_writes":
            writes = [("messages", "x" * 200), ("branch:to:b", None)]
            await one.aput_writes(where, writes, str(number))
        else:
            where = await one.aput(where, *made)
        times.append(time.perf_counter() - started)
    return times


def _options(call: str) -> dict[str, Any]:
    keep = None if call in ("put", "put_writes") else 1
    return {"schema": "tenants", "require_rls": True, "keep_checkpoints": keep}


async def _measure(dsns: dict[float, str], rounds: int) -> Samples:
    samples: Samples = {}
    near: dict[tuple[float, str], dict[str, Any]] = {}
    anear: dict[tuple[float, str], dict[str, Any]] = {}
    with ExitStack() as stack:
        async with AsyncExitStack() as astack:
            for delay, way in itertools.product(_DELAYS, _WAYS):
                near[delay, way], anear[delay, way] = {}, {}
                for call in _CALLS:
                    opened = TenantPostgresSaver.from_conn_string(dsns[delay], **_options(call))
                    near[delay, way][call] = stack.enter_context(opened)
                    aopened = AsyncTenantPostgresSaver.from_conn_string(
                        dsns[delay], **_options(call)
                    )
                    anear[delay, way][call] = await astack.enter_async_context(aopened)
            for number in range(rounds + 2):  # the first two prepare and warm
                for delay, call in itertools.product(_DELAYS, _CALLS):
                    for colour in ("sync", "async"):
                        for way in random.sample(_WAYS, len(_WAYS)):
                            _choose(way)
                            if colour == "sync":
                                times = _block(near[delay, way], call)
                            else:
                                times = await _ablock(anear[delay, way], call)
                            if number >= 2:
                                key = (colour, delay, call, way)
                                samples.setdefault(key, []).append(times)
    return samples


def _show(samples: Samples) -> None:
    print("| call | delay, ms | way | median, us | p95, us | ratio: median (quartiles) | of p95 |")
    print("|---|---|---|---|---|---|---|")
    for colour, delay, call in itertools.product(("sync", "async"), _DELAYS, _CALLS):
        ours = samples[colour, delay, call, "ours"]
        for way in _WAYS:
            blocks = samples[colour, delay, call, way]
            ratios = [median(b) / median(a) for a, b in zip(ours, blocks, strict=True)]
            low, middle, high = quantiles(ratios, n=4)
            p95, p95_ours = _p95(blocks), _p95(ours)
            print(
                f"| {colour} {call} | {delay * 1000:g} | {way} "
                f"| {median(itertools.chain.from_iterable(blocks)) * 1e6:.0f} | {p95 * 1e6:.0f} "
                f"| {middle:.3f} ({low:.3f} to {high:.3f}) | {p95 / p95_ours:.2f} |"
            )


def _p95(blocks: list[list[float]]) -> float:
    return quantiles(itertools.chain.from_iterable(blocks), n=20)[-1]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args(argv).rounds
    with postgres() as server, ExitStack() as stack:
        dsn = prepare(server)
        dsns = {delay: stack.enter_context(_delayed(dsn, delay)) for delay in _DELAYS}
        _show(asyncio.run(_measure(dsns, rounds)))


if __name__ == "__main__":
    main()
