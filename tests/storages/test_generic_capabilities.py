"""A GenericStrategy of the user's gets every door that the strategies of this package have."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer import (
    TTLPolicy,
    TTLSweeper,
    UnsupportedCheckpointerError,
    forecast,
)
from langgraph_ephemeral_checkpointer.retention import purge_messages
from langgraph_ephemeral_checkpointer.strategies import (
    FindsOrphans,
    GenericStrategy,
    HasLock,
    HasTrash,
    MeasuresSizes,
    Prunes,
    PurgesMessages,
    SqliteStrategy,
    register_strategy,
    registry,
)
from langgraph_ephemeral_checkpointer.testing import check_strategy, save_thread
from tests.support import graphs

DAY = 86_400
NOW = 1_750_000_000.0


class OwnSaver(SqliteSaver):
    """A saver of somebody else's."""


class OwnStrategy(
    GenericStrategy, Prunes, HasTrash, FindsOrphans, PurgesMessages, MeasuresSizes, HasLock
):
    """Finds and deletes by the saver's public methods, and does the rest by its tables."""

    locked = False

    def __init__(self, checkpointer):
        super().__init__(checkpointer)
        self.tables = SqliteStrategy(checkpointer)

    @property
    def undo(self):
        return self.tables.undo

    def set_up(self):
        return self.tables.set_up()

    def transact(self, plan):
        return self.tables.transact(plan)

    def discard_threads(self, thread_ids, recheck, discard):
        return self.tables.discard_threads(thread_ids, recheck, discard)

    def prune_threads(self, thread_ids, keep, *, dry_run):
        return self.tables.prune_threads(thread_ids, keep, dry_run=dry_run)

    def births(self, thread_ids):
        return {one.thread_id: one.born_at for one in self.tables.read_threads(thread_ids)}

    def find_orphans(self, before, now, after, limit):
        return self.tables.find_orphans(before, now, after, limit)

    def delete_orphans(self, orphans, before):
        return self.tables.delete_orphans(orphans, before)

    def message_storage(self):
        return self.tables.message_storage()

    def measure_threads(self, thread_ids):
        return self.tables.measure_threads(thread_ids)

    def lock(self):
        free, OwnStrategy.locked = not OwnStrategy.locked, True
        return free

    def unlock(self):
        OwnStrategy.locked = False


@contextmanager
def own_saver():
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        yield OwnSaver(connection)


@pytest.fixture
def saver(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    register_strategy(OwnSaver, OwnStrategy)
    with own_saver() as opened:
        opened.setup()
        yield opened


def sweeper(saver, at=NOW, **options):
    policy = TTLPolicy(idle_ttl_seconds=3600, max_checkpoints_per_thread=2)
    return TTLSweeper(saver, policy, clock=lambda: at, **options)


def test_it_keeps_every_rule_of_what_it_says_it_can():
    report = check_strategy(own_saver, OwnStrategy)
    assert {one.split(" ")[0] for one in report.not_applicable} == {
        "tenants_are_kept_apart",
        "unread_threads_are_deleted_only_where_sure",
    }


def test_a_sweep_prunes_and_keeps_what_it_deletes_in_the_trash(saver):
    save_thread(saver, "idle", [NOW - DAY])
    save_thread(saver, "long", [NOW - 4, NOW - 3, NOW - 2])
    graced = sweeper(saver, grace_seconds=60)
    assert isinstance(graced.strategy, OwnStrategy)
    graced.setup()
    result = graced.sweep()
    assert (result.deleted_thread_ids, result.pruned_checkpoint_count) == (["idle"], 1)
    graced.restore("idle")
    assert [one.thread_id for one in graced.trash()] == []
    assert saver.get_tuple({"configurable": {"thread_id": "idle"}}) is not None


def test_orphans_are_found_by_name_and_by_a_sweep(saver):
    [missing] = save_thread(saver, "gone", [NOW - 9 * DAY], waiting=True)
    saver.conn.execute("DELETE FROM checkpoints")
    saver.conn.commit()
    assert [one.name for one in sweeper(saver).orphans()] == [missing]
    assert sweeper(saver).sweep().orphan_count == 1
    assert sweeper(saver).orphans() == []


def test_a_sweep_leaves_the_work_to_who_has_the_lock(saver, caplog):
    coordinated = sweeper(saver, enable_coordination=True)
    assert caplog.text == ""
    assert coordinated.strategy.lock()
    assert coordinated.sweep().lock_held_elsewhere
    coordinated.strategy.unlock()
    assert not coordinated.sweep().lock_held_elsewhere
    assert not OwnStrategy.locked


def test_messages_are_purged_by_the_saver_alone(saver):
    graph = graphs.chat(saver)
    where = {"configurable": {"thread_id": "thread"}}
    graph.invoke({"messages": [HumanMessage("old")]}, where)
    result = purge_messages(saver, timedelta(days=30), clock=lambda: 4e9)
    assert result.purged_thread_ids == ["thread"]
    assert graph.get_state(where).values.get("messages", []) == []
    graph.invoke({"messages": [HumanMessage("new")]}, where)
    assert isinstance(graph.get_state(where).values["messages"][-1], AIMessage)


def test_a_forecast_tells_the_sizes(saver):
    save_thread(saver, "idle", [NOW - DAY])
    [take] = forecast(saver, [3600], clock=lambda: NOW).takes
    assert take.bytes is not None
    assert take.bytes > 0


def test_a_strategy_without_capabilities_says_so(saver):
    register_strategy(OwnSaver, GenericStrategy)
    with pytest.raises(ValueError, match="GenericStrategy cannot prune"):
        sweeper(saver)
    plain = TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=1))
    for call in (plain.setup, plain.orphans, lambda: purge_messages(saver, 60)):
        with pytest.raises(UnsupportedCheckpointerError, match="GenericStrategy"):
            call()
    [take] = forecast(saver, [3600]).takes
    assert take.threads == 0
