"""What a strategy promises of deletes, and of sweeps as a whole."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, still_expired
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.errors import StorageError
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Recheck
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps
from langgraph_ephemeral_checkpointer.testing.rule import (
    DAY,
    HOUR,
    NAMESPACES,
    rule_of,
    store_family,
)
from langgraph_ephemeral_checkpointer.testing.threads import WAITING

ALIKE = (
    *("a", "A", "a ", " a", "ab", "a%", "a_", "a:b", "a*", "a?", "[a]", "a/b", "a'b"),
    *("user", "user_1", "user_11", "userX1", "user:", "\u00e9", "e\u0301"),
)
"""Thread ids that a prefix, a pattern, a collation or a path takes for one another."""


def delete_takes_the_whole_thread(bench: Bench) -> Steps[None]:
    """A delete takes every namespace and every write, so that a thread may start anew."""
    yield from store_family(bench, "doomed", NOW - DAY)
    yield from store_family(bench, "stays", NOW - DAY)
    yield from bench.delete_for_sure(["doomed"])
    yield from bench.expect_gone(["doomed"], "the delete")
    yield from bench.expect_whole(["stays"], "deleting another thread")
    found = yield from bench.scan()
    expect("doomed" not in found, "scan still reports a thread that was deleted")
    yield from bench.save_again_empty("doomed")
    yield from bench.expect_left_nothing("doomed", "after the delete")
    bench.forget("doomed")


def recreated_threads_are_new(bench: Bench) -> Steps[None]:
    """A thread that is stored again after its delete is as young as its new checkpoints."""
    yield from bench.save("again", NOW - DAY, writes=WAITING)
    yield from bench.delete_for_sure(["again"])
    bench.forget("again")
    yield from bench.save("again", NOW - 5)
    found = yield from bench.scan()
    expect("again" in found, "scan does not report a thread that was stored again")
    bench.expect_facts(found["again"], "scan after the thread was stored again")
    waiting = yield Work(partial(bench.strategy.find_interrupted, ["again"]))
    expect(not waiting, "a thread that was stored again is taken for waiting, as its past was")
    yield from bench.delete_for_sure(["again"])
    yield from bench.expect_gone(["again"], "the second delete")


def thread_ids_are_compared_exactly(bench: Bench) -> Steps[None]:
    """Deleting a thread touches no thread whose id is alike."""
    taken = []
    for thread_id in ALIKE:
        if (yield from bench.save_if_taken(thread_id, NOW - DAY, writes=WAITING)):
            yield from bench.save(thread_id, NOW - DAY, namespace="child")
            taken.append(thread_id)
    found = yield from bench.scan()
    expect(set(found) == set(taken), f"of {taken} scan reports {sorted(found)}")
    for facts in found.values():
        bench.expect_facts(facts, "scan")
    for thread_id in taken:
        asked: dict[str, ThreadFacts | None] = {}
        outcomes = yield from bench.delete([thread_id], _taking_notes(asked))
        expect(outcomes[thread_id].kept is None, f"{thread_id!r}: {outcomes[thread_id]}")
        if read := asked.get(thread_id):
            bench.expect_facts(read, "the recheck")
        yield from bench.expect_gone([thread_id], f"deleting {thread_id!r}")
        bench.forget(thread_id)
        yield from bench.expect_whole(bench.thread_ids, f"deleting {thread_id!r}")


def thread_ids_mean_their_text(bench: Bench) -> Steps[None]:
    """A thread saved under an int or a UUID is reported and deleted by the text of it."""
    for thread_id in (5, UUID(int=7)):
        if not (yield from bench.save_if_taken(thread_id, NOW - DAY)):
            continue
        found = yield from bench.scan()
        expect(
            str(thread_id) in found,
            f"scan must report {thread_id!r} as {str(thread_id)!r}, not as {list(found)!r}",
        )
        yield from bench.delete_for_sure([str(thread_id)])
        bench.forget(str(thread_id))
        # Looked for by a scan: some savers store such an id and then cannot look it up.
        left = yield from bench.scan()
        expect(not left, f"deleting {str(thread_id)!r} left {sorted(left)}")


def _taking_notes(
    asked: dict[str, ThreadFacts | None], kept: dict[str, KeepReason] | None = None
) -> Recheck:
    def recheck(thread_id: str, facts: ThreadFacts | None) -> KeepReason | None:
        expect(thread_id not in asked, f"the recheck was asked twice for {thread_id!r}")
        asked[thread_id] = facts
        return KeepReason.GONE if facts is None else (kept or {}).get(thread_id)

    return recheck


def recheck_is_asked_with_fresh_facts(bench: Bench) -> Steps[None]:
    """A delete asks the recheck once a thread, with what is stored at that moment."""
    for thread_id in ("asleep", "woke-up", "woke-up-below", "now-waits"):
        yield from bench.save(thread_id, NOW - DAY)
    yield from bench.scan()
    yield from bench.save("woke-up", NOW - 2)
    yield from bench.save("woke-up-below", NOW - 2, namespace="child")
    yield from bench.save("now-waits", NOW - DAY + 1, writes=WAITING)
    asked: dict[str, ThreadFacts | None] = {}
    outcomes = yield from bench.delete(bench.thread_ids, _taking_notes(asked))
    for thread_id in bench.thread_ids:
        facts = asked.get(thread_id)
        expect(facts is not None, f"the recheck was not asked for {thread_id!r} with its facts")
        assert facts is not None  # noqa: S101 - for the type checker
        bench.expect_facts(facts, "the recheck")
        expect(
            facts.interrupted is not None,
            f"the recheck must be told whether {thread_id!r} waits for a human, not None",
        )
        expect(outcomes[thread_id].kept is None, f"{thread_id!r}: {outcomes[thread_id]}")


def recheck_is_honoured(bench: Bench) -> Steps[None]:
    """A thread that the recheck keeps stays whole, for the reason it gave; the others go."""
    for thread_id in ("goes", "stays", "also-goes"):
        yield from store_family(bench, thread_id, NOW - DAY)
    recheck = _taking_notes({}, {"stays": KeepReason.WOKE_UP})
    outcomes = yield from bench.delete(bench.thread_ids, recheck)
    expect(
        outcomes["stays"].kept is KeepReason.WOKE_UP,
        f"the recheck kept a thread with WOKE_UP, its outcome is {outcomes['stays']}",
    )
    for thread_id in ("goes", "also-goes"):
        expect(outcomes[thread_id].kept is None, f"{thread_id!r}: {outcomes[thread_id]}")
    yield from bench.expect_whole(["stays"], "a delete that the recheck refused")
    yield from bench.expect_gone(["goes", "also-goes"], "the delete")


def deleting_what_is_gone_is_no_error(bench: Bench) -> Steps[None]:
    """A thread that is gone already is reported as GONE by a rechecked delete, not as an error."""
    yield from bench.save("real", NOW - DAY)
    outcomes = yield from bench.delete(["never-stored", "real"], _taking_notes({}))
    expect(
        outcomes["never-stored"].kept is KeepReason.GONE,
        f"a thread that does not exist must be GONE, not {outcomes['never-stored']}",
    )
    expect(outcomes["real"].kept is None, f"the thread beside it: {outcomes['real']}")
    again = yield from bench.delete(["real"], _taking_notes({}))
    expect(again["real"].kept is KeepReason.GONE, f"a second delete must say GONE, not {again}")
    unchecked = yield from bench.delete(["real"])
    expect(
        unchecked["real"].kept in (None, KeepReason.GONE),
        f"a delete without recheck of a thread that is gone must not fail: {unchecked['real']}",
    )
    expect(not (yield from bench.scan()), "deleting what does not exist left something behind")


def a_failed_delete_loses_nothing(bench: Bench) -> Steps[None]:
    """When a delete fails at a thread, that thread is whole, and any other is whole or gone."""
    for thread_id in ("first", "fails", "last"):
        yield from store_family(bench, thread_id, NOW - DAY)

    def recheck(thread_id: str, _facts: ThreadFacts | None) -> None:
        if thread_id == "fails":
            raise StorageError("the test kit makes this thread fail")

    try:
        outcomes = yield from bench.delete(bench.thread_ids, recheck)
    except StorageError:
        yield from bench.expect_whole(bench.thread_ids, "a delete that raised")
        return
    expect(
        outcomes["fails"].kept is KeepReason.FAILED and outcomes["fails"].error,
        f"the outcome of a thread that failed must be FAILED with an error: {outcomes['fails']}",
    )
    for thread_id, outcome in outcomes.items():
        expected = bench.expect_gone if outcome.kept is None else bench.expect_whole
        yield from expected([thread_id], "a delete during which a thread failed")


def a_batch_may_be_large(bench: Bench) -> Steps[None]:
    """A batch of 120 threads, most of which go, is deleted in one call."""
    for number in range(120):
        yield from bench.save(f"thread-{number}", NOW - DAY)
    kept = {f"thread-{number}": KeepReason.VETOED for number in (0, 60, 119)}
    yield from bench.delete(bench.thread_ids, _taking_notes({}, kept))
    left = yield from bench.scan(limit=50)
    expect(set(left) == set(kept), f"after the delete {sorted(left)} are left, not {sorted(kept)}")


def still_expired_decides_as_documented(bench: Bench) -> Steps[None]:
    """The recheck of a real sweep keeps a thread that woke up in a subgraph only."""
    policy = TTLPolicy(idle_ttl_seconds=HOUR)
    yield from bench.save("sleeps", NOW - DAY)
    yield from bench.save("woke-up-below", NOW - DAY)
    yield from bench.save("woke-up-below", NOW, namespace=NAMESPACES[2])
    outcomes = yield from bench.delete(
        bench.thread_ids, lambda _, facts: still_expired(facts, policy, "idle_ttl", NOW)
    )
    expect(outcomes["woke-up-below"].kept is KeepReason.WOKE_UP, f"{outcomes}")
    expect(outcomes["sleeps"].kept is None, f"{outcomes}")
    yield from bench.expect_whole(["woke-up-below"], "the delete")


def a_sweep_does_what_its_dry_run_said(bench: Bench) -> Steps[None]:
    """A dry run writes nothing and says what a sweep then does; a second sweep finds no more."""
    policy = TTLPolicy(idle_ttl_seconds=HOUR, hard_age_ttl_seconds=7 * DAY)
    yield from store_family(bench, "idle", NOW - DAY)
    yield from bench.save("old", NOW - 9 * DAY)
    yield from bench.save("old", NOW - 1)
    yield from store_family(bench, "active", NOW - HOUR / 2)
    yield from bench.save("waits", NOW - DAY, writes=WAITING)
    stay = {"waits": KeepReason.INTERRUPTED}
    if (yield from bench.save_if_taken("odd", checkpoint_id="no-time", ts="some day")):
        stay["odd"] = KeepReason.AGE_UNKNOWN
    dry = yield from bench.sweep(policy, dry_run=True)
    yield from bench.expect_whole(bench.thread_ids, "a dry run")
    live = yield from bench.sweep(policy)
    for name, result in (("a dry run", dry), ("a sweep", live)):
        expect(not result.errors, f"{name} reports errors: {result.errors}")
        expect(
            sorted(result.deleted_thread_ids) == ["idle", "old"],
            f"{name} must delete 'idle' and 'old', not {result.deleted_thread_ids}",
        )
        expect(result.kept == stay, f"{name} must keep {stay}, not {result.kept}")
        expect(
            result.active_thread_count == 1 + len(stay),
            f"{name} must count {1 + len(stay)} threads alive, not {result.active_thread_count}",
        )
    yield from bench.expect_gone(["idle", "old"], "a sweep")
    yield from bench.expect_whole(["active", *stay], "a sweep")
    again = yield from bench.sweep(policy)
    expect(
        not again.deleted_thread_ids and again.kept == stay,
        f"a second sweep must find nothing more to delete: {again}",
    )


DELETE_RULES = tuple(
    rule_of(check)
    for check in (
        delete_takes_the_whole_thread,
        recreated_threads_are_new,
        thread_ids_are_compared_exactly,
        thread_ids_mean_their_text,
        recheck_is_asked_with_fresh_facts,
        recheck_is_honoured,
        deleting_what_is_gone_is_no_error,
        a_failed_delete_loses_nothing,
        a_batch_may_be_large,
        still_expired_decides_as_documented,
        a_sweep_does_what_its_dry_run_said,
    )
)
