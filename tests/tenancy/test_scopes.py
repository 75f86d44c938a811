"""Whose thread a call is about, and that nothing is ever done for another tenant."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.errors import (
    CrossTenantError,
    ScopeLostError,
    StorageError,
    TenantRequiredError,
    TenantResolutionError,
)
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy.base import TenantSaver
from tests.support.tenant_graphs import META, at, checkpoint, config, plain_graph, put


def _owners(superuser: Any, schema: str) -> set[str]:
    tables = ("agent_threads", "agent_threads_blobs", "agent_threads_writes")
    query = " UNION ".join(f"SELECT tenant FROM {schema}.{table}" for table in tables)
    return {tenant for (tenant,) in superuser.execute(query)}


def test_scope_wins_over_tenant_of_and_that_over_the_default(make_saver: Any) -> None:
    with make_saver(tenant="fallback", tenant_of=lambda thread: f"of-{thread}") as saver:
        assert saver.current_tenant() == "fallback"
        put(saver, "t", 1)
        with saver.tenant_scope("outer"):
            assert saver.get_tuple(at("t")) is None
            put(saver, "t", 2)
            with saver.tenant_scope("inner"):
                assert saver.current_tenant() == "inner"
            assert saver.current_tenant() == "outer"
            assert saver.tenants() == ["outer"]
        with saver.tenant_scope("of-t"):
            assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(1)["id"]
        assert [*saver.list(None)] == []  # no thread: the default tenant, never tenant_of
        assert len([*saver.list(at("t"))]) == 1


def test_without_any_tenant_nothing_is_sent(make_saver: Any) -> None:
    with make_saver(tenant=None) as saver:
        saver.conn.close()  # any SQL would fail with another error
        made = checkpoint(1)
        for call in (
            lambda: saver.get_tuple(at("t")),
            lambda: saver.list(None),
            lambda: saver.put(at("t"), made, META, {}),
            lambda: saver.put_writes(at("t", id_="x"), [("a", 1)], "task"),
            lambda: saver.delete_thread("t"),
            lambda: saver.delete_for_runs(["r"]),
            lambda: saver.copy_thread("t", "u"),
            lambda: saver.prune(["t"]),
            lambda: saver.vacuum(1),
            lambda: saver.forget_tenant(),
            lambda: saver.get_delta_channel_history(config=at("t"), channels=["a"]),
        ):
            with pytest.raises(TenantRequiredError):
                call()


def _raises(thread: str) -> str:
    raise LookupError("no such customer")


@pytest.mark.parametrize("answer", ["", None, 7, "a\0b"])
def test_a_tenant_of_that_names_no_tenant_fails_the_call(make_saver: Any, answer: Any) -> None:
    made = make_saver(tenant_of=lambda thread: answer)
    with made as saver, pytest.raises(TenantResolutionError, match="'t'"):
        saver.get_tuple(at("t"))


def test_a_tenant_of_that_raises_fails_the_call_and_keeps_the_cause(make_saver: Any) -> None:
    with make_saver(tenant_of=_raises) as saver, pytest.raises(TenantResolutionError) as caught:
        put(saver, "t", 1)
    assert isinstance(caught.value.__cause__, LookupError)


async def _async_tenant_of(thread: str) -> str:
    return "acme"


class _AsyncTenantOf:
    async def __call__(self, thread: str) -> str:
        return "acme"


def test_what_cannot_be_called_is_refused(make_saver: Any) -> None:
    for wrong in ({"tenant_of": "acme"}, {"clock": 5}):
        expected = f"{next(iter(wrong))} must be callable"
        with pytest.raises(TypeError, match=expected), make_saver(**wrong):
            pass


def test_an_asynchronous_tenant_of_is_refused(make_saver: Any) -> None:
    for refused in (_async_tenant_of, _AsyncTenantOf()):
        with pytest.raises(TypeError, match="plain function"), make_saver(tenant_of=refused):
            pass
    made = make_saver(tenant_of=lambda thread: _async_tenant_of(thread))
    with made as saver, pytest.raises(TenantResolutionError):
        put(saver, "t", 1)


def test_arguments_that_mean_nothing_touch_nothing(make_saver: Any, superuser: Any) -> None:
    with make_saver() as saver:
        put(saver, "t", 1)
        for days in (0, -5, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="days"):
                saver.vacuum(days)
        for days in (True, "3"):
            with pytest.raises(TypeError):
                saver.vacuum(days)
        for duration in (timedelta(0), timedelta(days=-1)):
            with pytest.raises(ValueError, match="greater than zero"):
                saver.purge_messages(duration)
        with pytest.raises(ValueError, match="empty"):
            saver.tenant_scope("")
        for thread in ("", None, "a\0b", "\ud800"):
            with pytest.raises(ValueError, match="thread id"):
                put(saver, thread, 2)
            with pytest.raises(ValueError, match="thread id"):
                saver.delete_thread(thread)
        with pytest.raises(ValueError, match="strategy"):
            saver.prune(["t"], strategy="all")
        with pytest.raises(TypeError):
            saver.prune("t")
        with pytest.raises(TypeError):
            saver.delete_for_runs("run")
        assert len([*saver.list(None)]) == 1


@pytest.mark.parametrize("keep", [0, -1, True, 1.5])
def test_keep_checkpoints_is_a_count(make_saver: Any, keep: Any) -> None:
    with (
        pytest.raises((ValueError, TypeError), match="keep_checkpoints"),
        make_saver(keep_checkpoints=keep),
    ):
        pass


def test_forgetting_never_means_the_default_tenant(make_saver: Any) -> None:
    with make_saver(tenant="default") as saver:
        put(saver, "t", 1)
        with pytest.raises(TenantRequiredError):
            saver.forget_tenant()
        assert len([*saver.list(None)]) == 1
        assert saver.forget_tenant("default") == 1
        assert [*saver.list(None)] == []


def _acts_on_the_tenant(saver: Any) -> list[Any]:
    return [
        lambda: saver.delete_for_runs(["r"]),
        lambda: saver.purge_messages(timedelta(days=1)),
        lambda: saver.purge_messages(timedelta(days=1), dry_run=True),
        lambda: saver.vacuum(1),
        lambda: saver.list(None),
        lambda: saver.list({"configurable": {}}),
        lambda: saver.current_tenant(),
        lambda: saver.untrimmed_threads(),
        lambda: TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=1)).sweep(),
        lambda: TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=1)).sweep(dry_run=True),
    ]


def test_beside_tenant_of_there_is_no_default_unless_it_is_given(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    """A call that names no thread would report success over the rows of nobody."""
    with make_saver(tenant_of=lambda thread: "acme") as saver:
        put(saver, "t", 1)
        assert not saver.names_a_tenant
        for act in _acts_on_the_tenant(saver):
            with pytest.raises(TenantRequiredError):
                act()
        with pytest.raises(TenantRequiredError, match="names no thread"):
            saver.vacuum(1)
        assert saver.get_tuple(at("t")) is not None
        with saver.tenant_scope("acme"):
            for act in _acts_on_the_tenant(saver)[:-2]:
                act()
    for given in ("default", "acme"):
        with make_saver(tenant=given, tenant_of=lambda thread: "acme") as saver:
            assert saver.current_tenant() == given
            for act in _acts_on_the_tenant(saver):
                act()


async def test_beside_tenant_of_the_asynchronous_saver_has_no_default_either(
    make_async_saver: Any,
) -> None:
    async with make_async_saver(tenant_of=lambda thread: "acme") as saver:
        made = checkpoint(1)
        await saver.aput(at("t"), made, META, made["channel_versions"])
        for act in (
            lambda: saver.adelete_for_runs(["r"]),
            lambda: saver.purge_messages(timedelta(days=1)),
            lambda: saver.vacuum(1),
            lambda: TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=1)).asweep(),
        ):
            with pytest.raises(TenantRequiredError):
                await act()
        with pytest.raises(TenantRequiredError):
            saver.alist(None)
        assert await saver.aget_tuple(at("t")) is not None


def test_the_default_tenant_can_be_read_off_the_signature() -> None:
    assert inspect.signature(TenantSaver).parameters["tenant"].default == "default"


def test_a_listing_belongs_to_the_tenant_of_the_call(make_saver: Any) -> None:
    with make_saver(tenant="other") as saver:
        with saver.tenant_scope("acme"):
            put(saver, "t", 1)
            listing = saver.list(None)
        assert [found.checkpoint["id"] for found in listing] == [checkpoint(1)["id"]]


async def test_a_coroutine_belongs_to_the_scope_in_which_it_was_made(
    make_async_saver: Any, superuser: Any, schema: str
) -> None:
    """Awaited outside of the block, or inside another, it works on no other tenant's threads."""
    async with make_async_saver(tenant="default") as saver:
        made = checkpoint(1)
        for tenant in ("default", "acme", "other"):
            with saver.tenant_scope(tenant):
                for thread in ("t", "u", "v"):
                    await saver.aput(at(thread), made, META, made["channel_versions"])
        two = checkpoint(2)
        with saver.tenant_scope("acme"):
            read = saver.aget_tuple(at("t"))
            work = [
                saver.aput(at("t"), two, META, two["channel_versions"]),
                saver.adelete_thread("u"),
                saver.acopy_thread("t", "w"),
                saver.aprune(["t"]),
                saver.vacuum(99_999),
            ]
            listed = saver.tenants()
        with saver.tenant_scope("other"):
            assert await read is not None
            for one in work:
                await one
            assert saver.current_tenant() == "other"
        assert await listed == ["acme"]
        rows = superuser.execute(
            f"SELECT tenant, thread_id, checkpoint_id FROM {schema}.agent_threads ORDER BY 1, 2, 3"
        ).fetchall()
        one, new = made["id"], two["id"]
        theirs = [
            (name, thread, one) for name in ("default", "other") for thread in ("t", "u", "v")
        ]
        acmes = [("acme", "t", new), ("acme", "v", one), ("acme", "w", one), ("acme", "w", new)]
        assert rows == sorted([*acmes, *theirs])
        with saver.tenant_scope("acme"):
            erase = saver.forget_tenant()
        await erase
        assert _owners(superuser, schema) == {"default", "other"}


def test_a_scope_that_is_left_in_another_context_is_said_to_be_lost(make_saver: Any) -> None:
    """A web framework runs the two halves of such a generator in contexts of their own."""

    def dependency(saver: Any) -> Any:
        with saver.tenant_scope("acme"):
            yield

    with make_saver() as saver:
        halves = dependency(saver)
        contextvars.copy_context().run(next, halves)
        assert saver.current_tenant() == "default"
        with pytest.raises(ScopeLostError, match="Open it around the calls"):
            contextvars.copy_context().run(next, halves, None)
        assert saver.current_tenant() == "default"


def test_threads_are_not_copied_between_tenants(make_saver: Any) -> None:
    with make_saver(tenant_of=lambda thread: thread[0]) as saver:
        put(saver, "a1", 1)
        with pytest.raises(CrossTenantError):
            saver.copy_thread("a1", "b1")
        saver.copy_thread("a1", "a2")
        assert saver.get_tuple(at("a2")).checkpoint["id"] == checkpoint(1)["id"]


def test_prune_asks_for_the_tenant_of_each_thread(make_saver: Any) -> None:
    with make_saver(tenant_of=lambda thread: thread[0]) as saver:
        for thread in ("a1", "b1"):
            for n in (1, 2):
                put(saver, thread, n)
        saver.prune(["a1", "b1"])
        assert [len([*saver.list(at(thread))]) for thread in ("a1", "b1")] == [1, 1]


def test_two_tenants_share_a_thread_id_and_a_version(make_saver: Any) -> None:
    """Each reads its own, after the other's puts, prunes and deletes."""
    with make_saver() as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                for n in (1, 2):
                    put(saver, "t", n, {"log": [tenant, n]})

        def newest(tenant: str) -> Any:
            with saver.tenant_scope(tenant):
                found = saver.get_tuple(at("t"))
            return found and found.checkpoint["channel_values"]["log"]

        assert (newest("a"), newest("b")) == (["a", 2], ["b", 2])
        with saver.tenant_scope("a"):
            saver.prune(["t"])
        assert (newest("a"), newest("b")) == (["a", 2], ["b", 2])
        with saver.tenant_scope("b"):
            assert len([*saver.list(at("t"))]) == 2
        with saver.tenant_scope("a"):
            saver.delete_thread("t")
        assert (newest("a"), newest("b")) == (None, ["b", 2])


@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_every_save_of_a_run_is_its_tenants(
    make_saver: Any, superuser: Any, schema: str, how: str
) -> None:
    """Also those that LangGraph makes from threads without the caller's context."""
    with make_saver(tenant="default") as saver:
        graph = plain_graph(saver)
        with saver.tenant_scope("acme"):
            run = getattr(graph, how)({"log": ["0"], "kept": "k"}, config("t"))
            if how == "stream":
                list(run)
        assert _owners(superuser, schema) == {"acme"}
        with saver.tenant_scope("acme"):
            assert graph.get_state(config("t")).values["log"] == ["0", "a", "b", "c", "d", "z"]


def test_a_run_keeps_the_scope_it_was_started_in(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    """A stream that is read on outside its scope, or inside another, stays where it was."""
    with make_saver(tenant="default") as saver:
        graph = plain_graph(saver)
        with saver.tenant_scope("acme"):
            stream = graph.stream({"log": ["0"]}, config("t"))
            next(stream)
        with saver.tenant_scope("other"):
            next(stream)
        list(stream)
        assert _owners(superuser, schema) == {"acme"}


def test_a_run_without_a_scope_does_not_pick_one_up(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    with make_saver(tenant="default") as saver:
        stream = plain_graph(saver).stream({"log": ["0"]}, config("t"))
        next(stream)
        with saver.tenant_scope("other"):
            list(stream)
        assert _owners(superuser, schema) == {"default"}


@pytest.mark.parametrize("how", ["ainvoke", "astream"])
async def test_every_save_of_an_asynchronous_run_is_its_tenants(
    make_async_saver: Any, superuser: Any, schema: str, how: str
) -> None:
    async with make_async_saver(tenant="default") as saver:
        graph = plain_graph(saver)
        with saver.tenant_scope("acme"):
            if how == "ainvoke":
                await graph.ainvoke({"log": ["0"]}, config("t"))
            else:
                stream = graph.astream({"log": ["0"]}, config("t"))
                await anext(stream)
        if how == "astream":
            with saver.tenant_scope("other"):
                async for _ in stream:
                    pass
        assert _owners(superuser, schema) == {"acme"}


def test_twelve_tenants_in_threads_share_thread_ids(app_dsn: str, schema: str) -> None:
    with ConnectionPool(app_dsn, min_size=4, max_size=4, kwargs={"autocommit": True}) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, tenant=None, keep_checkpoints=2)
        saver.setup()
        graph = plain_graph(saver)
        found: dict[str, Any] = {}

        def turn(tenant: str) -> None:
            with saver.tenant_scope(tenant):
                for n in range(3):
                    graph.invoke({"log": [f"{tenant}{n}"]}, config("shared"))
                found[tenant] = graph.get_state(config("shared")).values["log"]

        tenants = [f"tenant-{n}" for n in range(12)]
        threads = [threading.Thread(target=turn, args=(tenant,)) for tenant in tenants]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for tenant in tenants:
        assert [item for item in found[tenant] if item.startswith("tenant")] == [
            f"{tenant}{n}" for n in range(3)
        ]


async def test_twelve_tenants_in_tasks_share_thread_ids(make_async_saver: Any) -> None:
    async with make_async_saver(tenant=None, keep_checkpoints=2) as saver:
        graph = plain_graph(saver)

        async def turn(tenant: str) -> list[str]:
            with saver.tenant_scope(tenant):
                for n in range(3):
                    await graph.ainvoke({"log": [f"{tenant}{n}"]}, config("shared"))
                state = await graph.aget_state(config("shared"))
            return [item for item in state.values["log"] if item.startswith("tenant")]

        tenants = [f"tenant-{n}" for n in range(12)]
        found = await asyncio.gather(*(turn(tenant) for tenant in tenants))
        assert found == [[f"{tenant}{n}" for n in range(3)] for tenant in tenants]


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_pool_of_one_never_carries_a_tenant_over(
    app_dsn: str, schema: str, autocommit: bool
) -> None:
    """Alternating tenants, errors in between: the next transaction has no tenant."""
    options = {"autocommit": autocommit}
    with ConnectionPool(app_dsn, min_size=1, max_size=1, kwargs=options) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, tenant=None)
        for n in range(6):
            with saver.tenant_scope("ab"[n % 2]):
                put(saver, "t", n)
                with pytest.raises(StorageError):  # a namespace that no text can hold
                    saver.put(at("t", ns="\0"), checkpoint(9), META, {})
                with pytest.raises(RuntimeError), saver.tenant_scope("c"):
                    raise RuntimeError
                assert len([*saver.list(None)]) == n // 2 + 1
            with pool.connection() as conn:
                rows = conn.execute(f"SELECT count(*) FROM {schema}.agent_threads").fetchone()
                setting = conn.execute("SELECT current_setting('langgraph.tenant', true)")
                assert rows == (0,)
                assert setting.fetchone() in {("",), (None,)}


if hasattr(BaseCheckpointSaver, "with_allowlist"):

    def test_a_clone_for_other_classes_shares_the_scope(make_saver: Any) -> None:
        with make_saver(tenant=None) as saver:
            clone = saver.with_allowlist([("some.module", "Some")])
            with saver.tenant_scope("acme"):
                put(clone, "t", 1)
                assert clone.current_tenant() == "acme"
                assert saver.get_tuple(at("t")) is not None


def test_a_saver_is_not_made_of_anything_else(app_dsn: str) -> None:
    with pytest.raises(TypeError, match="from_conn_string"):
        TenantPostgresSaver(app_dsn)  # type: ignore[arg-type]


def test_one_connection_serves_many_threads_in_turn(app_dsn: str, schema: str) -> None:
    with psycopg.connect(app_dsn, autocommit=True) as conn:
        saver = TenantPostgresSaver(conn, schema=schema)
        threads = [threading.Thread(target=put, args=(saver, f"t{n}", n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len([*saver.list(None)]) == 8
