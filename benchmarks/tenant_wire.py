"""The tenant savers' own pipeline (``tenancy/wire.py``) against psycopg's, near and 1 ms away.

Run as ``python -m benchmarks.tenant_wire --rounds 100``. Both ways take turns in short blocks,
in random order, on connections of their own to the same tables, so that other work on the machine
meets both alike; the relay is a process of its own. A ratio is that of the medians of two
neighbouring blocks: psycopg's time divided by ours.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from statistics import median, quantiles
from typing import Any

import psycopg
from langgraph.checkpoint.base import empty_checkpoint

from benchmarks.far_away import far_away
from benchmarks.harness import clock
from benchmarks.server import postgres
from benchmarks.tenants import prepare
from langgraph_ephemeral_checkpointer.tenancy import (
    AsyncTenantPostgresSaver,
    TenantPostgresSaver,
    aio,
    saver,
)

_DELAYS = (0.0, 0.001)
_WAYS = ("ours", "psycopg")
_CALLS = ("put", "put, keep 1", "put_writes", "get_tuple")
_BLOCK = 10
_FITS = saver.fits
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
    fits: Any = _FITS if way == "ours" else lambda batch, conn: False
    saver.fits = aio.fits = fits  # type: ignore[attr-defined]


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
                        for way in random.sample(_WAYS, 2):
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
    print("| call | delay, ms | ours, us: median, p95 | psycopg, us: median, p95 |", end="")
    print(" ratio of medians: median (quartiles) of rounds | ratio of all p95 |")
    print("|---|---|---|---|---|---|")
    for colour, delay, call in itertools.product(("sync", "async"), _DELAYS, _CALLS):
        ours, theirs = (samples[colour, delay, call, way] for way in _WAYS)
        low, middle, high = quantiles(
            [median(b) / median(a) for a, b in zip(ours, theirs, strict=True)], n=4
        )
        cells = []
        p95s = []
        for blocks in (ours, theirs):
            flat = [*itertools.chain.from_iterable(blocks)]
            p95s.append(quantiles(flat, n=20)[-1])
            cells.append(f"{median(flat) * 1e6:.0f}, {p95s[-1] * 1e6:.0f}")
        print(
            f"| {colour} {call} | {delay * 1000:g} | {cells[0]} | {cells[1]} "
            f"| {middle:.3f} ({low:.3f} to {high:.3f}) | {p95s[1] / p95s[0]:.2f} |"
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds: Callable[[], int] = lambda: parser.parse_args(argv).rounds  # noqa: E731
    with postgres() as server, ExitStack() as stack:
        dsn = prepare(server)
        dsns = {delay: stack.enter_context(_delayed(dsn, delay)) for delay in _DELAYS}
        _show(asyncio.run(_measure(dsns, rounds())))


if __name__ == "__main__":
    main()
