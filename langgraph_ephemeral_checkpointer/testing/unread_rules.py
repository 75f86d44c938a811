"""What a strategy that leaves threads unread promises of them."""

from __future__ import annotations

from functools import partial

from langgraph_ephemeral_checkpointer.decisions.expiry import Wanted
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.strategies.capabilities import LeavesUnread
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps
from langgraph_ephemeral_checkpointer.testing.rule import DAY, HOUR, of, rule_of, store_family
from langgraph_ephemeral_checkpointer.testing.threads import WAITING


def unread_threads_are_deleted_only_where_sure(bench: Bench) -> Steps[None]:
    """Of threads left unread only those go that are surely idle; the others can be read."""
    strategy, before = of(bench, LeavesUnread), NOW - HOUR
    yield from store_family(bench, "idle", NOW - DAY)
    yield from store_family(bench, "wakes-up", NOW - DAY)
    yield from store_family(bench, "begins-to-wait", NOW - DAY)
    yield from bench.save("young", NOW - 1)
    found: set[str] = set()
    for page in (yield from bench.pages(Wanted(newest_before=before, unread_before=before))):
        found |= {facts.thread_id for facts in page.threads} | {one for one, _ in page.unread}
    expired = {"idle", "wakes-up", "begins-to-wait"}
    expect(expired <= found, f"a scan that may leave threads unread missed {expired - found}")
    yield from bench.save("wakes-up", NOW, namespace="child")
    yield from bench.save("begins-to-wait", NOW - DAY + 60, writes=WAITING)
    asked = [*sorted(expired), "never-stored"]
    gone: set[str] = set()
    for thread_id in asked:
        try:
            gone |= set((yield Work(partial(strategy.delete_unread, [thread_id], before))))
        except Exception as error:  # noqa: BLE001 - then nothing of it was deleted
            expect(thread_id != "idle", f"delete_unread(['idle']) raised {error!r}")
    expect(gone == {"idle"}, f"delete_unread must delete 'idle' and nothing else, says {gone}")
    yield from bench.expect_gone(["idle"], "delete_unread")
    rest = ["begins-to-wait", "wakes-up"]
    yield from bench.expect_whole([*rest, "young"], "delete_unread")
    read = {one.thread_id: one for one in (yield Work(partial(strategy.read_threads, asked)))}
    expect(sorted(read) == rest, f"read_threads({asked}) gave {sorted(read)}")
    for thread_id in rest:
        got, truth = read[thread_id], bench.truth(thread_id)
        expect(
            got.newest_at is not None
            and truth.newest_at is not None
            and abs(got.newest_at - truth.newest_at) < 1
            and got.interrupted in (None, truth.interrupted),
            f"read_threads says {got}, must be {truth}",
        )


UNREAD_RULES = (rule_of(unread_threads_are_deleted_only_where_sure, LeavesUnread),)
