"""What a strategy that finds orphans promises of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.strategies.capabilities import FindsOrphans
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanPage
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps
from langgraph_ephemeral_checkpointer.testing.rule import DAY, of, rule_of, store_family

_LATE = 4e9
"""Far in the future: some storages tell the age of a row by the clock of its save."""
_MOST_PAGES = 100


def _orphans(bench: Bench, before: float, limit: int) -> Steps[list[Orphan]]:
    strategy = of(bench, FindsOrphans)
    found: list[Orphan] = []
    after: Any = None
    for _ in range(_MOST_PAGES):
        page: OrphanPage = yield Work(
            partial(strategy.find_orphans, before, max(before, NOW), after, limit)
        )
        found += page.orphans
        if page.next is None:
            return found
        after = page.next
    expect(False, f"find_orphans does not end: {_MOST_PAGES} pages of {limit}")
    return found


def orphans_are_found_and_deleted(bench: Bench) -> Steps[None]:
    """Old writes without a checkpoint are found and deleted; young ones and whole threads stay."""
    strategy = of(bench, FindsOrphans)
    yield from store_family(bench, "whole", NOW - DAY)
    yield from store_family(bench, "partly", NOW - DAY)
    lost = {}
    for thread_id in ("partly", "gone"):
        lost[thread_id] = yield from bench.save_orphans(thread_id, NOW - DAY)
    young = yield from _orphans(bench, 0.0, 100)
    expect(not young, f"find_orphans(before=0) must find nothing that young, found {young}")
    for limit in (1, 100):
        found = yield from _orphans(bench, _LATE, limit)
        expect(
            sorted((one.kind, one.thread_id, one.name, one.rows) for one in found)
            == sorted(("writes", thread_id, name, 2) for thread_id, name in lost.items()),
            f"find_orphans in parts of {limit} must find 2 writes each of {lost}, found {found}",
        )
    removed = yield Work(partial(strategy.delete_orphans, found, _LATE))
    expect(removed == 4, f"delete_orphans must count the 4 rows it deletes, says {removed}")
    again = yield from _orphans(bench, _LATE, 100)
    expect(not again, f"after delete_orphans these are still found: {again}")
    removed = yield Work(partial(strategy.delete_orphans, found, _LATE))
    expect(removed == 0, f"delete_orphans must look again; there is nothing left, says {removed}")
    yield from bench.expect_whole(["whole", "partly"], "deleting orphans")


def an_orphan_that_got_its_checkpoint_stays(bench: Bench) -> Steps[None]:
    """Writes whose checkpoint was stored after the look are not deleted."""
    strategy = of(bench, FindsOrphans)
    missing = yield from bench.save_orphans("late", NOW - DAY)
    found = yield from _orphans(bench, _LATE, 100)
    yield from bench.save("late", NOW - DAY, checkpoint_id=missing)
    removed = yield Work(partial(strategy.delete_orphans, found, _LATE))
    expect(removed == 0, f"delete_orphans took {removed} rows of a checkpoint that is stored")
    yield from bench.expect_whole(["late"], "deleting orphans")


ORPHAN_RULES = tuple(
    rule_of(check, FindsOrphans)
    for check in (orphans_are_found_and_deleted, an_orphan_that_got_its_checkpoint_stays)
)
