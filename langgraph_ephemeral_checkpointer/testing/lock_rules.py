"""What a strategy that has a lock promises of it."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasLock
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps, Use
from langgraph_ephemeral_checkpointer.testing.rule import DAY, HOUR, of, rule_of


def a_lock_can_be_taken_again(bench: Bench) -> Steps[None]:
    """A lock can be taken again after each release, also by a sweep."""
    strategy = of(bench, HasLock)
    for _ in range(5):
        expect((yield Work(strategy.lock)) is True, "lock() must be True when nobody has it")
        yield Work(strategy.unlock)
    yield from bench.save("idle", NOW - DAY)
    sweeper = bench.sweeper(TTLPolicy(idle_ttl_seconds=HOUR), enable_coordination=True)
    result = yield Use(sweeper, "sweep")
    expect(
        result.deleted_thread_ids == ["idle"] and not result.errors,
        f"a sweep under the lock must delete 'idle', says {result}",
    )
    expect((yield Work(strategy.lock)) is True, "a sweep did not give the lock back")
    yield Work(strategy.unlock)


LOCK_RULES = (rule_of(a_lock_can_be_taken_again, HasLock),)
