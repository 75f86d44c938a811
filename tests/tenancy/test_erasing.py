"""Deleting and copying whole threads: all of them, only them, and beside running saves."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.errors import HistoryNeededError, ThreadExistsError
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver, erasing
from tests.support.tenant_graphs import (
    HAS_DELTA,
    META,
    at,
    checkpoint,
    config,
    delta_graph,
    everything_graph,
    plain_graph,
    put,
    say,
)

_DAY = 86_400
_START = 1_704_067_200
SUFFIXES = ("", "_blobs", "_writes")


def dump(superuser: Any, schema: str, *, without: str = "") -> list[tuple[Any, ...]]:
    """Every row of every table, but those of one tenant."""
    return [
        row
        for suffix in SUFFIXES
        for row in superuser.execute(
            f"SELECT t.* FROM {schema}.agent_threads{suffix} t WHERE tenant <> %s ORDER BY t",
            [without],
        )
    ]


def test_erasing_a_tenant_leaves_no_byte_of_it(
    make_saver: Any, superuser: Any, schema: str, monkeypatch: Any
) -> None:
    """Threads, left-over blobs and writes, in batches; nothing of the other tenant moves."""
    monkeypatch.setattr(erasing, "_BATCH", 3)
    with make_saver() as saver:
        for tenant in ("gone-tenant", "stays"):
            with saver.tenant_scope(tenant):
                graph = everything_graph(saver)
                for n in range(7):
                    graph.invoke(say(f"words of {tenant}"), config(f"thread {n} of {tenant}"))
                saver.put_writes(
                    at("stray", id_="none"), [("log", f"words of {tenant}")], "left-over"
                )
        before = dump(superuser, schema, without="gone-tenant")
        assert saver.forget_tenant("gone-tenant") == 8
        assert dump(superuser, schema) == before
        text = str(before)
        assert "words of stays" in text
        assert "gone-tenant" not in text
        with saver.tenant_scope("gone-tenant"):
            assert saver.forget_tenant() == 0


def test_erasing_in_a_scope_erases_that_tenant(make_saver: Any) -> None:
    with make_saver() as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                put(saver, "t", 1)
        with saver.tenant_scope("a"):
            assert saver.forget_tenant() == 1
        with saver.tenant_scope("b"):
            assert len([*saver.list(None)]) == 1


def test_vacuum_goes_by_the_newest_checkpoint_of_any_namespace(
    make_saver: Any, superuser: Any, schema: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(erasing, "_BATCH", 2)
    now = _START + 30 * _DAY
    with make_saver(clock=lambda: now) as saver:
        for n in range(5):
            place = put(saver, f"old {n}", n)
            saver.put_writes(place, [("log", n)], "task")
        put(saver, "busy below", 1)
        put(saver, "busy below", 29 * _DAY, config=at("busy below", "sub"))
        put(saver, "young", 29 * _DAY)
        odd = {**checkpoint(1), "id": "no time in here", "ts": "nor here"}
        saver.put(at("unknown age"), odd, META, odd["channel_versions"])
        dated = {**checkpoint(1), "id": "not a uuid", "ts": "2024-01-02T00:00:00"}
        saver.put(at("dated by ts"), dated, META, dated["channel_versions"])
        with saver.tenant_scope("other"):
            put(saver, "old too", 1)
        assert saver.vacuum(1_000_000_000) == 0
        assert saver.vacuum(10) == 6
        left = {one.config["configurable"]["thread_id"] for one in saver.list(None)}
        assert left == {"busy below", "young", "unknown age"}
        assert saver.vacuum(10) == 0
        with saver.tenant_scope("other"):
            assert len([*saver.list(None)]) == 1
    rows = superuser.execute(
        f"SELECT count(*) FROM {schema}.agent_threads_blobs WHERE thread_id LIKE 'old _'"
    )
    assert rows.fetchone() == (0,)


def test_vacuum_takes_old_writes_whose_checkpoint_is_gone(make_saver: Any, superuser: Any) -> None:
    """Young ones may be of a step that is just being saved."""
    now = [float(_START)]
    with make_saver(clock=lambda: now[0]) as saver:
        saver.put_writes(at("t", id_="lost"), [("log", 1)], "old")
        place = put(saver, "alive", 40 * _DAY)
        saver.put_writes(place, [("log", 1)], "old, but has its checkpoint")
        now[0] += 40 * _DAY
        saver.put_writes(at("t", id_="lost"), [("log", 1)], "young")
        assert saver.vacuum(10) == 0
        rows = superuser.execute(
            f"SELECT task_id FROM {saver.names.schema}.agent_threads_writes ORDER BY task_id"
        ).fetchall()
    assert rows == [("old, but has its checkpoint",), ("young",)]


def test_a_thread_that_wakes_up_during_a_vacuum_is_kept(
    app_dsn: str, schema: str, make_saver: Any
) -> None:
    """It is looked at again under its lock."""
    now = _START + 30 * _DAY
    with make_saver() as saver, psycopg.connect(app_dsn) as conn:
        put(saver, "t", 1)
        blocker = TenantPostgresSaver(conn, schema=schema)
        done: list[int] = []

        def run() -> None:
            with make_saver(clock=lambda: now) as vacuuming:
                done.append(vacuuming.vacuum(10))

        with conn.transaction():
            put(blocker, "t", 29 * _DAY)
            thread = threading.Thread(target=run)
            thread.start()
            with psycopg.connect(app_dsn, autocommit=True) as watch:
                waiting = "SELECT count(*) FROM pg_locks WHERE locktype='advisory' AND NOT granted"
                while watch.execute(waiting).fetchone() == (0,):
                    assert thread.is_alive()
        thread.join()
        assert done == [0]
        assert len([*saver.list(at("t"))]) == 2


def test_housekeeping_beside_running_saves_neither_fails_nor_tears(
    app_dsn: str, schema: str
) -> None:
    """Savers, deletes, prunes and an erasure at once: what is there loads whole."""
    with ConnectionPool(app_dsn, min_size=6, max_size=6, kwargs={"autocommit": True}) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, keep_checkpoints=2)
        saver.setup()
        graph = plain_graph(saver)
        stop = threading.Event()
        errors: list[str] = []

        def guard(work: Any) -> Any:
            def run() -> None:
                try:
                    while not stop.is_set():
                        work()
                except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
                    errors.append(repr(error))

            return run

        def turns() -> None:
            for name in ("t0", "t1"):
                graph.invoke({"log": ["x"], "kept": "k"}, config(name))
                graph.invoke({"log": ["y"]}, config(name))

        def look() -> None:
            for one in saver.list(None):
                values = one.checkpoint["channel_values"]
                named = one.checkpoint["channel_versions"]
                if "kept" in named and values.get("kept") != "k":
                    errors.append(f"torn: {values}")

        workers = [
            turns,
            turns,
            look,
            lambda: saver.delete_thread("t0"),
            lambda: saver.prune(["t1", "t0"]),
            lambda: saver.forget_tenant("default"),
        ]
        threads = [threading.Thread(target=guard(work)) for work in workers]
        for thread in threads:
            thread.start()
        stop.wait(4)
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []


def test_deleting_a_thread_takes_every_namespace_and_nothing_else(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    """Ids are compared exactly; numbers and UUIDs mean their text."""
    names = ["a", "A", "a ", "a%", "a_", "a:b", "7"]
    with make_saver() as saver:
        for name in names:
            put(saver, name, 1)
            put(saver, name, 1, config=at(name, "sub:1"))
        saver.put_writes(at("a", "sub:1", checkpoint(1)["id"]), [("log", 1)], "task")
        saver.delete_thread("a")
        saver.delete_thread(7)
        left = {row[1] for row in dump(superuser, schema)}
        assert left == set(names) - {"a", "7"}


def test_deleting_runs_leaves_the_others_whole(make_saver: Any) -> None:
    with make_saver() as saver:
        for n, run in enumerate(("r1", "r2", "r1", "r3")):
            made = checkpoint(n)
            metadata = {**META, "run_id": run}
            place = saver.put(at("t"), made, metadata, made["channel_versions"])
            saver.put_writes(place, [("log", n)], "task")
        saver.delete_for_runs(["r1", "none"])
        left = [(one.metadata["run_id"], one.pending_writes[0][2]) for one in saver.list(at("t"))]
        assert left == [("r3", 3), ("r2", 1)]
        assert [one.checkpoint["channel_values"]["log"] for one in saver.list(at("t"))] == [
            [3],
            [1],
        ]


if HAS_DELTA:

    def test_a_run_that_later_ones_are_rebuilt_from_is_not_deleted(make_saver: Any) -> None:
        """The thread is whole, the other threads are done, and the error names the thread."""
        with make_saver() as saver:
            graph = delta_graph(saver, every=1000)
            for run in ("r1", "r2"):
                for thread in ("t", "u"):
                    if (run, thread) != ("r2", "u"):
                        graph.invoke(
                            {"log": [run]}, {**config(thread), "metadata": {"run_id": run}}
                        )
            with pytest.raises(HistoryNeededError, match=r"\['t'\]"):
                saver.delete_for_runs(["r1"])
            assert graph.get_state(config("t")).values["log"] == ["r1", "a", "b", "r2", "a", "b"]
            assert saver.get_tuple(at("u")) is None
            saver.delete_for_runs(["r2"])
            assert graph.get_state(config("t")).values["log"] == ["r1", "a", "b"]

    def test_keep_latest_keeps_what_the_latest_is_rebuilt_from(make_saver: Any) -> None:
        with make_saver() as saver:
            graph = delta_graph(saver, every=5)
            for n in range(6):
                graph.invoke({"log": [str(n)]}, config("t"))
            before = graph.get_state(config("t"))
            total = len([*saver.list(at("t"))])
            saver.prune(["t"])
            assert graph.get_state(config("t")).values == before.values
            assert 1 < len([*saver.list(at("t"))]) < total
            graph.invoke({"log": ["next"]}, config("t"))
            assert graph.get_state(config("t")).values["log"][-3:] == ["next", "a", "b"]


def test_a_copy_is_complete_and_apart(make_saver: Any, superuser: Any, schema: str) -> None:
    with make_saver() as saver:
        graph = everything_graph(saver)
        graph.invoke(say("hello"), config("source"))
        saver.copy_thread("source", "copy")

        def rows(thread: str) -> list[Any]:
            return [(row[0], *row[2:]) for row in dump(superuser, schema) if row[1] == thread]

        assert rows("copy") == rows("source")
        before = graph.get_state(config("copy"))
        saver.delete_thread("source")
        assert graph.get_state(config("copy")).values == before.values
        with pytest.raises(ValueError, match="itself"):
            saver.copy_thread("copy", "copy")
        put(saver, "other", 1)
        with pytest.raises(ThreadExistsError, match="'other'"):
            saver.copy_thread("copy", "other")
        assert len([*saver.list(at("other"))]) == 1
        saver.copy_thread("nothing", "new")
        assert saver.get_tuple(at("new")) is None


@pytest.mark.parametrize("keep", [None, 1, 2])
def test_a_paused_call_is_kept_and_the_dead_ones_go(make_saver: Any, keep: int | None) -> None:
    """With prune() as with keep_checkpoints; the answer goes on where the graph stood."""
    with make_saver(keep_checkpoints=keep) as saver:
        logs = []
        for one in (saver, InMemorySaver()):
            graph = everything_graph(one)
            for turn in ("0", "1"):
                graph.invoke(say(turn), config("t"))
                graph.invoke(Command(resume=turn), config("t"))
            graph.invoke(say("2"), config("t"))
            if one is saver and keep is None:
                saver.prune(["t"])
            calls = {c.config["configurable"]["checkpoint_ns"] for c in one.list(config("t"))}
            values = graph.invoke(Command(resume="2"), config("t"))
            logs.append((values["log"], values["note"], len(calls)))
        (ours, note, calls_left), (theirs, _, all_calls) = logs
        assert ours == theirs
        assert note == "n\0te"
        assert (calls_left, all_calls) == (2, 4)  # the root's and the paused call's


async def test_the_asynchronous_class_does_the_same(make_async_saver: Any) -> None:
    async with make_async_saver(clock=lambda: _START + 30 * _DAY) as saver:
        for thread in ("t", "u"):
            made = checkpoint(1)
            await saver.aput(at(thread), made, META, made["channel_versions"])
        await saver.acopy_thread("t", "v")
        assert await saver.tenants() == ["default"]
        await saver.adelete_thread("v")
        assert await saver.vacuum(10) == 2
        assert [one async for one in saver.alist(None)] == []
        with saver.tenant_scope("acme"):
            made = checkpoint(1)
            await saver.aput(at("t"), made, META, made["channel_versions"])
            assert await saver.forget_tenant() == 1
        for days in (0, -5):
            with pytest.raises(ValueError, match="days"):
                await saver.vacuum(days)
