"""What is idle goes with every row, and the rest goes on where it was."""

from __future__ import annotations

import pytest
from langchain_core.messages import HumanMessage

from langgraph_ephemeral_checkpointer import TTLPolicy
from tests.support import graphs

DAY = 86400.0
SHAPES = {
    graphs.chat: {"messages": [HumanMessage("hello")]},
    graphs.nested: {"items": ["start"]},
    graphs.fan_out: {"items": ["start"]},
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
async def test_idle_threads_leave_no_row_and_the_others_resume_where_they_were(backend, shape):
    graph, state = shape(backend.saver), SHAPES[shape]
    for number in range(6):
        await backend.invoke(graph, state, f"t{number}")
    idle = ["t0", "t2", "t4"]
    for thread_id in idle:
        backend.age(thread_id, 2 * DAY)
    awake = {thread_id: backend.dump(thread_id) for thread_id in ("t1", "t3", "t5")}

    result = await backend.sweep(TTLPolicy(idle_ttl_seconds=DAY))

    assert sorted(result.deleted_thread_ids) == idle
    assert result.active_thread_count == 3
    assert (result.kept, result.errors, result.deferred_count) == ({}, {}, 0)
    assert not any(backend.has(thread_id) for thread_id in idle)
    assert {thread_id: backend.dump(thread_id) for thread_id in awake} == awake
    before = await backend.invoke(graph, state, "t1")
    assert len(before[next(iter(state))]) > len(
        (await backend.invoke(graph, state, "t0"))[next(iter(state))]
    )
