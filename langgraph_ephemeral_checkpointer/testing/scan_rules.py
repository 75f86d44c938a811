"""What a strategy promises of scans and of looking for interrupts."""

from __future__ import annotations

from functools import partial

from langgraph_ephemeral_checkpointer.decisions.expiry import Wanted
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.langgraph_names import ERROR, INTERRUPT, RESUME
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps
from langgraph_ephemeral_checkpointer.testing.rule import DAY, rule_of, store_family
from langgraph_ephemeral_checkpointer.testing.threads import WAITING

_MANY, _THREADS = 1000, 125
"""A usual limit of a listing, of checkpoints as well as of threads with eight each."""


def scan_covers_every_thread_once(bench: Bench) -> Steps[None]:
    """A scan reports every thread exactly once, and counts what it looked at."""
    yield from store_family(bench, "first", NOW - DAY)
    yield from bench.save("root-only", NOW)
    yield from bench.save("subgraph-only", NOW, namespace="child")
    for number in range(9):
        yield from bench.save(f"thread-{number}", NOW - number)
    for limit in (1, 2, 3, 1000):
        found = yield from bench.scan(limit=limit)
        expected = set(bench.thread_ids)
        expect(
            set(found) == expected,
            f"scan in pages of {limit} missed {sorted(expected - set(found))} "
            f"and invented {sorted(set(found) - expected)}",
        )
        pages = yield from bench.pages(limit=limit)
        seen = sum(page.seen for page in pages)
        expect(
            seen == len(expected),
            f"scan in pages of {limit} says seen={seen} in all, but there are {len(expected)}",
        )


def every_stored_thread_is_listed(bench: Bench) -> Steps[None]:
    """A thread that was stored is listed, however many checkpoints there are."""
    hint = (
        f"where the strategy lists by the saver, {type(bench.saver).__name__}.list(None) or "
        "alist(None) must give every checkpoint of every thread, without a limit of its own"
    )
    yield from bench.save("first", NOW)
    found = yield from bench.scan()
    expect(list(found) == ["first"], f"one thread is stored, {list(found)} are listed; {hint}")
    for number in range(_MANY):
        yield from bench.save(f"thread-{number % _THREADS}", NOW + number)
    facts = yield from bench.scan()
    listed = sum(one.checkpoint_count for one in facts.values())
    expect(
        (len(facts), listed) == (_THREADS + 1, _MANY + 1),
        f"{_THREADS + 1} threads with {_MANY + 1} checkpoints are stored, {len(facts)} threads "
        f"with {listed} are listed; {hint}",
    )


def scan_of_nothing_is_empty(bench: Bench) -> Steps[None]:
    """A scan of an empty storage reports no thread and ends."""
    pages = yield from bench.pages()
    expect(
        not any(page.threads or page.seen for page in pages),
        "scan reports threads in an empty storage; the factory must give an empty one each time",
    )


def scan_tells_times_and_counts(bench: Bench) -> Steps[None]:
    """A scan tells birth, newest checkpoint and counts over all namespaces."""
    yield from store_family(bench, "family", NOW - 2 * DAY)
    yield from bench.save("awake-in-a-subgraph", NOW - DAY)
    yield from bench.save("awake-in-a-subgraph", NOW - 5, namespace="child")
    yield from bench.save("born-in-a-subgraph", NOW - 9 * DAY, namespace="child")
    yield from bench.save("born-in-a-subgraph", NOW - 3)
    yield from bench.save("subgraph-only", NOW - 7, namespace="child")
    yield from bench.save("before-1970", -DAY)
    for facts in (yield from bench.scan()).values():
        bench.expect_facts(facts, "scan")


def scan_never_guesses_an_age(bench: Bench) -> Steps[None]:
    """A thread with a checkpoint of unknown age has an unknown age, never a made-up one."""
    taken = yield from bench.save_if_taken("odd", checkpoint_id="no-time-1", ts="some day")
    if taken:
        yield from bench.save("partly-odd", NOW - DAY)
        yield from bench.save("partly-odd", checkpoint_id="no-time-2", ts="some day")
    yield from bench.save_if_taken("by-ts", NOW - DAY, checkpoint_id="no-time-3")
    yield from bench.save("known", NOW - DAY)
    for thread_id, facts in (yield from bench.scan()).items():
        if thread_id == "by-ts" and facts.newest_at is None and facts.born_at is None:
            bench.notes.append("the age of a checkpoint whose id holds no time stays unknown")
            continue
        bench.expect_facts(facts, "scan")


def scan_is_never_narrower_than_wanted(bench: Bench) -> Steps[None]:
    """A scan reports every thread that is wanted, and those of unknown age always."""
    for days in range(1, 6):
        yield from bench.save(f"idle-{days}", NOW - days * DAY)
        yield from bench.save(f"born-{days}", NOW - days * DAY)
        yield from bench.save(f"born-{days}", NOW)
        for number in range(days):
            yield from bench.save(f"long-{days}", NOW - number)
    yield from bench.save("asleep-at-the-root", NOW - 4 * DAY)
    yield from bench.save("asleep-at-the-root", NOW, namespace="child")
    yield from bench.save_if_taken("odd", checkpoint_id="no-time", ts="some day")
    for wanted in (
        Wanted(),
        Wanted(newest_before=NOW - 2.5 * DAY),
        Wanted(born_before=NOW - 3.5 * DAY),
        Wanted(more_checkpoints_than=3),
        Wanted(NOW - 4.5 * DAY, NOW - 4.5 * DAY, 4),
        Wanted(newest_before=float("-inf"), born_before=float("-inf")),
    ):
        for limit in (2, 1000):
            found = yield from bench.scan(wanted, limit)
            due = {one for one in bench.thread_ids if wanted.matches(bench.truth(one))}
            expect(due <= set(found), f"scan({wanted}) left out {sorted(due - set(found))}")
            seen = sum(page.seen for page in (yield from bench.pages(wanted, limit)))
            expect(
                seen == len(bench.thread_ids),
                f"scan({wanted}) says seen={seen}; it must count all {len(bench.thread_ids)} "
                "threads it looked at, also those it does not report",
            )


def interrupted_threads_are_found(bench: Bench) -> Steps[None]:
    """The threads that wait for a human answer are found, and no others."""
    ask, answer, output = (INTERRUPT, "?"), (RESUME, "!"), ("messages", "done")

    def writes(*of_tasks: tuple[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
        return [(task, channel, value) for task, (channel, value) in of_tasks]

    heads = {
        "no-writes": [],
        "waits": writes(("one", ask)),
        "answered-not-finished": writes(("one", ask), ("one", answer)),
        "finished": writes(("one", ask), ("one", output)),
        "one-of-two-waits": writes(("one", ask), ("one", output), ("two", ask)),
        "another-task-finished": writes(("one", ask), ("two", output)),
        "failed": writes(("one", (ERROR, "no"))),
    }
    for thread_id, of_head in heads.items():
        yield from bench.save(thread_id, NOW - 2, writes=[("old", "messages", "done")])
        yield from bench.save(thread_id, NOW - 1, writes=of_head)
    yield from bench.save("waited-once", NOW - 2, writes=WAITING)
    yield from bench.save("waited-once", NOW - 1)
    yield from bench.save("waits-subgraph-is-newer", NOW - 2, writes=WAITING)
    yield from bench.save("waits-subgraph-is-newer", NOW - 1, namespace="child")
    yield from bench.save("subgraph-only", NOW, namespace="child")
    waiting = {one for one in bench.thread_ids if bench.truth(one).interrupted}
    find = partial(bench.strategy.find_interrupted, [*bench.thread_ids, "never-stored"])
    found = set((yield Work(find)))
    expect(
        found == waiting,
        f"find_interrupted missed {sorted(waiting - found)} "
        f"and took {sorted(found - waiting)} for waiting",
    )
    only = set((yield Work(partial(bench.strategy.find_interrupted, ["no-writes"]))))
    expect(not only, f"find_interrupted(['no-writes']) must answer for that thread only: {only}")
    for facts in (yield from bench.scan()).values():
        bench.expect_facts(facts, "scan")


def looking_changes_nothing(bench: Bench) -> Steps[None]:
    """Scanning and looking for interrupts leave the storage as it is."""
    yield from store_family(bench, "family", NOW - DAY)
    yield from bench.save("waits", NOW - DAY, writes=WAITING)
    before = yield from bench.scan()
    yield Work(partial(bench.strategy.find_interrupted, ["family", "waits", "never-stored"]))
    yield from bench.pages(Wanted(newest_before=NOW), 1)
    yield from bench.expect_whole(bench.thread_ids, "a scan")
    after = yield from bench.scan()
    expect(before == after, f"looking changed what a scan reports: {before} became {after}")


SCAN_RULES = tuple(
    rule_of(check)
    for check in (
        scan_covers_every_thread_once,
        every_stored_thread_is_listed,
        scan_of_nothing_is_empty,
        scan_tells_times_and_counts,
        scan_never_guesses_an_age,
        scan_is_never_narrower_than_wanted,
        interrupted_threads_are_found,
        looking_changes_nothing,
    )
)
