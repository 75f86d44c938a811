"""Pruning beside runs and other prunes of the same thread, and what only Postgres has."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row, tuple_row

from langgraph_ephemeral_checkpointer import PolicyOverride, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.engine.plan import drive
from langgraph_ephemeral_checkpointer.strategies.postgres.prune import prune_postgres
from langgraph_ephemeral_checkpointer.strategies.postgres.prune_statements import SNAPSHOT
from tests.strategies.test_prune_cases import turn
from tests.support.backends import Place
from tests.support.features import HAS_UPSTREAM_PRUNE
from tests.support.prune_graphs import Driver, exact, new_thread, shape


@pytest.fixture
def place(postgres_pair):
    dsn = postgres_pair[0]
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        yield Place("postgres", PostgresSaver(conn), dsn)


class Stepwise:
    """A prune on a connection of its own, one statement at a time."""

    def __init__(self, conn, thread_id, keep):
        self.conn = conn
        self.conn.execute(SNAPSHOT)
        self.plan = prune_postgres([thread_id], keep)
        self.statement = next(self.plan)

    def step(self):
        """Carry out one statement; returns the outcomes once the plan is through."""
        with self.conn.cursor(row_factory=tuple_row) as cur:
            cur.execute(self.statement.sql, self.statement.params or None, prepare=False)
            answer = cur.fetchall() if self.statement.fetch else cur.rowcount
        try:
            self.statement = self.plan.send(answer)
        except StopIteration as end:
            self.conn.commit()
            return end.value
        return None


async def test_what_a_run_appends_between_any_two_statements_is_untouched(place):
    at = 1  # the first statement takes the snapshot
    finished = False
    while not finished:
        driver = Driver(place, new_thread(), 2)
        thread_id = driver.config["configurable"]["thread_id"]
        for _ in range(3):
            await driver.perform(turn("keep"))
        with psycopg.connect(place.where) as conn:
            prune = Stepwise(conn, thread_id, 2)
            outcome = None
            for _ in range(at):
                outcome = prune.step()
            ids = await driver.ids()
            await driver.perform(turn("call"))
            appended = [s for s in await driver.history() if s.created_at][: -len(ids)]
            after_turn = exact(await driver.state())
            finished = outcome is not None
            while outcome is None:
                outcome = prune.step()
        assert outcome[thread_id].removed_checkpoints > 0
        assert exact(await driver.state()) == after_turn
        left = {state.config["configurable"]["checkpoint_id"] for state in await driver.history()}
        assert {state.config["configurable"]["checkpoint_id"] for state in appended} <= left
        assert (await driver.perform(turn("keep")))["plain"][-1].startswith("z/")
        at += 1
    assert at > 8


async def test_of_two_prunes_at_once_one_wins_and_the_other_may_try_again(place):
    driver = Driver(place, new_thread(), 2)
    thread_id = driver.config["configurable"]["thread_id"]
    for _ in range(3):
        await driver.perform(turn("keep"))
    before = exact(await driver.state())
    with psycopg.connect(place.where) as one, psycopg.connect(place.where) as other:
        first, second = Stepwise(one, thread_id, 2), Stepwise(other, thread_id, 2)
        for _ in range(4):  # both have their snapshot
            first.step()
            second.step()
        while not (outcome := first.step()):
            pass
        assert outcome[thread_id].removed_checkpoints > 0
        with pytest.raises(psycopg.errors.SerializationFailure):
            while not second.step():
                pass
        other.rollback()
    again = await place.prune(thread_id, 2)
    assert (again.removed_checkpoints, again.left_whole) == (0, None)
    assert exact(await driver.state()) == before


async def test_the_pending_sends_of_an_old_format_are_still_read_from_the_parent(place):
    """Checkpoints before format 4 had their sends in the parent's writes."""
    driver = Driver(place, new_thread(), 1)
    thread_id = driver.config["configurable"]["thread_id"]
    for _ in range(2):
        await driver.perform(turn())
    ids = await driver.ids()
    parent = (await driver.state()).parent_config["configurable"]["checkpoint_id"]
    conn = place.saver.conn
    conn.execute(
        "UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, '{v}', '3') "
        "WHERE thread_id = %s",
        (thread_id,),
    )
    place.saver.put_writes(driver.at(parent), [("__pregel_tasks", "sent")], new_thread())
    before = place.saver.get_tuple(driver.config)
    assert before.checkpoint["channel_values"]["__pregel_tasks"] == ["sent"]
    assert (await place.prune(thread_id, 1)).removed_checkpoints == len(ids) - 2
    assert place.saver.get_tuple(driver.config) == before


async def test_a_thread_without_metadata_or_of_odd_shape_is_pruned_or_left_whole(place):
    for metadata in ({}, {"parents": None}, {"parents": []}, {"source": 3}):
        driver = Driver(place, new_thread(), 1)
        thread_id = driver.config["configurable"]["thread_id"]
        await driver.perform(turn("keep"))
        place.saver.conn.execute(
            "UPDATE checkpoints SET metadata = %s WHERE thread_id = %s",
            (json.dumps(metadata), thread_id),
        )
        before = shape(await driver.state())
        assert (await place.prune(thread_id, 1)).removed_checkpoints > 0
        assert shape(await driver.state()) == before


if HAS_UPSTREAM_PRUNE:

    async def test_upstreams_own_prune_still_works_after_ours(place):
        driver = Driver(place, new_thread(), 1)
        thread_id = driver.config["configurable"]["thread_id"]
        config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        for at in range(4):
            place.saver.put(config, empty_checkpoint(), {"step": at, "parents": {}}, {})
        before = place.saver.get_tuple(driver.config)
        await place.prune(thread_id, 2)
        place.saver.prune([thread_id], strategy="keep_latest")
        assert len(list(place.saver.list(driver.config))) == 1
        assert place.saver.get_tuple(driver.config).checkpoint == before.checkpoint


async def test_two_sweepers_that_trim_one_thread_at_once_give_one_result_and_no_error(place):
    driver = Driver(place, new_thread(), 2)
    for _ in range(3):
        await driver.perform(turn("keep"))
    before = exact(await driver.state())
    length = len(await driver.ids())
    policy = TTLPolicy(max_checkpoints_per_thread=2)

    def only_this(found):  # the database is shared with other tests, and some damage theirs
        mine = found == driver.config["configurable"]["thread_id"]
        return PolicyOverride.USE_DEFAULT if mine else PolicyOverride.EXEMPT

    def sweep(start):
        with PostgresSaver.from_conn_string(place.where) as saver:
            start.wait()
            return TTLSweeper(saver, policy, policy_resolver=only_this).sweep()

    start = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(sweep, [start] * 4))
    assert [result.errors for result in results] == [{}] * 4
    assert sum(result.pruned_checkpoint_count for result in results) > 0
    assert exact(await driver.state()) == before
    assert len(await driver.ids()) < length
    with PostgresSaver.from_conn_string(place.where) as saver:
        again = TTLSweeper(saver, policy, policy_resolver=only_this).sweep()
    assert again.pruned_checkpoint_count == 0


async def test_a_checkpoint_that_a_trigger_holds_back_is_not_counted(place):
    held, whole = threads = new_thread(), new_thread()
    for thread_id in threads:
        config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        for step in range(5):
            place.saver.put(config, empty_checkpoint(), {"step": step, "parents": {}}, {})

    def perform(statement):
        with place.saver.conn.cursor(row_factory=tuple_row) as cur:
            cur.execute(statement.sql, statement.params or None, prepare=False)
            return cur.fetchall() if statement.fetch else cur.rowcount

    place.saver.conn.execute(
        "CREATE FUNCTION hold_back() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN CASE WHEN OLD.metadata ->> 'step' = '1' THEN NULL ELSE OLD END; END $$;"
        "CREATE TRIGGER hold_back BEFORE DELETE ON checkpoints FOR EACH ROW "
        f"WHEN (OLD.thread_id = '{held}') EXECUTE FUNCTION hold_back()"
    )
    try:
        with place.saver.conn.transaction():
            outcomes = drive(prune_postgres([held, whole], 2), perform)
    finally:
        place.saver.conn.execute("DROP FUNCTION hold_back CASCADE")
    assert {one: outcomes[one].removed_checkpoints for one in threads} == {held: 2, whole: 3}
