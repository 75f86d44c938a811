"""Names that nobody should use, and connections that go away in the middle of everything."""

from __future__ import annotations

import random
import string
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.errors import (
    RetentionError,
    StorageError,
    StorageUnavailableError,
    ThreadExistsError,
)
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support.tenant_graphs import META, at, checkpoint, put
from tests.support.tenant_sweeping import IDLE

# What quoting, formatting, normalizing, trimming or folding case would mix up.
NAMES = [
    *("a'b", 'a"b', "'; DROP TABLE agent_threads; --", "a%b", "%s", "%(tenant)s", "%%"),
    *("{checkpoints}", "{a,b}", '{"a"}', "\\", "\\x00", "NULL", "default"),
    *(" ", "\t", "a\nb", "a", "A", "a ", "\ufeff", "\x7f", "\u202eabc"),
    *("\u00fc", "u\u0308", "\U0001f600", "\uffff", "\U0010ffff", "x" * 600),
]


def test_names_of_every_kind_stay_apart(make_saver: Any, maintenance_dsn: str, schema: str) -> None:
    """As tenants, threads, channels, tasks and paths, through every call and a sweep of all."""
    with make_saver(tenant=None) as saver:
        for number, tenant in enumerate(NAMES):
            with saver.tenant_scope(tenant):
                for thread in NAMES:
                    place = put(saver, thread, number, {tenant: [tenant, thread]})
                    saver.put_writes(place, [(thread, tenant)], tenant, thread)
        for tenant in NAMES:
            with saver.tenant_scope(tenant):
                assert saver.tenants() == [tenant]
                found = {one.config["configurable"]["thread_id"]: one for one in saver.list(None)}
                assert found.keys() == {*NAMES}
                for thread, one in found.items():
                    assert one.checkpoint["channel_values"] == {tenant: [tenant, thread]}
                    assert one.pending_writes == [(tenant, thread, tenant)]
                saver.copy_thread(NAMES[0], "copied")
                saver.prune([*NAMES, "copied"])
                saver.delete_thread("copied")
        with TenantPostgresSaver.from_conn_string(
            maintenance_dsn, schema=schema, tenant=None
        ) as every:
            assert sorted(every.tenants()) == sorted(NAMES)
            result = TTLSweeper(every, TTLPolicy(idle_ttl_seconds=1)).sweep()
            assert result.errors == {}
            assert result.by_tenant.keys() == {*NAMES}
            assert all({*one.deleted_thread_ids} == {*NAMES} for one in result.by_tenant.values())
            assert every.tenants() == []


def test_a_tenant_too_long_for_a_key_is_refused_and_nothing_is_stored(make_saver: Any) -> None:
    long = "".join(random.Random(1).choices(string.ascii_letters, k=5000))
    with make_saver() as saver:
        with pytest.raises(StorageError, match="index"), saver.tenant_scope(long):
            put(saver, "t", 1)
        with saver.tenant_scope(long):
            assert [*saver.list(None)] == []
        put(saver, "t", 1)


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
def test_text_that_postgres_cannot_hold_fails_the_call_and_nothing_else(
    make_saver: Any, bad: str
) -> None:
    with make_saver() as saver:
        place = put(saver, "t", 1)
        for call in (
            lambda: saver.get_tuple(at("t", ns=bad)),
            lambda: saver.get_tuple(at("t", id_=bad)),
            lambda: put(saver, "t", 2, {bad: 1}),
            lambda: saver.put(at("t", ns=bad), checkpoint(3), META, {}),
            lambda: saver.put_writes(place, [(bad, 1)], "x"),
            lambda: saver.put_writes(place, [("a", 1)], bad),
            lambda: saver.put_writes(place, [("a", 1)], "x", bad),
            lambda: [*saver.list(at("t", ns=bad))],
            lambda: [*saver.list(None, before=at("t", id_=bad))],
            lambda: saver.delete_for_runs([bad]),
            lambda: saver.copy_thread("t", bad),
            lambda: saver.get_delta_channel_history(config=place, channels=[bad]),
        ):
            with pytest.raises((RetentionError, ValueError)):
                call()
            assert saver.conn.info.transaction_status is TransactionStatus.IDLE
        (only,) = saver.list(None)
        assert only.pending_writes == []


def _calls(saver: Any) -> dict[str, Callable[[], Any]]:
    fresh = iter(range(10, 100))
    return {
        "get_tuple": lambda: saver.get_tuple(at("t")),
        "put": lambda: put(saver, "t", next(fresh)),
        "put_writes": lambda: saver.put_writes(at("t", id_="x"), [("a", 1)], "x"),
        "list": lambda: [*saver.list(None)],
        "history": lambda: saver.get_delta_channel_history(config=at("t"), channels=["log"]),
        "delete_thread": lambda: saver.delete_thread("none"),
        "delete_for_runs": lambda: saver.delete_for_runs(["none"]),
        "copy_thread": lambda: saver.copy_thread("t", f"copy {next(fresh)}"),
        "prune": lambda: saver.prune(["t"]),
        "vacuum": lambda: saver.vacuum(99_999),
        "purge_messages": lambda: saver.purge_messages(timedelta(days=99_999)),
        "forget_tenant": lambda: saver.forget_tenant("nobody"),
        "tenants": saver.tenants,
        "sweep": lambda: TTLSweeper(saver, IDLE, clock=lambda: 0.0).sweep(),
        "orphans": lambda: TTLSweeper(saver, IDLE).orphans(),
    }


def test_a_connection_that_is_gone_is_one_error_and_the_pool_goes_on(
    app_dsn: str, schema: str, superuser: Any
) -> None:
    user = psycopg.conninfo.conninfo_to_dict(app_dsn)["user"]
    kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s"
    with ConnectionPool(app_dsn, min_size=1, max_size=1, kwargs={"autocommit": True}) as pool:
        saver = TenantPostgresSaver(pool, schema=schema)
        put(saver, "t", 1)
        for name, call in _calls(saver).items():
            superuser.execute(kill, [user])
            with pytest.raises(StorageUnavailableError):
                call()
                pytest.fail(f"{name} went through a dead connection")
            call()


def test_a_connection_that_is_lost_while_a_call_waits_leaves_nothing_half_done(
    app_dsn: str, schema: str, superuser: Any
) -> None:
    """Each call that takes the thread's lock, killed while it waits for it."""
    waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with (
        ConnectionPool(app_dsn, min_size=1, max_size=1, kwargs={"autocommit": True}) as pool,
        psycopg.connect(app_dsn, autocommit=True) as rival,
    ):
        saver = TenantPostgresSaver(pool, schema=schema)
        place = put(saver, "t", 1)
        saver.put_writes(place, [("log", 1)], "task")
        put(saver, "t", 2, config=place)
        calls = {
            "put": lambda: put(saver, "t", 3),
            "delete_thread": lambda: saver.delete_thread("t"),
            "prune": lambda: saver.prune(["t"]),
            "copy_thread": lambda: saver.copy_thread("t", "copy"),
            "vacuum": lambda: saver.vacuum(1),
            "forget_tenant": lambda: saver.forget_tenant("default"),
        }
        for name, call in calls.items():
            caught: list[Exception] = []

            def attempt(call: Any = call, caught: Any = caught) -> None:
                try:
                    call()
                except StorageUnavailableError as error:
                    caught.append(error)

            with rival.transaction():
                for statement in saver.names.lock("default", "t"):
                    rival.execute(statement.sql, statement.params)
                thread = threading.Thread(target=attempt)
                thread.start()
                deadline = time.monotonic() + 10
                while not (found := superuser.execute(waiting).fetchall()):
                    assert time.monotonic() < deadline, name
                superuser.execute("SELECT pg_terminate_backend(%s, 5000)", found[0])
                thread.join()
            assert len(caught) == 1, name
            assert len([*saver.list(None)]) == 2, name
            assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"log": [2]}


def test_a_time_limit_of_the_server_ends_the_call_and_not_the_connection(
    app_dsn: str, schema: str
) -> None:
    limited = psycopg.conninfo.make_conninfo(app_dsn, options="-c statement_timeout=200")
    with (
        psycopg.connect(app_dsn, autocommit=True) as rival,
        TenantPostgresSaver.from_conn_string(limited, schema=schema) as saver,
    ):
        put(saver, "t", 1)
        with rival.transaction():
            for statement in saver.names.lock("default", "t"):
                rival.execute(statement.sql, statement.params)
            for call in (lambda: put(saver, "t", 2), lambda: saver.delete_thread("t")):
                with pytest.raises(StorageUnavailableError, match="timeout"):
                    call()
                assert saver.conn.info.transaction_status is TransactionStatus.IDLE
        put(saver, "t", 3)
        assert len([*saver.list(None)]) == 2


def test_a_connection_of_another_encoding_is_refused_and_our_own_never_is(
    app_dsn: str, schema: str
) -> None:
    """Texts in arrays are UTF-8: a thread would have one name in them and another outside."""
    latin = psycopg.conninfo.make_conninfo(app_dsn, client_encoding="latin1")
    with TenantPostgresSaver.from_conn_string(latin, schema=schema) as saver:
        put(saver, "\u00fc", 1, {"\u00e4": 1})
        assert saver.get_tuple(at("\u00fc")).checkpoint["channel_values"] == {"\u00e4": 1}
    with psycopg.connect(latin, autocommit=True) as conn:
        saver = TenantPostgresSaver(conn, schema=schema)
        for call in (lambda: put(saver, "t", 1), lambda: saver.delete_thread("\u00fc")):
            with pytest.raises(StorageError, match="client_encoding"):
                call()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "SJIS"])
@pytest.mark.parametrize("joined", [False, True])
def test_an_encoding_that_is_changed_after_the_first_use_is_refused_too(
    make_saver: Any, superuser: Any, schema: str, encoding: str, joined: bool
) -> None:
    """A delete under it would find nothing, or the thread whose name the bytes are."""
    names = ["\u00e9", "\u00e9".encode().decode("latin1")]
    with make_saver(keep_checkpoints=1) as saver:
        place, _ = [put(saver, name, 1) for name in names]
        saver.get_tuple(place)
        calls: list[Callable[[], Any]] = [
            lambda: saver.delete_thread(names[0]),
            lambda: put(saver, names[0], 2),
            lambda: saver.put_writes(place, [(names[0], 1)], "task"),
            lambda: saver.get_tuple(at(names[0])),
            lambda: [*saver.list(at(names[0]))],
            lambda: saver.copy_thread(names[0], "copy"),
            lambda: saver.prune([names[0]]),
            lambda: saver.vacuum(1),
            lambda: saver.forget_tenant("default"),
            saver.tenants,
        ]
        with saver.conn.transaction() if joined else nullcontext():
            scope = "LOCAL" if joined else "SESSION"
            saver.conn.execute(f"SET {scope} client_encoding TO {encoding}")
            for call in calls:
                with pytest.raises(StorageError, match="client_encoding"):
                    call()
        saver.conn.execute("SET client_encoding TO UTF8")
        rows = superuser.execute(f"SELECT thread_id FROM {schema}.agent_threads").fetchall()
        assert sorted(name for (name,) in rows) == sorted(names)
        saver.delete_thread(names[0])
        assert [one.config["configurable"]["thread_id"] for one in saver.list(None)] == names[1:]


async def test_the_asynchronous_saver_refuses_it_as_well(make_async_saver: Any) -> None:
    async with make_async_saver() as saver:
        made = checkpoint(1)
        await saver.aput(at("\u00e9"), made, META, made["channel_versions"])
        await saver.conn.execute("SET client_encoding TO LATIN1")
        with pytest.raises(StorageError, match="client_encoding"):
            await saver.adelete_thread("\u00e9")
        await saver.conn.execute("SET client_encoding TO UTF8")
        assert await saver.aget_tuple(at("\u00e9")) is not None


@pytest.mark.parametrize("before", ["mine", "", None])
def test_what_the_caller_has_set_for_a_transaction_is_put_back(
    make_saver: Any, before: str | None
) -> None:
    """Row-Level Security of their own may read the same setting."""
    names = ("langgraph.tenant", "search_path", "plan_cache_mode")
    with make_saver(keep_checkpoints=1) as saver:
        put(saver, "t", 1)
        with saver.conn.transaction():
            if before is not None:
                saver.conn.execute("SELECT set_config('langgraph.tenant', %s, true)", [before])
                saver.conn.execute('SET LOCAL search_path = pg_catalog, "odd name"')
                saver.conn.execute("SET LOCAL plan_cache_mode = force_custom_plan")

            def settings() -> list[str]:
                found = [f"coalesce(current_setting('{name}', true), '')" for name in names]
                return [*saver.conn.execute(f"SELECT {', '.join(found)}").fetchone()]

            given = settings()
            assert given[0] == (before or "")
            for call in (
                lambda: put(saver, "t", 2),
                lambda: saver.get_tuple(at("t")),
                lambda: saver.copy_thread("t", "u"),
                lambda: saver.prune(["t"]),
                lambda: saver.delete_thread("u"),
                lambda: saver.tenants(),
            ):
                call()
                assert settings() == given
            saver.copy_thread("t", "u")
            with pytest.raises(ThreadExistsError):
                saver.copy_thread("t", "u")
            assert settings() == given
            with pytest.raises(StorageError), saver.conn.transaction():
                put(saver, "".join(random.Random(1).choices(string.ascii_letters, k=5000)), 1)
            assert settings() == given
