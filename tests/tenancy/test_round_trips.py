"""How often a call waits for the server, counted on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from tests.support.relay import Calls, Relay, relay
from tests.support.tenant_graphs import HAS_DELTA, META, at, checkpoint, config, delta_graph, put


@pytest.fixture
def wire(app_dsn: str) -> Iterator[Relay]:
    with relay(app_dsn) as made:
        yield made


def _trips(wire: Relay, call: Any) -> int:
    before = wire.trips
    call()
    return wire.trips - before


def test_the_relay_can_count(wire: Relay) -> None:
    with psycopg.connect(wire.dsn, autocommit=True) as conn:
        assert _trips(wire, lambda: conn.execute("SELECT 1")) == 1

        def classic() -> None:
            with conn.transaction():
                conn.execute("SELECT 1")
                conn.execute("SELECT 2")

        assert _trips(wire, classic) == 4


@pytest.mark.parametrize("keep", [None, 1, 3])
@pytest.mark.parametrize("prepare_threshold", [None, 0, 5])
def test_a_save_is_one_round_trip(
    wire: Relay, schema: str, keep: int | None, prepare_threshold: int | None
) -> None:
    """Pruning included; also the first saves of a thread, and large ones."""
    with TenantPostgresSaver.from_conn_string(
        wire.dsn, schema=schema, keep_checkpoints=keep, prepare_threshold=prepare_threshold
    ) as saver:
        saver.setup()
        for n in range(12):
            values = {"log": ["x" * 10_000 * n], "n": n}
            assert _trips(wire, lambda n=n, values=values: put(saver, "t", n, values)) == 1
        place = at("t", id_=checkpoint(11)["id"])
        assert _trips(wire, lambda: saver.put_writes(place, [("log", 1), ("n", 2)], "task")) == 1
        assert _trips(wire, lambda: saver.get_tuple(at("t"))) == 1
        assert _trips(wire, lambda: [*saver.list(at("t"))]) == 1
        history = {"config": at("t"), "channels": ["log", "n"]}
        assert _trips(wire, lambda: saver.get_delta_channel_history(**history)) == 1
        assert _trips(wire, lambda: saver.delete_thread("t")) == 1


def test_a_save_without_autocommit_is_one_round_trip_too(wire: Relay, schema: str) -> None:
    with psycopg.connect(wire.dsn) as conn:
        saver = TenantPostgresSaver(conn, schema=schema, keep_checkpoints=1)
        saver.setup()
        assert [_trips(wire, lambda n=n: put(saver, "t", n)) for n in range(5)] == [1] * 5


def test_a_save_through_a_pool_is_one_round_trip_too(wire: Relay, schema: str) -> None:
    for autocommit in (True, False):
        with ConnectionPool(
            wire.dsn, min_size=1, max_size=1, kwargs={"autocommit": autocommit}
        ) as pool:
            saver = TenantPostgresSaver(pool, schema=schema, keep_checkpoints=1)
            saver.setup()
            trips = [_trips(wire, lambda n=n, s=saver: put(s, "t", n)) for n in range(5)]
            assert trips == [1] * 5


@pytest.mark.parametrize("keep", [None, 1, 3])
def test_a_save_that_finds_its_thread_gone_takes_two(
    wire: Relay, schema: str, make_saver: Any, keep: int | None
) -> None:
    with (
        TenantPostgresSaver.from_conn_string(
            wire.dsn, schema=schema, keep_checkpoints=keep
        ) as saver,
        make_saver() as other,
    ):
        place = put(saver, "t", 1, {"a": 1, "b": 1})
        other.delete_thread("t")
        made = checkpoint(2, {"a": 2, "b": 1}, versions={"a": "2", "b": f"{1:032}.1"})
        assert _trips(wire, lambda: saver.put(place, made, META, {"a": "2"})) == 2


async def test_an_asynchronous_save_is_one_round_trip(wire: Relay, schema: str) -> None:
    async with AsyncTenantPostgresSaver.from_conn_string(
        wire.dsn, schema=schema, keep_checkpoints=1
    ) as saver:
        await saver.setup()
        for n in range(8):
            made = checkpoint(n)
            before = wire.trips
            await saver.aput(at("t"), made, META, made["channel_versions"])
            assert wire.trips - before == 1
        before = wire.trips
        await saver.aget_tuple(at("t"))
        assert wire.trips - before == 1


if HAS_DELTA:

    def test_a_save_of_a_delta_thread_is_one_round_trip_too(wire: Relay, schema: str) -> None:
        """From its first save on: whoever makes it knows what it has."""
        with TenantPostgresSaver.from_conn_string(
            wire.dsn, schema=schema, keep_checkpoints=1
        ) as saver:
            saver.setup()
            calls = Calls(saver, wire)
            graph = delta_graph(saver, every=8)
            for turn in range(8):
                graph.invoke({"log": [str(turn)]}, config("t"), durability="sync")
            assert calls.puts == 32
            assert calls.trips_of_puts == 32
