"""Functions, operators and types that somebody planted where the search path looks first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from langgraph_ephemeral_checkpointer import TTLPolicy
from langgraph_ephemeral_checkpointer.sweeps.audit import AuditLog
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from tests.support.planted import path_of, plant
from tests.support.tenant_graphs import (
    HAS_DELTA,
    META,
    at,
    checkpoint,
    config,
    delta_graph,
    everything_graph,
    put,
    say,
)
from tests.support.tenant_sweeping import DAY, NOW, Sweeping


@pytest.fixture(scope="module")
def planted(postgres_database: str) -> Iterator[str]:
    schema = "planted_for_tenants"
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        plant(conn, schema)
        yield schema
        conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


@pytest.fixture(params=["first", "only"])
def path(request: pytest.FixtureRequest, planted: str) -> str:
    """Before everything else; or behind pg_catalog, where exact matches are preferred."""
    return f"{planted},pg_catalog,public" if request.param == "first" else planted


@pytest.fixture
def dsn(app_dsn: str, path: str) -> str:
    return path_of(app_dsn, path)


@pytest.mark.parametrize(
    "call",
    [
        "SELECT count(*) FROM pg_class",
        "SELECT set_config('a.b', 'c', true)",
        "SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text",
    ],
)
def test_the_traps_work(postgres_database: str, planted: str, call: str) -> None:
    with (
        psycopg.connect(path_of(postgres_database, f"{planted},pg_catalog")) as conn,
        pytest.raises(psycopg.errors.RaiseException, match="planted"),
    ):
        conn.execute(call)


def test_an_exact_match_behind_pg_catalog_is_a_trap_too(
    postgres_database: str, planted: str
) -> None:
    with (
        psycopg.connect(path_of(postgres_database, planted)) as conn,
        pytest.raises(psycopg.errors.RaiseException, match="planted"),
    ):
        conn.execute("SELECT unnest('{a}'::text[])")


def _runs(saver: Any, thread: str) -> None:
    graph = everything_graph(saver)
    graph.invoke(say("hello"), config(thread))
    [*graph.get_state_history(config(thread))]
    if HAS_DELTA:
        for n in range(4):
            delta_graph(saver, every=3).invoke({"log": [str(n)]}, config(f"{thread}-delta"))


def _everything(saver: Any) -> None:
    """Every call of the saver that reaches the database."""
    _runs(saver, "t")
    for n in range(4):
        place = put(saver, "u", n)
        saver.put_writes(place, [("log", n)], "task")
    saver.put_writes(place, [("__interrupt__", n)], "task")
    assert saver.get_tuple(place).pending_writes
    saver.put({**at("u")}, checkpoint(9), {**META, "run_id": "r"}, {})
    assert [*saver.list(None, filter={"source": "loop", "step": 1}, limit=50)]
    [*saver.list(at("u"), before=place)]
    saver.get_delta_channel_history(config=at("u"), channels=["log"])
    saver.copy_thread("t", "copied")
    saver.prune(["t", "copied"])
    saver.delete_for_runs(["r"])
    saver.purge_messages(timedelta(seconds=1), clock=lambda: NOW)
    assert saver.tenants() == ["acme"]
    saver.delete_thread("copied")
    put(saver, "u", 1)
    assert saver.vacuum(1) >= 1
    put(saver, "u", 1)
    with saver.tenant_scope("acme"):
        assert saver.forget_tenant() >= 1


@pytest.mark.parametrize("keep", [None, 1, 2])
@pytest.mark.parametrize("prepare_threshold", [None, 0])
def test_the_synchronous_saver_calls_none(
    dsn: str, schema: str, keep: int | None, prepare_threshold: int | None
) -> None:
    """The tables are made under that path, too."""
    options: Any = {"schema": schema, "tenant": "acme", "keep_checkpoints": keep}
    with TenantPostgresSaver.from_conn_string(
        dsn, prepare_threshold=prepare_threshold, **options
    ) as saver:
        _everything(saver)


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("joined", [True, False])
def test_it_calls_none_on_a_connection_of_the_caller(
    dsn: str, path: str, schema: str, autocommit: bool, joined: bool
) -> None:
    """Whose path is as it was, afterwards."""
    with psycopg.connect(dsn, autocommit=autocommit) as conn:
        saver = TenantPostgresSaver(conn, schema=schema, tenant="acme", keep_checkpoints=1)
        saver.setup()
        if joined:
            with conn.transaction():
                _everything(saver)
                assert conn.execute("SHOW search_path").fetchone()[0].replace(" ", "") == path
        else:
            _everything(saver)
        assert conn.execute("SHOW search_path").fetchone()[0].replace(" ", "") == path


async def test_the_asynchronous_saver_calls_none(dsn: str, schema: str) -> None:
    async with AsyncTenantPostgresSaver.from_conn_string(
        dsn, schema=schema, tenant="acme", keep_checkpoints=1
    ) as saver:
        await everything_graph(saver).ainvoke(say("hello"), config("t"))
        for n in range(3):
            made = checkpoint(n)
            place = await saver.aput(at("u"), made, META, made["channel_versions"])
            await saver.aput_writes(place, [("log", n)], "task")
        assert [one async for one in saver.alist(None)]
        await saver.acopy_thread("t", "copied")
        await saver.aprune(["t", "copied"])
        await saver.purge_messages(timedelta(seconds=1), clock=lambda: NOW)
        await saver.vacuum(1)
        assert await saver.tenants() == ["acme"]


@pytest.mark.parametrize("way", ["sweep", "asweep", "sweep on a pool"])
def test_a_sweep_calls_none(
    make_saver: Any, maintenance_dsn: str, schema: str, path: str, way: str, tmp_path: Path
) -> None:
    """As the role that sees every tenant; with deletes, trims, orphans, sizes and the lock."""
    with make_saver(tenant=None, clock=lambda: NOW - 2 * DAY) as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                for n in range(4):
                    place = put(saver, "idle", n)
                saver.put_writes(place, [("__interrupt__", n)], "task")
                put(saver, "idle too", 1)
                for n in range(4):
                    put(saver, "long", n, config=at("long"))
                saver.put_writes(at("gone", id_=checkpoint(1)["id"]), [("log", 1)], "task")
    sweeping = Sweeping(way, path_of(maintenance_dsn, path), schema)
    log = AuditLog(tmp_path / "audit.jsonl")
    trim = TTLPolicy(idle_ttl_seconds=10**10, max_checkpoints_per_thread=1)
    for dry_run in (True, False):
        trimmed = sweeping(trim, audit_log=log, enable_coordination=True, dry_run=dry_run)
        assert trimmed.errors == {}
        assert trimmed.pruned_checkpoint_count == 12
    swept = sweeping(
        TTLPolicy(idle_ttl_seconds=DAY, hard_age_ttl_seconds=2 * DAY, interrupted_ttl_seconds=DAY),
        audit_log=log,
        enable_coordination=True,
    )
    assert swept.errors == {}
    assert len(swept.deleted_thread_ids) == 6
    assert trimmed.orphan_count + swept.orphan_count == 2
