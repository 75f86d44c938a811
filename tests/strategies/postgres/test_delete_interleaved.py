"""Whatever commits between any two statements of a delete on Postgres, no thread is taken awake."""

from __future__ import annotations

import time

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.errors import LockNotAvailable

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from langgraph_ephemeral_checkpointer.strategies import PostgresStrategy
from langgraph_ephemeral_checkpointer.strategies.postgres.trash import PostgresUndo
from tests.support.aging import uuid6_at

DAY = 86400.0
NOW = 1_750_000_000.0
OLD = NOW - 10 * DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY)

pytestmark = pytest.mark.parametrize(
    "backend", [("pg-connection", "sweep")], ids="-".join, indirect=True
)


class Interleaved(PostgresStrategy):
    """Calls ``meanwhile`` once, before the nth statement of the first batch that is deleted."""

    def __init__(self, checkpointer, nth=None, meanwhile=None):
        super().__init__(checkpointer)
        self._nth, self._meanwhile = nth, meanwhile
        self._deletes = False
        self.statements = []
        self.undone = 0

    def delete_unread(self, thread_ids, before):
        self._deletes = True
        return super().delete_unread(thread_ids, before)

    def delete_threads(self, thread_ids, recheck):
        self._deletes = True
        return super().delete_threads(thread_ids, recheck)

    def discard_threads(self, thread_ids, recheck, discard):
        self._deletes = True
        return super().discard_threads(thread_ids, recheck, discard)

    def _run(self, plan):
        deletes, self._deletes = self._deletes, False
        try:
            return super()._run(self._watched(plan) if deletes else plan)
        except Exception:
            self.undone += deletes
            raise

    def _watched(self, plan):
        answer = None
        while True:
            try:
                statement = plan.send(answer)
            except StopIteration as end:
                return end.value
            if len(self.statements) == self._nth:
                self._meanwhile()
            self.statements.append(str(statement.sql))
            answer = yield statement


def connect(dsn):
    """Open a session of somebody else, whose statements are no run of a graph: no trigger fires."""
    options = "-c session_replication_role=replica -c lock_timeout=100"
    return psycopg.connect(dsn, autocommit=True, options=options)


def save(conn, checkpoint_id):
    version = "1"
    checkpoint = empty_checkpoint() | {
        "id": checkpoint_id,
        "channel_values": {"messages": ["awake"]},
        "channel_versions": {"messages": version},
    }
    where = {"configurable": {"thread_id": "wakes", "checkpoint_ns": ""}}
    PostgresSaver(conn).put(where, checkpoint, {}, {"messages": version})


SAVE = "a save"
SWAP = "a save and the pruning of as many rows"
SWAP_ODD = "the same, with an id that sorts below others"
WAYS = {
    "unread": {},
    "read": {"on_before_delete": lambda *_: True},
    "trash": {"grace_seconds": 60},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", [SAVE, SWAP, SWAP_ODD])
async def test_what_commits_between_two_statements(backend, pg_dsn, way, what):
    """Before each statement in turn: the fresh checkpoint is always there afterwards, and whole."""
    if way == "trash":
        backend.sweeper(POLICY, grace_seconds=60).setup()
    fresh = f"{int((NOW - 1) * 1000):012x}"
    fresh = f"{fresh[:8]}-{fresh[8:]}-7000-8000-000000000000" if what is SWAP_ODD else uuid6_at(NOW)
    pruned = uuid6_at(OLD + 1)

    def meanwhile():
        with connect(pg_dsn) as other:
            try:
                with other.transaction():
                    if what is not SAVE:
                        other.execute("DELETE FROM checkpoints WHERE checkpoint_id = %s", (pruned,))
                    save(other, fresh)
            except LockNotAvailable:  # the delete has it already
                save(other, fresh)

    nth, kept = 0, []
    try:
        while True:
            for thread_id in ("a", "wakes", "z"):
                await backend.plant(thread_id, OLD)
            for second in (1, 2):
                await backend.put("wakes", uuid6_at(OLD + second))
            before = backend.count("wakes")
            strategy = Interleaved(backend.saver, nth, meanwhile)
            result = await backend.sweep(POLICY, clock=lambda: NOW, strategy=strategy, **WAYS[way])
            if len(strategy.statements) <= nth:
                break
            assert {"a", "z"} <= set(result.deleted_thread_ids)
            assert result.errors == {}
            left = backend.dump("wakes")
            assert any(fresh in row for row in left["checkpoints"]), strategy.statements[nth]
            was_kept = "wakes" not in result.deleted_thread_ids
            assert len(left["checkpoints"]) in (
                (before["checkpoints"], 1 + before["checkpoints"]) if was_kept else (1,)
            )
            assert len(left["checkpoint_blobs"]) == (
                1 + before["checkpoint_blobs"] if was_kept else 1
            )
            assert set(result.kept.values()) <= {KeepReason.WOKE_UP}
            kept.append(was_kept)
            nth += 1
            with psycopg.connect(pg_dsn, autocommit=True) as conn:
                for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
                    conn.execute(f"DELETE FROM {table}")
                if way == "trash":
                    conn.execute("DELETE FROM lgec_trash")
    finally:
        if way == "trash":
            backend.sweeper(POLICY).strategy.transact(PostgresUndo().teardown(force=True))
    # It is noticed up to the last look, which is the last or the last but one of the statements.
    assert len(kept) >= 8
    assert kept == sorted(kept, reverse=True)
    assert kept.index(False) >= len(kept) - 3 if False in kept else True


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize("way", ["unread", "read"])
async def test_a_question_that_commits_between_two_statements(backend, pg_dsn, way, asked_before):
    """Before each statement in turn, a run that saved no checkpoint asks: its thread stays."""
    nth, kept = 0, []
    while True:
        for thread_id in ("a", "asks", "z"):
            head = await backend.plant(thread_id, OLD)
            if thread_id == "asks":
                where = {"thread_id": "asks", "checkpoint_ns": "", "checkpoint_id": head}
            if asked_before:
                for channel in ("__interrupt__", "messages"):
                    await backend.put_writes(thread_id, head, (channel, "?"), task_id="done")

        def meanwhile(where=where):
            with connect(pg_dsn) as other:
                PostgresSaver(other).put_writes(
                    {"configurable": where}, [("__interrupt__", "sure?")], "asks"
                )

        before = backend.count("asks")
        strategy = Interleaved(backend.saver, nth, meanwhile)
        result = await backend.sweep(POLICY, clock=lambda: NOW, strategy=strategy, **WAYS[way])
        if len(strategy.statements) <= nth:
            break
        assert {"a", "z"} <= set(result.deleted_thread_ids)
        assert result.errors == {}
        kept.append("asks" not in result.deleted_thread_ids)
        after = before | {"checkpoint_writes": 1 + before["checkpoint_writes"]}
        assert not kept[-1] or backend.count("asks") == after
        nth += 1
        with psycopg.connect(pg_dsn, autocommit=True) as conn:
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
                conn.execute(f"DELETE FROM {table}")
    # It is noticed up to the last look, which is the last or the last but one of the statements.
    assert len(kept) >= 7
    assert kept == sorted(kept, reverse=True)
    assert kept.index(False) >= len(kept) - 1 if False in kept else True


async def test_threads_that_wait_for_a_human_undo_no_delete(backend):
    """They are told apart before anything is deleted, at every sweep again."""
    for thread_id in ("a", "waits", "answered", "z"):
        head = await backend.plant(thread_id, OLD)
        if thread_id in ("waits", "answered"):
            await backend.put_writes(thread_id, head, ("__interrupt__", "?"), task_id="asks")
        if thread_id == "answered":
            await backend.put_writes(thread_id, head, ("messages", "yes"), task_id="asks")
    strategy = Interleaved(backend.saver)
    result = await backend.sweep(POLICY, clock=lambda: NOW, strategy=strategy)
    assert sorted(result.deleted_thread_ids) == ["a", "answered", "z"]
    assert result.kept == {"waits": KeepReason.INTERRUPTED}
    assert (result.active_thread_count, result.deferred_count) == (1, 0)
    assert strategy.undone == 0
    assert len([sql for sql in strategy.statements if "DELETE FROM public.checkpoints" in sql]) == 1


async def test_a_thread_whose_ids_are_not_all_known_undoes_one_delete(backend):
    """The delete itself finds it out; then all of the batch are read, and the others go."""
    for thread_id in ("a", "mixed", "z"):
        await backend.plant(thread_id, OLD)
    await backend.put("mixed", "00-no-time", ts="not a time either")
    strategy = Interleaved(backend.saver)
    result = await backend.sweep(POLICY, clock=lambda: NOW, strategy=strategy)
    assert sorted(result.deleted_thread_ids) == ["a", "z"]
    assert result.kept == {"mixed": KeepReason.AGE_UNKNOWN}
    assert strategy.undone == 1


async def test_threads_that_nobody_asks_about_are_not_read(backend, pg_dsn):
    """The scan gives ids alone, and one transaction deletes; a lock on one row keeps one thread."""
    for thread_id in ("a", "locked", "z"):
        await backend.plant(thread_id, OLD)
    strategy = Interleaved(backend.saver)
    with psycopg.connect(pg_dsn) as other:
        other.execute(
            "SELECT 1 FROM checkpoints WHERE thread_id = 'locked' AND checkpoint_ns = '' FOR UPDATE"
        )
        began = time.monotonic()
        result = await backend.sweep(POLICY, clock=lambda: NOW, strategy=strategy)
        assert time.monotonic() - began < 2
    assert sorted(result.deleted_thread_ids) == ["a", "z"]
    assert result.kept == {"locked": KeepReason.BUSY}
    assert (result.active_thread_count, result.deferred_count) == (1, 0)
    assert strategy.undone == 0
    first_batch = strategy.statements[: len(strategy.statements) // 2]
    assert not any("min(checkpoint_id)" in sql for sql in first_batch)
