"""Rows that no checkpoint leads to are found and removed once old, and never before."""

from __future__ import annotations

import time

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer import (
    Orphan,
    TTLPolicy,
    TTLSweeper,
    UnsupportedCheckpointerError,
)
from langgraph_ephemeral_checkpointer.strategies import GenericStrategy, SqliteStrategy
from tests.support.aging import uuid6_at
from tests.support.trash_graphs import config, plain_graph

LONG = TTLPolicy(idle_ttl_seconds=10**9)
DAY = 86_400


def sweeper_of(saver, later=DAY + 60, **options):
    return TTLSweeper(saver, LONG, clock=lambda: time.time() + later, **options)


def run_into_a_deleted_thread(saver, thread_id="t"):
    """What a run leaves that saves writes after its thread is gone."""
    plain_graph(saver).invoke({"turns": []}, config(thread_id))
    head = saver.get_tuple(config(thread_id))
    saver.delete_thread(thread_id)
    saver.put_writes(head.config, [("turns", [1]), ("count", 2)], "task")
    assert saver.get_tuple(config(thread_id)) is None
    return head


def test_late_writes_of_a_deleted_thread_go_with_the_next_sweep_once_they_are_old(backend):
    with backend.open() as saver:
        head = run_into_a_deleted_thread(saver)
        plain_graph(saver).invoke({"turns": []}, config("living"))
        living = backend.rows("living")
        young = sweeper_of(saver, later=DAY - 60)
        assert young.orphans() == []
        assert young.sweep().orphan_count == 0
        assert backend.count("t") == 2
        old = sweeper_of(saver)
        name = head.config["configurable"]["checkpoint_id"]
        assert old.orphans() == [Orphan("writes", "t", "", name, "", 2)]
        assert old.sweep(dry_run=True).orphan_count == 2
        assert backend.count("t") == 2
        assert old.sweep().orphan_count == 2
        assert backend.count("t") == 0
        assert backend.rows("living") == living
        assert old.orphans() == []


def test_a_look_at_a_memory_saver_goes_through_its_writes_as_often_for_many_threads_as_for_one():
    class Counted(dict):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return super().__iter__()

        def items(self):
            self.passes += 1
            return super().items()

    def passes(threads):
        saver = InMemorySaver()
        for number in range(threads):
            plain_graph(saver).invoke({"turns": []}, config(f"t{number}"))
        saver.writes = Counted(saver.writes)
        assert sweeper_of(saver).orphans() == []
        return saver.writes.passes

    assert passes(5) == passes(1)


def test_late_writes_go_also_where_the_thread_lives_again(backend):
    with backend.open() as saver:
        run_into_a_deleted_thread(saver)
        plain_graph(saver).invoke({"turns": []}, config("t"))
        assert sweeper_of(saver).delete_orphans() == 2
        assert plain_graph(saver).invoke({"turns": []}, config("t"))["count"] == 2


def test_the_age_is_a_setting_and_none_leaves_them(backend):
    with backend.open() as saver:
        run_into_a_deleted_thread(saver)
        assert sweeper_of(saver, later=0, orphan_age_seconds=None).sweep().orphan_count == 0
        off = sweeper_of(saver, later=10 * DAY, orphan_age_seconds=None)
        assert off.sweep().orphan_count == 0
        assert sweeper_of(saver, later=60, orphan_age_seconds=30).sweep().orphan_count == 2


def test_writes_that_come_before_their_checkpoint_are_kept(backend):
    with backend.open() as saver:
        checkpoint = empty_checkpoint()
        where = config("t", checkpoint_ns="", checkpoint_id=checkpoint["id"])
        saver.put_writes(where, [("turns", [1])], "task")
        assert sweeper_of(saver, later=DAY - 60).sweep().orphan_count == 0
        saver.put(config("t", checkpoint_ns=""), checkpoint, {"parents": {}}, {})
        assert len(saver.get_tuple(config("t")).pending_writes) == 1
        assert sweeper_of(saver, later=10 * DAY).sweep().orphan_count == 0


def test_ids_that_tell_no_time_keep_their_rows(backend):
    with backend.open() as saver:
        for name in ("some-id", "00000000-0000-4000-8000-000000000000"):
            where = config("t", checkpoint_ns="", checkpoint_id=name)
            saver.put_writes(where, [("turns", [1])], "task")
        assert sweeper_of(saver, later=10**8).delete_orphans() == 0


def test_an_id_in_upper_case_that_sorts_below_older_ones_keeps_its_rows(backend):
    with backend.open() as saver:
        where = config("t", checkpoint_ns="", checkpoint_id=uuid6_at(time.time()).upper())
        saver.put_writes(where, [("turns", [1])], "task")
        assert sweeper_of(saver, later=0, orphan_age_seconds=30).delete_orphans() == 0


def test_pending_sends_that_a_stored_checkpoint_reads_from_its_lost_parent_are_kept(backend):
    with backend.open() as saver:
        parent, child = empty_checkpoint(), empty_checkpoint()
        where = config("t", checkpoint_ns="", checkpoint_id=parent["id"])
        saver.put(where, child, {"parents": {}}, {})
        saver.put_writes(where, [("__pregel_tasks", "send")], "task")
        assert sweeper_of(saver).delete_orphans() == 0


def test_a_large_table_is_gone_through_in_parts_and_each_part_comes_round(backend, monkeypatch):
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.orphans.SWEEP_LIMIT", 3)
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.orphans.PAGE_LIMIT", 4)
    with backend.open() as saver:
        for number in range(10):
            run_into_a_deleted_thread(saver, f"t{number}")
        sweeper = sweeper_of(saver)
        assert len(sweeper.orphans()) == 10
        counts = [sweeper.sweep().orphan_count for _ in range(4)]
        assert max(counts) <= 12
        assert sum(counts) == 20
        run_into_a_deleted_thread(saver, "t0")
        assert sum(sweeper.sweep().orphan_count for _ in range(3)) == 2


async def test_the_asynchronous_savers_have_the_same_search(backend):
    with backend.open() as saver:
        run_into_a_deleted_thread(saver)
    async with backend.aopen() as saver:
        sweeper = sweeper_of(saver)
        assert [orphan.rows for orphan in await sweeper.aorphans()] == [2]
        assert (await sweeper.asweep(dry_run=True)).orphan_count == 2
        assert await sweeper.adelete_orphans() == 2
        assert (await sweeper.asweep()).orphan_count == 0


def test_what_a_prune_notes_about_a_thread_is_no_orphan(backend):
    with backend.open() as saver:
        graph = plain_graph(saver)
        for _ in range(3):
            graph.invoke({"turns": []}, config("t"))
        pruner = TTLSweeper(saver, TTLPolicy(max_checkpoints_per_thread=1))
        assert pruner.sweep().pruned_checkpoint_count > 0
        pruned = backend.rows()
        assert sweeper_of(saver, later=10**8).delete_orphans() == 0
        assert backend.rows() == pruned
        assert graph.invoke({"turns": []}, config("t"))["count"] == 4


class TestBlobs:
    @pytest.fixture
    def backend(self, trash_dsn):
        from tests.support.storages import PostgresStorage

        return PostgresStorage(trash_dsn)

    def test_blobs_that_nobody_references_go_once_the_whole_thread_is_old(self, backend):
        with backend.open() as saver:
            graph = plain_graph(saver)
            for thread_id in ("t", "gone", "other"):
                graph.invoke({"turns": []}, config(thread_id))
            whole = backend.rows("other")
            answer = graph.get_state(config("t")).values
            head = saver.get_tuple(config("t")).config["configurable"]["checkpoint_id"]
            # Another tool prunes, and forgets the blobs.
            backend.sql(
                "DELETE FROM checkpoints WHERE thread_id = 't' AND checkpoint_id <> ?", head
            )
            backend.sql("DELETE FROM checkpoint_writes WHERE thread_id = 't'")
            backend.sql("DELETE FROM checkpoints WHERE thread_id = 'gone'")
            backend.sql("DELETE FROM checkpoint_writes WHERE thread_id = 'gone'")
            loose = backend.sql("SELECT count(*) FROM checkpoint_blobs WHERE thread_id = 'gone'")[
                0
            ][0]
            young = sweeper_of(saver, later=DAY - 60).orphans()
            assert {(orphan.kind, orphan.thread_id) for orphan in young} == {("blobs", "gone")}
            found = sweeper_of(saver).orphans()
            assert len([orphan for orphan in found if orphan.thread_id == "gone"]) == loose
            assert {orphan.thread_id for orphan in found} == {"t", "gone"}
            assert sweeper_of(saver).sweep().orphan_count == len(found)
            assert backend.count("gone") == 0
            assert backend.rows("other") == whole
            assert graph.get_state(config("t")).values == answer
            assert sweeper_of(saver).orphans() == []


class TestMemory:
    def test_late_writes_go_once_old_and_blobs_when_seen_twice(self):
        now = [time.time()]
        saver = InMemorySaver()
        sweeper = TTLSweeper(saver, LONG, clock=lambda: now[0])
        graph = plain_graph(saver)
        graph.invoke({"turns": []}, config("living"))
        head = run_into_a_deleted_thread(saver)
        saver.blobs["t", "", "turns", "1.0"] = ("msgpack", b"")
        assert sweeper.sweep().orphan_count == 0
        now[0] += DAY + 60
        # The blob was seen before, a limit ago; the writes are old by their id.
        kinds = [orphan.kind for orphan in sweeper.orphans()]
        assert kinds[0] == "writes"
        sweeper.sweep()
        assert ("t", "", head.config["configurable"]["checkpoint_id"]) not in saver.writes
        now[0] += DAY + 60
        sweeper.sweep()
        assert not [key for key in saver.blobs if key[0] == "t"]
        assert graph.get_state(config("living")).values["count"] == 1
        assert graph.invoke({"turns": []}, config("living"))["count"] == 2

    def test_a_generic_strategy_does_not_look(self):
        saver = InMemorySaver()
        sweeper = TTLSweeper(saver, LONG, strategy=GenericStrategy(saver))
        assert sweeper.sweep().orphan_count == 0
        for method in (sweeper.orphans, sweeper.delete_orphans):
            with pytest.raises(UnsupportedCheckpointerError, match="GenericStrategy cannot look"):
                method()


class TestSqlite:
    @pytest.fixture
    def backend(self, tmp_path):
        from tests.support.storages import SqliteStorage

        return SqliteStorage(str(tmp_path / "checkpoints.db"))

    def test_a_part_of_the_tables_costs_no_more_where_there_is_much_else(self, backend):
        """Counted in steps of SQLite's machine, for the look and for the deletes."""

        def steps(saver, call, *args):
            ticks = []
            saver.conn.set_progress_handler(lambda: ticks.append(1), 10)
            answer = call(*args)
            saver.conn.set_progress_handler(None, 0)
            return len(ticks), answer

        with backend.open() as saver:
            for number in range(20):
                plain_graph(saver).invoke({"turns": []}, config(f"a{number}"))
                run_into_a_deleted_thread(saver, f"b{number}")
            strategy = SqliteStrategy(saver)
            later = time.time() + DAY
            costs = []
            for rows in (0, 5_000):
                saver.conn.executemany(
                    "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, "
                    "channel) VALUES (?, '', ?, 'task', 0, 'turns')",
                    [
                        (f"z{number}", "1f000000-0000-6000-8000-000000000000")
                        for number in range(rows)
                    ],
                )
                saver.conn.commit()
                look, page = steps(saver, strategy.find_orphans, later, later, None, 100)
                delete, _ = steps(saver, strategy.delete_orphans, page.orphans[:3], later)
                assert len(page.orphans) > 3
                costs.append((look, delete))
        assert costs[1][0] < 2 * costs[0][0]
        assert costs[1][1] < 2 * costs[0][1]
