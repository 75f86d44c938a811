"""The sweeper on the tenant savers: the tenant in scope, and none other."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from langgraph.types import Command

from langgraph_ephemeral_checkpointer import (
    KeepReason,
    PolicyOverride,
    StorageUnusableError,
    TTLPolicy,
    TTLSweeper,
    thread_statuses,
)
from langgraph_ephemeral_checkpointer.errors import (
    SchemaMissingError,
    TenantRequiredError,
    UnsupportedCheckpointerError,
)
from langgraph_ephemeral_checkpointer.strategies.tenant.strategy import TenantPostgresStrategy
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from langgraph_ephemeral_checkpointer.testing import save_thread
from tests.support.tenant_graphs import (
    HAS_DELTA,
    checkpoint,
    config,
    delta_graph,
    everything_graph,
    plain_graph,
    put,
    say,
)
from tests.support.tenant_sweeping import DAY, IDLE, NOW, WAYS, Sweeping

SUFFIXES = ("", "_blobs", "_writes")
OLD = NOW - 2 * DAY
TRIM = TTLPolicy(max_checkpoints_per_thread=2)


@pytest.fixture(params=WAYS)
def sweep(request: Any, app_dsn: str, schema: str) -> Sweeping:
    return Sweeping(request.param, app_dsn, schema)


@pytest.fixture
def sweep_all(app_dsn: str, schema: str) -> Sweeping:
    return Sweeping("sweep", app_dsn, schema)


def rows(superuser: Any, schema: str, tenant: str) -> list[Any]:
    """Every row of a tenant in every table."""
    return [
        row
        for suffix in SUFFIXES
        for row in superuser.execute(
            f"SELECT t.* FROM {schema}.agent_threads{suffix} t WHERE tenant = %s ORDER BY t",
            [tenant],
        )
    ]


def test_only_idle_threads_of_the_tenant_in_scope_go(
    make_saver: Any, superuser: Any, schema: str, sweep: Sweeping
) -> None:
    """Whole, from every table; the other tenant has the same thread ids."""
    with make_saver() as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                save_thread(saver, "idle", [OLD, OLD + 1])
                save_thread(saver, "waits", [OLD], waiting=True)
                save_thread(saver, "alive", [OLD, NOW - 60])
                put(saver, "alive below", 1)
                made = {**checkpoint(2), "id": save_thread(saver, "id", [NOW - 9])[0]}
                below = {"configurable": {"thread_id": "alive below", "checkpoint_ns": "sub"}}
                saver.put(below, made, {}, made["channel_versions"])
    before = rows(superuser, schema, "b")
    result = sweep(scope="a")
    assert result.deleted_thread_ids == ["idle"]
    assert result.reasons == {"idle": "idle_ttl"}
    assert result.kept == {"waits": KeepReason.INTERRUPTED}
    assert (result.active_thread_count, result.by_tenant, result.errors) == (4, {}, {})
    assert {row[1] for row in rows(superuser, schema, "a")} == {
        "waits",
        "alive",
        "alive below",
        "id",
    }
    assert rows(superuser, schema, "b") == before


def test_the_default_tenant_is_swept_where_no_scope_is_open(
    make_saver: Any, sweep: Sweeping
) -> None:
    with make_saver(tenant="house") as saver:
        save_thread(saver, "t", [OLD])
        with saver.tenant_scope("a"):
            save_thread(saver, "t", [OLD])
        assert sweep(tenant="house").deleted_thread_ids == ["t"]
        with saver.tenant_scope("a"):
            assert [*saver.list(None)]


def test_a_dry_run_says_what_the_live_run_does_and_writes_nothing(
    make_saver: Any, superuser: Any, schema: str, sweep: Sweeping
) -> None:
    with make_saver() as saver:
        save_thread(saver, "old", [OLD])
        save_thread(saver, "long", [NOW - n for n in range(5)])
    policy = TTLPolicy(idle_ttl_seconds=DAY, max_checkpoints_per_thread=2)
    before = rows(superuser, schema, "default")
    dry = sweep(policy, tenant="default", dry_run=True)
    assert rows(superuser, schema, "default") == before
    live = sweep(policy, tenant="default")
    for result in (dry, live):
        assert (result.deleted_thread_ids, result.pruned_checkpoint_count) == (["old"], 3)
    assert rows(superuser, schema, "default") != before


def test_hard_age_counts_from_the_first_checkpoint_though_saves_prune_it(
    make_saver: Any, sweep: Sweeping
) -> None:
    with make_saver(keep_checkpoints=1) as saver:
        save_thread(saver, "ancient", [NOW - 40 * DAY, NOW - 20 * DAY, NOW - 60])
        save_thread(saver, "young", [NOW - 20 * DAY, NOW - 60])
        assert len([*saver.list(None)]) == 2
    result = sweep(TTLPolicy(hard_age_ttl_seconds=30 * DAY), tenant="default")
    assert result.reasons == {"ancient": "hard_age_ttl"}


def test_a_sweep_that_trims_a_thread_does_not_make_it_younger(
    make_saver: Any, sweep: Sweeping
) -> None:
    with make_saver() as saver:
        save_thread(saver, "t", [NOW - 40 * DAY, NOW - 20 * DAY, NOW - 60])
    both = TTLPolicy(hard_age_ttl_seconds=50 * DAY, max_checkpoints_per_thread=1)
    assert sweep(both, tenant="default").pruned_checkpoint_count == 2
    later = NOW + 11 * DAY
    assert sweep(both, tenant="default", clock=lambda: later).deleted_thread_ids == ["t"]


def test_a_trimmed_graph_goes_on_as_if_nothing_had_been(
    make_saver: Any, superuser: Any, schema: str, sweep: Sweeping
) -> None:
    """Subgraph, pending interrupt, fan-out: state and resume are those of an untouched twin."""
    with make_saver() as saver:
        graph = everything_graph(saver)
        for tenant in ("trimmed", "twin"):
            with saver.tenant_scope(tenant):
                for _ in range(3):
                    graph.invoke(say("hello"), config("t"))
                    graph.invoke(Command(resume="yes"), config("t"))
                graph.invoke(say("and now"), config("t"))
        kept_by_twin = len(rows(superuser, schema, "twin"))
        result = sweep(TRIM, scope="trimmed")
        assert result.errors == {}
        assert result.pruned_checkpoint_count > 10
        assert len(rows(superuser, schema, "twin")) == kept_by_twin
        ends = []
        for tenant in ("trimmed", "twin"):
            with saver.tenant_scope(tenant):
                state = graph.get_state(config("t"), subgraphs=True)
                asked = [one.value for one in state.interrupts]
                below = state.tasks[0].state.values["log"]
                done = graph.invoke(Command(resume="last"), config("t"))
                ends.append((asked, below, [m.content for m in done["messages"]], done["log"]))
        assert ends[0] == ends[1]


if HAS_DELTA:

    def test_a_trimmed_delta_channel_is_rebuilt_as_before(make_saver: Any, sweep: Sweeping) -> None:
        with make_saver() as saver:
            graph = delta_graph(saver, every=4)
            for n in range(6):
                graph.invoke({"log": [str(n)]}, config("t"))
            before = graph.get_state(config("t")).values
            assert sweep(TRIM, tenant="default").pruned_checkpoint_count > 0
            assert graph.get_state(config("t")).values == before
            graph.invoke({"log": ["more"]}, config("t"))


def test_a_thread_whose_age_nobody_knows_is_kept_and_said(make_saver: Any, sweep: Sweeping) -> None:
    with make_saver() as saver:
        odd = {**checkpoint(1), "id": "no time in here", "ts": "nor here"}
        saver.put(config("odd") | {}, odd, {}, odd["channel_versions"])
        dated = {**checkpoint(1), "id": "no uuid", "ts": "2024-01-02T00:00:00+00:00"}
        saver.put(config("dated") | {}, dated, {}, dated["channel_versions"])
    result = sweep(tenant="default")
    assert result.deleted_thread_ids == ["dated"]
    assert result.kept == {"odd": KeepReason.AGE_UNKNOWN}


def test_a_thread_that_is_saved_between_scan_and_delete_is_kept(
    make_saver: Any, sweep: Sweeping
) -> None:
    """Also one that begins to wait for a human; the others of the batch go."""
    with make_saver() as saver:
        for name in ("wakes", "asks", "sleeps"):
            save_thread(saver, name, [OLD])

        def wake(thread_id: str, _policy: Any, _reason: str) -> bool:
            if thread_id == "wakes":
                save_thread(saver, "wakes", [NOW - 5])
            if thread_id == "asks":
                save_thread(saver, "asks", [OLD], waiting=True)
            return True

        result = sweep(tenant="default", on_before_delete=wake)
        assert result.deleted_thread_ids == ["sleeps"]
        assert result.kept == {"wakes": KeepReason.WOKE_UP, "asks": KeepReason.INTERRUPTED}
        assert {one.config["configurable"]["thread_id"] for one in saver.list(None)} == {
            "wakes",
            "asks",
        }


def test_a_thread_that_is_just_being_saved_is_busy_and_stops_no_other(
    make_saver: Any, app_dsn: str, sweep: Sweeping
) -> None:
    """The save holds the thread's lock; the delete passes it by without waiting."""
    with make_saver() as saver, psycopg.connect(app_dsn) as rival:
        for name in ("held", "free"):
            save_thread(saver, name, [OLD])
        for statement in saver.names.lock("default", "held"):
            rival.execute(statement.sql, statement.params)
        result = sweep(tenant="default")
        assert result.deleted_thread_ids == ["free"]
        assert result.kept == {"held": KeepReason.BUSY}
        rival.rollback()
        assert sweep(tenant="default").deleted_thread_ids == ["held"]


def test_a_row_that_somebody_locks_by_hand_makes_its_thread_busy_and_stops_no_other(
    make_saver: Any, app_dsn: str, sweep: Sweeping
) -> None:
    with make_saver() as saver, psycopg.connect(app_dsn) as rival:
        for name in ("held", "free", "free too"):
            save_thread(saver, name, [OLD])
        rival.execute("SELECT set_config('langgraph.tenant', 'default', true)")
        rival.execute(
            f"SELECT FROM {saver.names.schema}.agent_threads WHERE thread_id = 'held' FOR UPDATE"
        )
        result = sweep(tenant="default")
        assert sorted(result.deleted_thread_ids) == ["free", "free too"]
        assert result.kept == {"held": KeepReason.BUSY}


def test_a_checkpoint_that_comes_past_the_saver_keeps_its_thread(
    make_saver: Any, superuser: Any, schema: str, sweep: Sweeping, monkeypatch: Any
) -> None:
    """Raw SQL takes no lock; the count of what was deleted tells, and all is rolled back."""
    with make_saver() as saver:
        save_thread(saver, "t", [OLD])
        columns = [
            name
            for (name,) in superuser.execute(
                "SELECT attname FROM pg_attribute WHERE attnum > 0 AND attrelid = %s::regclass",
                [f"{schema}.agent_threads"],
            )
        ]
        copied = ", ".join("'zz'" if name == "checkpoint_id" else name for name in columns)
        from langgraph_ephemeral_checkpointer.strategies.tenant import delete as module

        original = module.erase_statements

        def sneak(*args: Any) -> Any:
            superuser.execute(
                f"INSERT INTO {schema}.agent_threads ({', '.join(columns)}) "
                f"SELECT {copied} FROM {schema}.agent_threads ON CONFLICT DO NOTHING"
            )
            return original(*args)

        monkeypatch.setattr(module, "erase_statements", sneak)
        assert sweep(tenant="default").kept == {"t": KeepReason.WOKE_UP}
        assert len([*saver.list(None)]) == 2
        assert len(rows(superuser, schema, "default")) == 3


def test_a_checkpoint_that_takes_the_place_of_another_past_the_saver_keeps_its_thread(
    make_saver: Any, superuser: Any, schema: str, sweep: Sweeping, monkeypatch: Any
) -> None:
    """As many go as were judged, but one of them is another."""
    with make_saver() as saver:
        save_thread(saver, "t", [OLD, OLD + 1])
        from langgraph_ephemeral_checkpointer.strategies.tenant import delete as module

        original = module.erase_statements

        def swap(*args: Any) -> Any:
            superuser.execute(
                f"UPDATE {schema}.agent_threads SET checkpoint_id = 'zz' WHERE checkpoint_id = "
                f"(SELECT min(checkpoint_id) FROM {schema}.agent_threads)"
            )
            return original(*args)

        monkeypatch.setattr(module, "erase_statements", swap)
        assert sweep(tenant="default").kept == {"t": KeepReason.WOKE_UP}
        assert len([*saver.list(None)]) == 2


def test_a_graph_that_runs_while_its_thread_is_swept_stores_a_whole_thread(
    make_saver: Any, sweep_all: Sweeping
) -> None:
    with make_saver() as saver:
        plain_graph(saver).invoke({"kept": "input"}, config("t"))
        far = TTLPolicy(idle_ttl_seconds=1)
        gone: list[Any] = []

        def now() -> None:
            if not gone:
                gone.append(sweep_all(far, tenant="default", clock=lambda: NOW * 2))

        result = plain_graph(saver, before_end=now).invoke({"kept": "again"}, config("t"))
        assert gone[0].deleted_thread_ids == ["t"]
        assert plain_graph(saver).get_state(config("t")).values == result


def test_without_a_tenant_an_ordinary_role_is_told_so(make_saver: Any, sweep: Sweeping) -> None:
    with make_saver() as saver:
        save_thread(saver, "t", [OLD])
    with pytest.raises(TenantRequiredError, match="maintenance_role"):
        sweep()
    with make_saver(tenant=None) as saver, pytest.raises(TenantRequiredError):
        next(thread_statuses(saver, IDLE))


def test_batches_pages_and_a_limit(make_saver: Any, monkeypatch: Any, sweep: Sweeping) -> None:
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.paging.PAGE_SIZE", 3)
    with make_saver() as saver:
        for n in range(10):
            save_thread(saver, f"t{n}", [OLD - n])
        save_thread(saver, "alive", [NOW])
    limited = sweep(tenant="default", max_deletes_per_sweep=4, batch_size=3)
    assert sorted(limited.deleted_thread_ids) == ["t6", "t7", "t8", "t9"]
    assert (limited.deferred_count, limited.active_thread_count) == (6, 7)
    rest = sweep(tenant="default", batch_size=2)
    assert len(rest.deleted_thread_ids) == 6
    assert rest.active_thread_count == 1


def test_a_resolver_that_decides_thread_by_thread(make_saver: Any, sweep: Sweeping) -> None:
    with make_saver() as saver:
        for name in ("exempt", "plain", "own"):
            save_thread(saver, name, [OLD])

    def resolve(thread_id: str) -> Any:
        answers = {"exempt": PolicyOverride.EXEMPT, "own": TTLPolicy(idle_ttl_seconds=30 * DAY)}
        return answers.get(thread_id, PolicyOverride.USE_DEFAULT)

    assert sweep(tenant="default", policy_resolver=resolve).deleted_thread_ids == ["plain"]


def test_statuses_are_those_of_the_tenant_in_scope(make_saver: Any) -> None:
    with make_saver() as saver:
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                save_thread(saver, f"of {tenant}", [OLD])
        with saver.tenant_scope("a"):
            (status,) = thread_statuses(saver, IDLE, clock=lambda: NOW)
    assert (status.thread_id, status.expired, status.idle_seconds) == ("of a", True, 2 * DAY)


def test_a_transaction_of_the_callers_is_not_joined(app_dsn: str, schema: str) -> None:
    """A delete in it might be rolled back after it was reported."""
    with psycopg.connect(app_dsn) as conn:
        saver = TenantPostgresSaver(conn, schema=schema)
        save_thread(saver, "t", [OLD])
        conn.execute("SELECT 1")
        with pytest.raises(StorageUnusableError, match="transaction open"):
            TTLSweeper(saver, IDLE, clock=lambda: NOW).sweep()
        conn.rollback()
        assert TTLSweeper(saver, IDLE, clock=lambda: NOW).sweep().deleted_thread_ids == ["t"]
    with TenantPostgresSaver.from_conn_string(app_dsn, schema=schema) as fresh:
        assert not [*fresh.list(None)]


def test_tables_are_proven_before_anything_is_swept(app_dsn: str, schema: str) -> None:
    with (
        TenantPostgresSaver.from_conn_string(app_dsn, schema=schema, create_schema=False) as saver,
        pytest.raises(SchemaMissingError),
    ):
        TTLSweeper(saver, IDLE).sweep()


def test_a_trash_is_refused_and_nothing_is_deleted(saver: TenantPostgresSaver) -> None:
    """There is none for these tables: every way to one says so, and what to do instead."""
    save_thread(saver, "t", [OLD])
    with pytest.raises(ValueError, match=r"what it deletes is gone.* leave it out"):
        TTLSweeper(saver, IDLE, grace_seconds=60)
    sweeper = TTLSweeper(saver, IDLE, clock=lambda: NOW)
    assert isinstance(sweeper.strategy, TenantPostgresStrategy)
    for call in (
        sweeper.setup,
        sweeper.teardown,
        sweeper.ddl,
        sweeper.trash,
        sweeper.empty_trash,
        lambda: sweeper.restore("t"),
    ):
        with pytest.raises(UnsupportedCheckpointerError, match=r"has no trash.*on_before_delete"):
            call()
    assert [*saver.list(None)]
    assert sweeper.sweep(no_trash=True).deleted_thread_ids == ["t"]


def test_only_one_of_two_sweeps_of_a_table_works_at_a_time(
    make_saver: Any, app_dsn: str, superuser: Any, sweep: Sweeping
) -> None:
    """Two tables have two locks; and none is left behind."""
    with make_saver() as saver:
        save_thread(saver, "t", [OLD])
    inside = threading.Barrier(2, timeout=30)
    results: list[Any] = []

    def veto(*_: Any) -> bool:
        inside.wait()
        inside.wait()
        return True

    first = threading.Thread(
        target=lambda: results.append(
            Sweeping("sweep", app_dsn, sweep.schema)(
                tenant="default", enable_coordination=True, on_before_delete=veto
            )
        )
    )
    first.start()
    inside.wait()
    try:
        second = sweep(tenant="default", enable_coordination=True)
        with make_saver(table="elsewhere") as other:
            done = TTLSweeper(other, IDLE, enable_coordination=True).sweep()
            assert not done.lock_held_elsewhere
    finally:
        inside.wait()
        first.join()
    assert second.lock_held_elsewhere
    assert results[0].deleted_thread_ids == ["t"]
    assert not sweep(tenant="default", enable_coordination=True).lock_held_elsewhere
    until = time.monotonic() + 10
    held = "SELECT count(*) FROM pg_locks WHERE classid = 1279739203"
    while superuser.execute(held).fetchone() != (0,):  # a closed session ends in its own time
        assert time.monotonic() < until
