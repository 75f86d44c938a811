"""One sweep over every tenant, as the maintenance role and as nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from langgraph_ephemeral_checkpointer import (
    KeepReason,
    PolicyOverride,
    StorageUnavailableError,
    TTLPolicy,
    TTLSweeper,
)
from langgraph_ephemeral_checkpointer.errors import TenantRequiredError
from langgraph_ephemeral_checkpointer.strategies.tenant.strategy import TenantPostgresStrategy
from langgraph_ephemeral_checkpointer.testing import save_thread
from tests.support.tenant_sweeping import DAY, NOW, WAYS, Sweeping

OLD = NOW - 2 * DAY
TENANTS = ("a", "b", "c")


@pytest.fixture(params=WAYS)
def sweep(request: Any, maintenance_dsn: str, schema: str) -> Sweeping:
    return Sweeping(request.param, maintenance_dsn, schema)


@pytest.fixture
def stored(maintenance_dsn: str, make_saver: Any) -> Any:
    """Three tenants with the same thread ids; what is idle at one is alive at another."""
    with make_saver() as saver:
        for tenant in TENANTS:
            with saver.tenant_scope(tenant):
                save_thread(saver, "t", [OLD if tenant != "b" else NOW - 5])
                save_thread(saver, "own", [OLD])
                save_thread(saver, "long", [NOW - n for n in range(4)])
        yield saver


def threads(saver: Any) -> dict[str, set[str]]:
    found = {}
    for tenant in TENANTS:
        with saver.tenant_scope(tenant):
            found[tenant] = {one.config["configurable"]["thread_id"] for one in saver.list(None)}
    return found


def test_every_tenant_is_swept_by_itself_and_reported_by_itself(
    stored: Any, sweep: Sweeping
) -> None:
    told: list[Any] = []
    policy = TTLPolicy(idle_ttl_seconds=DAY, max_checkpoints_per_thread=1)
    dry = sweep(policy, dry_run=True)
    assert all(left == {"t", "own", "long"} for left in threads(stored).values())
    result = sweep(policy, on_sweep_complete=told.append)
    assert told == [result]
    for one in (dry, result):
        deleted = {name: sorted(part.deleted_thread_ids) for name, part in one.by_tenant.items()}
        assert deleted == {"a": ["own", "t"], "b": ["own"], "c": ["own", "t"]}
        assert sorted(one.deleted_thread_ids) == ["own", "own", "own", "t", "t"]
        assert one.pruned_checkpoint_count == 9
        assert one.active_thread_count == 4
    assert threads(stored) == {"a": {"long"}, "b": {"t", "long"}, "c": {"long"}}


def test_resolvers_and_callbacks_see_the_tenant_in_scope(stored: Any, sweep: Sweeping) -> None:
    seen: list[Any] = []

    def resolve(thread_id: str) -> Any:
        seen.append(("resolve", sweep.tenant_seen(), thread_id))
        return PolicyOverride.EXEMPT if sweep.tenant_seen() == "c" else PolicyOverride.USE_DEFAULT

    def veto(thread_id: str, _policy: Any, _reason: str) -> bool:
        seen.append(("before", sweep.tenant_seen(), thread_id))
        return thread_id != "own"

    def after(thread_id: str, _reason: str) -> None:
        seen.append(("after", sweep.tenant_seen(), thread_id))

    def complete(_result: Any) -> None:
        with pytest.raises(TenantRequiredError):
            sweep.tenant_seen()
        seen.append("complete")

    result = sweep(
        policy_resolver=resolve,
        on_before_delete=veto,
        on_after_delete=after,
        on_sweep_complete=complete,
    )
    resolved = [("resolve", tenant, name) for tenant in TENANTS for name in ("long", "own", "t")]
    assert sorted(one for one in seen if one[0] == "resolve") == resolved
    assert sorted(one for one in seen if one[0] == "before") == [
        ("before", "a", "own"),
        ("before", "a", "t"),
        ("before", "b", "own"),
    ]
    assert [one for one in seen if one[0] == "after"] == [("after", "a", "t")]
    assert seen[-1] == "complete"
    assert result.by_tenant["b"].kept == {"own": KeepReason.VETOED}
    assert result.by_tenant["c"].kept == {}


def test_asynchronous_callbacks_see_the_tenant_too(maintenance_dsn: str, schema: str, stored: Any):
    seen = set()
    sweep = Sweeping("asweep", maintenance_dsn, schema)

    async def veto(_thread_id: str, _policy: Any, _reason: str) -> bool:
        await asyncio.sleep(0)
        seen.add(sweep.tenant_seen())
        return False

    assert sweep(on_before_delete=veto).deleted_thread_ids == []
    assert seen == {"a", "b", "c"}


def test_the_tenant_in_scope_is_the_only_one_also_for_the_maintenance_role(
    stored: Any, sweep: Sweeping
) -> None:
    result = sweep(scope="a")
    assert (sorted(result.deleted_thread_ids), result.by_tenant) == (["own", "t"], {})
    assert threads(stored)["c"] == {"t", "own", "long"}


def test_one_limit_for_all_and_nobody_starves(stored: Any, sweep: Sweeping) -> None:
    """Every sweep is one of a new process; the first tenant always has more than the limit."""
    served = []
    for n in range(6):
        with stored.tenant_scope("a"):
            for k in range(3):
                save_thread(stored, f"new {n} {k}", [NOW - DAY - 60 + 3 * n + k])
        result = sweep(max_deletes_per_sweep=2)
        assert len(result.deleted_thread_ids) == 2
        deferred = {name: part.deferred_count for name, part in result.by_tenant.items()}
        assert result.deferred_count == sum(deferred.values()) == 5 + 3 * (n + 1) - 2 * (n + 1)
        served += [
            (name, thread_id)
            for name, part in result.by_tenant.items()
            for thread_id in part.deleted_thread_ids
        ]
    oldest = {("a", "own"), ("a", "t"), ("b", "own"), ("c", "own"), ("c", "t")}
    assert {*served[:6]} == oldest | {("a", "new 0 0")}
    assert served[6:] == [("a", f"new {n} {k}") for n in range(3) for k in range(3)][1:7]


@pytest.mark.parametrize("batch_size", [1, 500])
def test_threads_that_are_kept_use_up_no_limit_whosever_they_are(
    stored: Any, sweep: Sweeping, batch_size: int
) -> None:
    """The first tenant's are the longest overdue, and vetoed each time."""
    with stored.tenant_scope("a"):
        for n in range(5):
            save_thread(stored, f"ancient {n}", [OLD - 100 * DAY - n])
    asked: list[str] = []

    def veto(thread_id: str, _policy: Any, _reason: str) -> bool:
        asked.append(thread_id)
        return not thread_id.startswith("ancient")

    limited = {"max_deletes_per_sweep": 2, "on_before_delete": veto, "batch_size": batch_size}
    gone: list[str] = []
    for _ in range(3):
        result = sweep(**limited)
        assert {*result.by_tenant["a"].kept} == {f"ancient {n}" for n in range(5)}
        assert result.by_tenant["a"].oldest_overdue_seconds > 100 * DAY
        gone += result.deleted_thread_ids
    assert sorted(gone) == ["own", "own", "own", "t", "t"]
    assert len(asked) == 3 * 5 + 5


def test_with_a_limit_a_resolver_is_asked_once_a_thread_and_threads_are_trimmed(
    stored: Any, sweep: Sweeping
) -> None:
    asked: list[Any] = []

    def resolve(thread_id: str) -> Any:
        asked.append((sweep.tenant_seen(), thread_id))
        return PolicyOverride.USE_DEFAULT

    policy = TTLPolicy(idle_ttl_seconds=DAY, max_checkpoints_per_thread=1)
    result = sweep(policy, max_deletes_per_sweep=1, policy_resolver=resolve)
    assert len(result.deleted_thread_ids) == 1
    assert sorted(asked) == [(name, one) for name in TENANTS for one in ("long", "own", "t")]
    assert result.pruned_checkpoint_count == 9


def test_with_a_limit_a_tenant_that_fails_stops_no_other(
    stored: Any, maintenance_dsn: str, schema: str
) -> None:
    sweep = Sweeping("sweep", maintenance_dsn, schema)
    result = sweep(sweeper=_failing(RuntimeError("one bad row")), max_deletes_per_sweep=3)
    assert result.errors == {"": "tenant 'b': RuntimeError: one bad row"}
    gone = {name: len(part.deleted_thread_ids) for name, part in result.by_tenant.items()}
    assert (gone["a"] + gone["c"], gone["b"]) == (3, 0)
    assert result.deferred_count == 1


class _Failing(TenantPostgresStrategy):
    error: Exception

    def scan(self, *args: Any) -> Any:
        if self.checkpointer.current_tenant() == "b":
            raise self.error
        return super().scan(*args)


def _failing(error: Exception) -> Any:
    def sweeper(saver: Any, policy: Any, **options: Any) -> TTLSweeper:
        strategy = _Failing(saver)
        strategy.error = error
        return TTLSweeper(saver, policy, strategy=strategy, **options)

    return sweeper


def test_what_goes_wrong_with_one_tenant_stops_no_other(
    stored: Any, maintenance_dsn: str, schema: str
) -> None:
    sweep = Sweeping("sweep", maintenance_dsn, schema)
    result = sweep(sweeper=_failing(RuntimeError("one bad row")))
    assert result.by_tenant["b"].errors == {"": "RuntimeError: one bad row"}
    assert result.errors == {"": "tenant 'b': RuntimeError: one bad row"}
    assert sorted(result.by_tenant["c"].deleted_thread_ids) == ["own", "t"]


def test_a_database_that_goes_away_ends_the_sweep_and_the_report_comes_first(
    stored: Any, maintenance_dsn: str, schema: str
) -> None:
    sweep = Sweeping("sweep", maintenance_dsn, schema)
    told: list[Any] = []
    with pytest.raises(StorageUnavailableError):
        sweep(sweeper=_failing(StorageUnavailableError()), on_sweep_complete=told.append)
    assert sorted(told[0].deleted_thread_ids) == ["own", "t"]
    assert {*told[0].by_tenant} == {"a", "b"}
    assert "tenant 'b'" in told[0].errors[""]


def test_a_member_of_the_maintenance_role_and_a_superuser_see_every_tenant_too(
    stored: Any, maintenance_dsn: str, schema: str, superuser: Any, postgres_database: str
) -> None:
    role = psycopg.conninfo.conninfo_to_dict(maintenance_dsn)["user"]
    superuser.execute(f"CREATE ROLE member_{schema} LOGIN PASSWORD 'app' IN ROLE {role}")
    try:
        member = psycopg.conninfo.make_conninfo(maintenance_dsn, user=f"member_{schema}")
        for dsn in (member, postgres_database):
            assert len(Sweeping("sweep", dsn, schema)(dry_run=True).deleted_thread_ids) == 5
    finally:
        superuser.execute(f"DROP ROLE member_{schema}")


def test_one_lock_for_all_tenants(stored: Any, sweep: Sweeping, superuser: Any) -> None:
    held: list[int] = []

    def count(*_: Any) -> bool:
        row = superuser.execute("SELECT count(*) FROM pg_locks WHERE classid = 1279739203")
        held.append(row.fetchone()[0])
        return True

    result = sweep(enable_coordination=True, on_before_delete=count)
    assert set(held) == {1}
    assert len(result.deleted_thread_ids) == 5
