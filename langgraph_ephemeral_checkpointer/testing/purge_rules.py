"""What a strategy that purges messages promises of it."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.messages.arguments import cutoff_at
from langgraph_ephemeral_checkpointer.messages.purge import PurgeOptions
from langgraph_ephemeral_checkpointer.messages.scrubbing import decide
from langgraph_ephemeral_checkpointer.strategies.capabilities import PurgesMessages
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Purge, Steps
from langgraph_ephemeral_checkpointer.testing.rule import DAY, HOUR, of, rule_of
from langgraph_ephemeral_checkpointer.testing.threads import CHANNEL, WAITING

_AGE = timedelta(days=7)


def _exchange(said: str) -> list[Any]:
    return [HumanMessage(said, id=f"{said}-1"), AIMessage(f"to {said}", id=f"{said}-2")]


def _store(bench: Bench, thread_id: str) -> Steps[None]:
    """Store an exchange that is too old and one that is not, in two checkpoints."""
    old, new = _exchange("old"), _exchange("new")
    wrote = [("task-old", CHANNEL, [old[1]])]
    yield from bench.save(thread_id, NOW - 9 * DAY, value=old, writes=wrote)
    yield from bench.save(thread_id, NOW - HOUR, value=old + new)


def a_purge_takes_old_messages_and_no_others(bench: Bench) -> Steps[None]:
    """A purge takes old exchanges from every checkpoint and write, and leaves all others whole."""
    yield from _store(bench, "mixed")
    yield from bench.save("waits", NOW - 9 * DAY, value=_exchange("old"), writes=WAITING)
    yield from bench.save("young", NOW - HOUR, value=_exchange("young"))
    yield from bench.save("no-messages", NOW - 9 * DAY)
    storage = of(bench, PurgesMessages).message_storage()
    for dry_run in (True, False):
        options = PurgeOptions(_AGE, dry_run=dry_run, batch_size=1, clock=lambda: NOW)
        result = yield Purge(storage, options)
        expect(not result.errors, f"a purge reports errors: {result.errors}")
        expect(
            (result.thread_count, result.purged_thread_ids) == (4, ["mixed"]),
            f"a purge (dry_run={dry_run}) must look at 4 threads and change 'mixed', says {result}",
        )
        if dry_run:
            yield from bench.expect_whole(bench.thread_ids, "a dry run of a purge")
    yield from bench.expect_whole(["waits", "young", "no-messages"], "a purge")
    for found, left in zip((yield from bench.tuples("mixed")), ([], _exchange("new")), strict=True):
        held = found.checkpoint["channel_values"].get(CHANNEL) or []
        expect(held == left, f"a purge must leave {left} in the checkpoint, left {held}")
        writes = [value for *_, value in found.pending_writes or ()]
        expect("to old" not in repr(writes), f"a purge left an old message in writes: {writes}")
    again = yield Purge(storage, PurgeOptions(_AGE, clock=lambda: NOW))
    expect(not again.purged_thread_ids, f"a second purge must find nothing, says {again}")


def a_purge_gives_way_to_a_save(bench: Bench) -> Steps[None]:
    """Changes of a thread that was saved to since it was read are refused, and nothing changes."""
    yield from _store(bench, "busy")
    storage = of(bench, PurgesMessages).message_storage()
    image = yield Work(partial(storage.read, "busy"))
    changes = decide(image, cutoff_at(NOW, _AGE)).changes
    expect(changes, "read() gives an image in which nothing is old")
    yield from bench.save("busy", NOW, value=_exchange("newest"))
    try:
        yield Work(partial(storage.write, image, changes))
    except ThreadMovedError:
        yield from bench.expect_whole(["busy"], "a purge that was refused")
        return
    expect(False, "write() must raise ThreadMovedError where somebody saved since read()")


PURGE_RULES = tuple(
    rule_of(check, PurgesMessages)
    for check in (a_purge_takes_old_messages_and_no_others, a_purge_gives_way_to_a_save)
)
