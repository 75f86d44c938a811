"""Rows of a tenant that no checkpoint leads to: found and removed once old, and never before."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from langgraph_ephemeral_checkpointer import Orphan, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.errors import TenantRequiredError
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support.tenant_graphs import META, at, checkpoint, config, plain_graph, put
from tests.support.tenant_sweeping import DAY, NOW, WAYS, Sweeping

LONG = TTLPolicy(idle_ttl_seconds=10**11)
SUFFIXES = ("", "_blobs", "_writes")


def rows(superuser: Any, schema: str, tenant: str) -> list[Any]:
    return [
        row
        for suffix in SUFFIXES
        for row in superuser.execute(
            f"SELECT t.* FROM {schema}.agent_threads{suffix} t WHERE tenant = %s ORDER BY t",
            [tenant],
        )
    ]


def leave(saver: Any, thread: str = "t", ns: str = "", n: int = 1) -> str:
    """What a run leaves that saves writes after its thread is gone."""
    place = put(saver, thread, n)
    saver.delete_thread(thread)
    place["configurable"]["checkpoint_ns"] = ns
    saver.put_writes(place, [("log", 1), ("other", 2)], "task")
    return place["configurable"]["checkpoint_id"]


def sweeper_of(saver: Any, now: float = NOW, **options: Any) -> TTLSweeper:
    return TTLSweeper(saver, LONG, clock=lambda: now, **options)


@pytest.fixture(params=WAYS)
def sweep(request: Any, app_dsn: str, schema: str) -> Sweeping:
    return Sweeping(request.param, app_dsn, schema)


def test_late_writes_of_a_deleted_thread_go_once_they_are_old(
    make_saver: Any, superuser: Any, schema: str, sweep: Sweeping
) -> None:
    """Of the tenant in scope; the other's stay, and so does what belongs to a checkpoint."""
    with make_saver(clock=lambda: NOW - DAY - 60) as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                leave(saver)
                leave(saver, "u", ns="sub")
                plain_graph(saver).invoke({"log": ["0"]}, config("living"))
    before = {tenant: rows(superuser, schema, tenant) for tenant in ("a", "b")}
    young = sweep(LONG, scope="a", clock=lambda: NOW - 120)
    assert (young.orphan_count, young.errors) == (0, {})
    assert sweep(LONG, scope="a", orphan_age_seconds=None).orphan_count == 0
    assert sweep(LONG, scope="a", dry_run=True).orphan_count == 4
    assert rows(superuser, schema, "a") == before["a"]
    assert sweep(LONG, scope="a").orphan_count == 4
    assert rows(superuser, schema, "a") == [row for row in before["a"] if row[1] == "living"]
    assert rows(superuser, schema, "b") == before["b"]
    assert sweep(LONG, scope="a").orphan_count == 0


def test_orphans_are_listed_with_their_tenant_and_removed(make_saver: Any) -> None:
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver:
        name = leave(saver)
        sweeper = sweeper_of(saver)
        assert sweeper.orphans() == [Orphan("writes", "t", "", name, "", 2, "default")]
        with saver.tenant_scope("other"):
            assert sweeper.orphans() == []
            assert sweeper.delete_orphans() == 0
        assert sweeper.delete_orphans() == 2
        assert sweeper.orphans() == []


async def test_the_asynchronous_class_has_the_same_search(
    make_saver: Any, make_async_saver: Any
) -> None:
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver:
        leave(saver)
    async with make_async_saver() as saver:
        sweeper = sweeper_of(saver)
        assert [orphan.rows for orphan in await sweeper.aorphans()] == [2]
        assert await sweeper.adelete_orphans() == 2
        assert (await sweeper.asweep()).orphan_count == 0


def test_writes_that_come_before_their_checkpoint_are_kept(make_saver: Any) -> None:
    """Also all of a step's, as long as one of them is young: the run goes on."""
    times = iter([NOW - 2 * DAY, NOW - 60])
    with make_saver(clock=lambda: next(times, NOW)) as saver:
        place = at("t", id_=checkpoint(1)["id"])
        saver.put_writes(place, [("log", 1)], "early")
        saver.put_writes(place, [("log", 2)], "late")
        assert sweeper_of(saver).delete_orphans() == 0
        put(saver, "t", 1)
        assert len(saver.get_tuple(at("t")).pending_writes) == 2
        assert sweeper_of(saver, NOW + 9 * DAY).delete_orphans() == 0


def test_a_write_has_its_time_whatever_the_id_of_its_checkpoint(make_saver: Any) -> None:
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver:
        for name in ("some id", "00000000-0000-4000-8000-000000000000"):
            saver.put_writes(at("t", id_=name), [("log", 1)], "task")
        assert sweeper_of(saver, NOW - DAY - 5).delete_orphans() == 0
        assert sweeper_of(saver).delete_orphans() == 2


def test_values_that_nothing_names_go_once_the_whole_thread_is_old(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    """They come from other tools, and from a source that had them before it was moved in."""
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver:
        put(saver, "t", 1)
        put(saver, "odd", 1)
        whole = rows(superuser, schema, "default")
        for thread in ("t", "odd", "alone"):
            superuser.execute(
                f"INSERT INTO {schema}.agent_threads_blobs VALUES "
                "('default', %s, '', 'log', 'lost', 'x', ''), "
                "('default', %s, 'sub', 'log', '1', 'x', '')",
                [thread, thread],
            )
        superuser.execute(
            f"UPDATE {schema}.agent_threads SET made_at = NULL WHERE thread_id = 'odd'"
        )
        made = superuser.execute(
            f"SELECT extract(epoch FROM made_at)::float8 FROM {schema}.agent_threads "
            "WHERE thread_id = 't'"
        ).fetchone()[0]
        young = sweeper_of(saver, made + DAY - 5)
        assert {one.thread_id for one in young.orphans()} == {"alone"}
        old = sweeper_of(saver, made + DAY + 5)
        found = [(one.thread_id, one.checkpoint_ns, one.version) for one in old.orphans()]
        lost = [("", "lost"), ("sub", "1")]
        assert found == [(thread, *one) for thread in ("alone", "t") for one in lost]
        assert old.sweep().orphan_count == 4
        superuser.execute(
            f"DELETE FROM {schema}.agent_threads_blobs WHERE thread_id = 'odd' AND version <> %s",
            [next(row[4] for row in whole if row[1] == "odd" and row[3] == "log")],
        )
        left = rows(superuser, schema, "default")
        assert [row[:4] for row in left] == [row[:4] for row in whole]
        assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"log": [1]}


def test_many_are_gone_through_in_parts_and_each_part_comes_round(
    make_saver: Any, monkeypatch: Any
) -> None:
    """Each tenant has its own round; a delete locks a bounded number of threads."""
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.orphans.SWEEP_LIMIT", 3)
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.orphans.PAGE_LIMIT", 4)
    monkeypatch.setattr(
        "langgraph_ephemeral_checkpointer.strategies.tenant.orphans.LOCKED_THREADS", 2
    )
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                for n in range(10):
                    leave(saver, f"t{n}")
        sweeper = sweeper_of(saver)
        counts: dict[str, list[int]] = {"a": [], "b": []}
        for _ in range(3):
            for tenant, counted in counts.items():
                with saver.tenant_scope(tenant):
                    counted.append(sweeper.sweep().orphan_count)
        assert counts == {"a": [8, 8, 4], "b": [8, 8, 4]}
        with saver.tenant_scope("a"):
            for n in range(10):
                leave(saver, f"t{n}")
            assert len(sweeper.orphans()) == 10
            assert sweeper.delete_orphans() == 20


def test_sweeps_that_are_processes_of_their_own_reach_everything(
    make_saver: Any, monkeypatch: Any
) -> None:
    """The first part never has an orphan, and there is no memory of where one had come to."""
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.orphans.SWEEP_LIMIT", 4)
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver:
        for n in range(30):
            place = put(saver, f"t{n:02}", 1)
            saver.put_writes(place, [("log", 1)], "task")
            if n in {0, 12, 13, 25}:
                place["configurable"]["checkpoint_id"] = "gone"
                place["configurable"]["checkpoint_ns"] = "sub"
                saver.put_writes(place, [("log", 1)], "task")
        left = [len(sweeper_of(saver).orphans())]
        for _ in range(200):
            sweeper_of(saver).sweep()
            left.append(len(sweeper_of(saver).orphans()))
            if not left[-1]:
                break
        assert left[0] == 4
        assert left[-1] == 0


def test_a_later_sweeper_goes_on_where_an_earlier_one_stopped(
    make_saver: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.orphans.SWEEP_LIMIT", 2)
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver:
        for n in range(10):
            leave(saver, f"t{n}")
        earlier = sweeper_of(saver)
        assert earlier.sweep().orphan_count == 8
        later = sweeper_of(saver)
        later.go_on_from(earlier)
        monkeypatch.setattr("random.choice", lambda _: pytest.fail("it begins anew"))
        assert later.sweep().orphan_count == 8


def test_every_tenant_is_looked_through_by_who_sees_them_all(
    make_saver: Any, maintenance_dsn: str, schema: str
) -> None:
    """Also one that has nothing but orphans."""
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                leave(saver)
    with TenantPostgresSaver.from_conn_string(maintenance_dsn, schema=schema, tenant=None) as all_:
        sweeper = sweeper_of(all_)
        assert [one.tenant for one in sweeper.orphans()] == ["a", "b"]
        dry = sweeper.sweep(dry_run=True)
        assert {name: part.orphan_count for name, part in dry.by_tenant.items()} == {"a": 2, "b": 2}
        assert sweeper.sweep().orphan_count == 4
        with all_.tenant_scope("a"):
            assert sweeper.orphans() == []
    with make_saver(tenant=None) as saver, pytest.raises(TenantRequiredError):
        sweeper_of(saver).orphans()


def test_a_thread_that_is_being_saved_is_passed_by(make_saver: Any, app_dsn: str) -> None:
    """Its lock is never waited for; the orphans of the others go."""
    with make_saver(clock=lambda: NOW - 2 * DAY) as saver, psycopg.connect(app_dsn) as rival:
        leave(saver, "held")
        leave(saver, "free")
        for statement in saver.names.lock("default", "held"):
            rival.execute(statement.sql, statement.params)
        sweeper = sweeper_of(saver)
        assert sweeper.sweep().orphan_count == 2
        assert [one.thread_id for one in sweeper.orphans()] == ["held"]
        rival.rollback()
        assert sweeper.sweep().orphan_count == 2


def test_a_value_that_a_save_takes_up_again_stays(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    """A look found it loose; the checkpoint that names it was saved before the delete."""
    with make_saver() as saver:
        made = checkpoint(1)
        saver.setup()
        put(saver, "other", 1)
        superuser.execute(
            f"INSERT INTO {schema}.agent_threads_blobs SELECT tenant, 't', checkpoint_ns, channel,"
            f" version, type, blob FROM {schema}.agent_threads_blobs WHERE thread_id = 'other'"
        )
        sweeper = sweeper_of(saver, NOW)
        strategy = sweeper.strategy
        page = strategy.find_orphans(NOW, NOW, None, 10)
        page = strategy.find_orphans(NOW, NOW, page.next, 10)
        assert [one.thread_id for one in page.orphans] == ["t"]
        saver.put(at("t"), made, META, made["channel_versions"])
        assert strategy.delete_orphans(page.orphans, NOW) == 0
        assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"log": [1]}


def test_beside_running_graphs_nothing_is_lost(app_dsn: str, schema: str) -> None:
    """With no age at all, the search takes what is loose at the moment, and nothing else."""
    from psycopg_pool import ConnectionPool

    with ConnectionPool(app_dsn, min_size=4, max_size=4, kwargs={"autocommit": True}) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, keep_checkpoints=2)
        saver.setup()
        stop = threading.Event()
        removed: list[int] = []

        def clean() -> None:
            while not stop.is_set():
                # A step's writes may come before its checkpoint: only values, at any age.
                page = strategy.find_orphans(NOW * 2, NOW, ("blobs", "", "", ""), 100)
                removed.append(strategy.delete_orphans(page.orphans, NOW * 2))

        strategy = sweeper_of(saver).strategy
        cleaner = threading.Thread(target=clean)
        cleaner.start()
        try:
            graph = plain_graph(saver)
            for n in range(8):
                graph.invoke({"log": [f"item {n}"]}, config("t"))
        finally:
            stop.set()
            cleaner.join()
        log = graph.get_state(config("t")).values["log"]
        assert [one for one in log if one.startswith("item")] == [f"item {n}" for n in range(8)]
        assert set(removed) == {0}


def test_a_cancelled_search_leaves_the_connection_usable(app_dsn: str, schema: str) -> None:
    async def main() -> None:
        from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver

        async with AsyncTenantPostgresSaver.from_conn_string(app_dsn, schema=schema) as saver:
            await saver.setup()
            task = asyncio.create_task(sweeper_of(saver).adelete_orphans())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await sweeper_of(saver).aorphans() == []

    asyncio.run(main())
