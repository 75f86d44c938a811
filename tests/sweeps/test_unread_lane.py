"""What a sweep reports of threads that it deletes unread, and whom it asks before it does."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from langgraph_ephemeral_checkpointer.errors import StorageUnavailableError
from langgraph_ephemeral_checkpointer.strategies import Page
from tests.support import backends

DAY = 86400.0
NOW = 1_750_000_000.0
OLD = NOW - 10 * DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
CLOCK = {"clock": lambda: NOW}

unread = pytest.mark.parametrize(
    "backend",
    [one for one in backends.PARAMS if one[0] in ("sqlite", "aiosqlite", "pg-pool", "apg-pool")],
    ids="-".join,
    indirect=True,
)
synchronous = pytest.mark.parametrize(
    "backend", [("sqlite", "sweep"), ("pg-connection", "sweep")], ids="-".join, indirect=True
)


def strategy_of(backend, **methods):
    """The strategy of the saver, in a subclass as users may write it."""
    kind = type(backend.sweeper().strategy)
    return type("Users", (kind,), {name: make(kind) for name, make in methods.items()})(
        backend.saver
    )


def passes_by(kind):
    """Leave the threads of one customer out, in the way that was right before Page.unread."""

    def scan(self, wanted, after, limit):
        page = kind.scan(self, wanted, after, limit)
        rest = [facts for facts in page.threads if facts.thread_id != "keep"]
        return Page(rest, page.seen, page.next)

    return scan


def tells(told):
    def make(kind):
        def delete_threads(self, thread_ids, recheck):
            told.extend(thread_ids)
            return kind.delete_threads(self, thread_ids, recheck)

        return delete_threads

    return make


@synchronous
@pytest.mark.parametrize("changed", ["scan", "delete_threads"])
async def test_a_strategy_of_the_users_that_changes_a_part_is_asked_about_every_thread(
    backend, changed
):
    for thread_id in ("a", "keep", "z"):
        await backend.plant(thread_id, OLD)
    told = []
    methods = {"scan": passes_by} if changed == "scan" else {"delete_threads": tells(told)}
    strategy = strategy_of(backend, **methods)
    result = await backend.sweep(POLICY, strategy=strategy, **CLOCK)
    if changed == "scan":
        assert result.deleted_thread_ids == ["a", "z"]
        assert backend.has("keep")
    else:
        assert result.deleted_thread_ids == told == ["a", "keep", "z"]


@synchronous
async def test_a_storage_that_goes_away_in_the_middle_loses_no_thread_from_the_report(backend):
    for number in range(7):
        await backend.plant(f"t{number}", OLD)
    await backend.plant("alive", NOW - 60)

    def away(kind):
        def delete_unread(self, thread_ids, before):
            if "t4" in thread_ids:
                raise StorageUnavailableError("gone fishing")
            return kind.delete_unread(self, thread_ids, before)

        return delete_unread

    strategy = strategy_of(backend, delete_unread=away)
    result = await backend.sweep(POLICY, strategy=strategy, batch_size=2, **CLOCK)
    assert result.deleted_thread_ids == ["t0", "t1", "t2", "t3"]
    assert result.kept == {"t4": KeepReason.FAILED, "t5": KeepReason.FAILED}
    assert (result.deferred_count, result.active_thread_count) == (1, 4)
    assert "gone fishing" in result.errors[""]


@unread
async def test_a_cancelled_sweep_finishes_its_batch_and_tells_of_it(backend):
    if backend.colour == "sweep":
        backend.colour = "asweep"
    for number in range(6):
        await backend.plant(f"t{number}", OLD)
    told = []

    def after_delete(thread_id, _reason):
        told.append(thread_id)
        task.cancel()

    sweeper = backend.sweeper(POLICY, batch_size=3, on_after_delete=after_delete, **CLOCK)
    task = asyncio.create_task(sweeper.asweep())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["t0", "t1", "t2"]
    assert backend.storage.threads() == {"t3", "t4", "t5"}
    assert (await backend.sweep(POLICY, **CLOCK)).deleted_thread_ids == ["t3", "t4", "t5"]


@pytest.mark.parametrize(
    "backend", [("pg-connection", "sweep"), ("apg-pool", "asweep")], ids="-".join, indirect=True
)
async def test_a_thread_that_cannot_be_deleted_starves_no_other(backend, pg_dsn):
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        conn.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'not this one'; END$$"
        )
        conn.execute(
            "CREATE TRIGGER refuse BEFORE DELETE ON checkpoint_writes FOR EACH ROW "
            "WHEN (OLD.thread_id = 'bad') EXECUTE FUNCTION refuse()"
        )
        try:
            for day in (10, 9):
                for thread_id in ("a", "bad", "z") if day == 10 else ("a", "z"):
                    await backend.plant(thread_id, NOW - day * DAY)
                before = backend.dump("bad")
                result = await backend.sweep(POLICY, **CLOCK)
                assert result.deleted_thread_ids == ["a", "z"]
                assert result.kept == {"bad": KeepReason.FAILED}
                assert "not this one" in result.errors["bad"]
                assert backend.dump("bad") == before
                assert (result.active_thread_count, result.deferred_count) == (1, 0)
        finally:
            conn.execute("DROP FUNCTION refuse CASCADE")


@pytest.mark.parametrize(
    "backend", [("sqlite", "sweep"), ("pg-connection", "sweep")], ids="-".join, indirect=True
)
@pytest.mark.parametrize(
    "options",
    [
        {"policy_resolver": lambda _thread_id: POLICY},
        {"on_before_delete": lambda *_: True},
        {"max_deletes_per_sweep": 10},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("policy", [POLICY, TTLPolicy(1e6, 1e7), TTLPolicy(1e6, None, 5)])
async def test_nothing_is_deleted_unread_where_somebody_or_another_rule_has_a_say(
    backend, options, policy
):
    if policy is not POLICY:
        options = {}
    await backend.plant("t", NOW - 1e8)

    unread = []

    def watched(_kind):
        def delete_unread(self, thread_ids, before):
            unread.extend(thread_ids)
            return ()

        return delete_unread

    strategy = strategy_of(backend, delete_unread=watched)
    result = await backend.sweep(policy, strategy=strategy, **options, **CLOCK)
    assert (result.deleted_thread_ids, unread) == (["t"], [])
    await backend.plant("t", NOW - 1e8)
    await backend.sweep(POLICY, strategy=strategy, **CLOCK)
    assert unread == ["t"]
