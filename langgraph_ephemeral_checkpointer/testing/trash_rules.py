"""What a strategy that has a trash promises of it."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.errors import NotSetUpError
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasTrash
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps, Use
from langgraph_ephemeral_checkpointer.testing.rule import DAY, HOUR, rule_of, store_family

_POLICY = TTLPolicy(idle_ttl_seconds=HOUR)


def a_trash_must_be_set_up(bench: Bench) -> Steps[None]:
    """Without its trash a sweep with a grace period raises NotSetUpError and deletes nothing."""
    yield from store_family(bench, "idle", NOW - DAY)
    sweeper = bench.sweeper(_POLICY, grace_seconds=HOUR)
    try:
        result = yield Use(sweeper, "sweep")
    except NotSetUpError:
        yield from bench.expect_whole(["idle"], "a sweep that was refused")
        return
    expect(False, f"a sweep with grace_seconds and no trash must raise, not give {result}")


def trash_gives_back_what_was_deleted(bench: Bench) -> Steps[None]:
    """A thread comes back out of the trash whole, and is emptied with it when its grace is over."""
    first = bench.sweeper(_POLICY, grace_seconds=HOUR)
    yield Use(first, "setup")
    try:
        yield from _there_and_back(bench)
    finally:
        yield Use(first, "teardown", (), {"force": True})


def _there_and_back(bench: Bench) -> Steps[None]:
    def at(hours: float) -> TTLSweeper:
        return bench.sweeper(_POLICY, NOW + hours * HOUR, grace_seconds=HOUR)

    yield from store_family(bench, "idle", NOW - DAY)
    yield from store_family(bench, "active", NOW + DAY)
    for hours in (0.0, 2.0):
        result = yield Use(at(hours), "sweep")
        expect(result.deleted_thread_ids == ["idle"], f"a sweep must delete 'idle', says {result}")
        yield from bench.expect_gone(["idle"], "a move to the trash")
        entries = yield Use(at(hours), "trash")
        expect(
            [(one.thread_id, one.reason) for one in entries] == [("idle", "idle_ttl")],
            f"the trash must list 'idle' with its rule, lists {entries}",
        )
        if hours:
            break
        yield Use(at(hours), "restore", ("idle",))
        yield from bench.expect_whole(["idle"], "a restore")
        expect(not (yield Use(at(hours), "trash")), "a thread that came back is still in the trash")
        again = yield Use(at(0.5), "sweep")
        expect(
            again.kept == {"idle": KeepReason.RESTORED},
            f"a thread that came back must be kept for its grace, the sweep says {again}",
        )
    yield from bench.expect_whole(["active"], "a move of another thread to the trash")
    last = yield Use(at(4.0), "sweep")
    expect(last.emptied_trash_count == 1, f"a sweep after the grace must empty the trash: {last}")
    expect(not (yield Use(at(4.0), "trash")), "what was emptied is still listed")


TRASH_RULES = tuple(
    rule_of(check, HasTrash)
    for check in (a_trash_must_be_set_up, trash_gives_back_what_was_deleted)
)
