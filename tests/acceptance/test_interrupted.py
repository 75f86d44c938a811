"""A thread that waits for a human is not idle, and goes on when the answer comes."""

from __future__ import annotations

import time

import pytest
from langgraph.types import Command

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy
from tests.support import graphs

DAY = 86400.0


@pytest.mark.parametrize(
    "shape", [graphs.approval, graphs.nested_approval], ids=lambda shape: shape.__name__
)
async def test_it_is_kept_and_listed_and_resumes_and_then_ages_like_any_other(backend, shape):
    graph = shape(backend.saver)
    await backend.invoke(graph, {"items": ["start"]}, "waiting")
    await backend.put("idle", time.time())
    before = backend.dump("waiting")

    def in_days(days):
        return lambda: time.time() + days * DAY

    policy = TTLPolicy(idle_ttl_seconds=DAY)
    result = await backend.sweep(policy, clock=in_days(2))
    assert result.deleted_thread_ids == ["idle"]
    assert result.kept == {"waiting": KeepReason.INTERRUPTED}
    assert backend.dump("waiting") == before

    limits = TTLPolicy(idle_ttl_seconds=DAY, interrupted_ttl_seconds=5 * DAY)
    assert (await backend.sweep(limits, clock=in_days(4))).kept == {
        "waiting": KeepReason.INTERRUPTED
    }
    told = []
    dry = await backend.sweep(limits, clock=in_days(6), dry_run=True)
    assert dry.deleted_thread_ids == ["waiting"]
    vetoed = await backend.sweep(
        limits, clock=in_days(6), on_before_delete=lambda *args: told.append(args[2]) or False
    )
    assert (told, vetoed.kept) == (["interrupted_ttl"], {"waiting": KeepReason.VETOED})
    hard = TTLPolicy(hard_age_ttl_seconds=DAY)
    assert (await backend.sweep(hard, clock=in_days(2), dry_run=True)).deleted_thread_ids == [
        "waiting"
    ]

    answered = await backend.invoke(graph, Command(resume="yes"), "waiting")
    assert answered["items"][-1] == "answer: yes"
    # Finished nodes ran once: what the interrupted run had stored is all there.
    assert answered["items"].count("first") == (1 if shape is graphs.nested_approval else 0)

    assert (await backend.sweep(limits, clock=in_days(0))).kept == {}
    assert (await backend.sweep(policy, clock=in_days(2))).deleted_thread_ids == ["waiting"]
    assert not backend.has("waiting")


async def test_the_interrupted_rule_alone_takes_only_threads_that_wait(backend):
    graph = graphs.approval(backend.saver)
    await backend.invoke(graph, {"items": ["start"]}, "waiting")
    await backend.plant("idle", time.time() - 50 * DAY)
    result = await backend.sweep(
        TTLPolicy(interrupted_ttl_seconds=DAY), clock=lambda: time.time() + 2 * DAY
    )
    assert result.deleted_thread_ids == ["waiting"]
    assert backend.has("idle")
