"""What a strategy that prunes promises of it."""

from __future__ import annotations

from functools import partial

from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.strategies.capabilities import Prunes
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps
from langgraph_ephemeral_checkpointer.testing.rule import DAY, of, rule_of
from langgraph_ephemeral_checkpointer.testing.threads import WAITING


def prune_keeps_the_newest(bench: Bench) -> Steps[None]:
    """Pruning keeps the newest root checkpoints, the thread's birth time and what waits."""
    strategy = of(bench, Prunes)
    for thread_id, length in {"long": 5, "short": 2, "waits": 3}.items():
        for number in range(length):
            is_head = number == length - 1
            writes = WAITING if thread_id == "waits" and is_head else ()
            yield from bench.save(thread_id, NOW - DAY + number, writes=writes)
    before = yield from bench.scan()
    removed = {"long": 3, "short": 0, "waits": 1}
    prune = partial(strategy.prune_threads, list(removed), 2)
    for dry_run in (True, False):
        outcomes = yield Work(partial(prune, dry_run=dry_run))
        counts = {thread_id: outcome.removed_checkpoints for thread_id, outcome in outcomes.items()}
        expect(
            counts == removed,
            f"prune_threads(keep=2, dry_run={dry_run}) must remove {removed}, says {outcomes}",
        )
        if dry_run:
            yield from bench.expect_whole(bench.thread_ids, "a dry run of a prune")
    for thread_id in removed:
        yield from bench.expect_trimmed(thread_id, 2)
    after = yield from bench.scan()
    for thread_id, facts in before.items():
        expect(
            after[thread_id].born_at == facts.born_at,
            f"pruning changed the birth time of {thread_id!r} from {facts.born_at} to "
            f"{after[thread_id].born_at}; trimming must not make a thread younger",
        )
    waiting = set((yield Work(partial(bench.strategy.find_interrupted, list(removed)))))
    expect(waiting == {"waits"}, f"after a prune these wait: {waiting}, must be 'waits'")
    again = yield Work(partial(prune, dry_run=False))
    expect(
        not any(outcome.removed_checkpoints for outcome in again.values()),
        f"a second prune must find nothing to remove, says {again}",
    )


PRUNE_RULES = (rule_of(prune_keeps_the_newest, Prunes),)
