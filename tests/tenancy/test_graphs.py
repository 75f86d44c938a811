"""Real graphs on each class: what they give is what they give on LangGraph's own saver."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tests.support.tenant_graphs import HAS_DELTA, config, delta_graph, everything_graph, say

KEEPS = [None, 1, 3]


def _shape(state: Any) -> Any:
    """A state without what differs from run to run."""
    values = {
        key: [message.content for message in value] if key == "messages" else value
        for key, value in state.values.items()
    }
    tasks = [
        (task.name, [item.value for item in task.interrupts], task.state is not None)
        for task in state.tasks
    ]
    return values, state.next, tasks, state.metadata["step"], state.metadata["source"]


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_messages_send_subgraph_and_interrupt(
    make_saver: Any, keep: int | None, durability: str
) -> None:
    with make_saver(keep_checkpoints=keep) as saver:
        seen = []
        for one in (saver, InMemorySaver()):
            graph = everything_graph(one)
            states = []
            for turn in ("one", "two"):
                graph.invoke(say(turn), config("t"), durability=durability)
                states.append(_shape(graph.get_state(config("t"), subgraphs=True)))
                graph.invoke(Command(resume=turn), config("t"), durability=durability)
                states.append(_shape(graph.get_state(config("t"))))
            graph.update_state(config("t"), {"note": "edited"})
            states.append(_shape(graph.get_state(config("t"))))
            history = [_shape(state) for state in graph.get_state_history(config("t"))]
            seen.append((states, history[: keep or len(history)]))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("keep", KEEPS)
async def test_messages_send_subgraph_and_interrupt_asynchronously(
    make_async_saver: Any, keep: int | None
) -> None:
    async with make_async_saver(keep_checkpoints=keep) as saver:
        seen = []
        for one in (saver, InMemorySaver()):
            graph = everything_graph(one)
            states = []
            for turn in ("one", "two"):
                await graph.ainvoke(say(turn), config("t"))
                states.append(_shape(await graph.aget_state(config("t"), subgraphs=True)))
                await graph.ainvoke(Command(resume=turn), config("t"))
                states.append(_shape(await graph.aget_state(config("t"))))
            history = [_shape(state) async for state in graph.aget_state_history(config("t"))]
            seen.append((states, history[: keep or len(history)]))
        assert seen[0] == seen[1]


def test_time_travel_replays_and_forks(make_saver: Any) -> None:
    with make_saver() as saver:
        seen = []
        for one in (saver, InMemorySaver()):
            graph = everything_graph(one)
            graph.invoke(say("one"), config("t"))
            graph.invoke(Command(resume="first"), config("t"))
            history = [*graph.get_state_history(config("t"))]
            before_reply = next(state for state in history if state.next == ("reply",))
            graph.invoke(None, before_reply.config)
            replayed = _shape(graph.get_state(config("t"), subgraphs=True))
            graph.invoke(Command(resume="again"), config("t"))
            fork = graph.update_state(before_reply.config, say("edited"))
            graph.invoke(None, fork)
            seen.append((replayed, _shape(graph.get_state(config("t"), subgraphs=True))))
        assert seen[0] == seen[1]


if HAS_DELTA:

    @pytest.mark.parametrize("keep", KEEPS)
    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_delta_channels(make_saver: Any, keep: int | None, durability: str) -> None:
        with make_saver(keep_checkpoints=keep) as saver:
            seen = []
            for one in (saver, InMemorySaver()):
                graph = delta_graph(one, every=4)
                for turn in range(5):
                    graph.invoke({"log": [f"in{turn}"]}, config("t"), durability=durability)
                    if turn == 2:
                        graph.update_state(config("t"), {"log": ["edit"]})
                seen.append(graph.get_state(config("t")).values)
            assert seen[0] == seen[1]

    @pytest.mark.parametrize("keep", KEEPS)
    async def test_delta_channels_asynchronously(make_async_saver: Any, keep: int | None) -> None:
        async with make_async_saver(keep_checkpoints=keep) as saver:
            seen = []
            for one in (saver, InMemorySaver()):
                graph = delta_graph(one, every=4)
                for turn in range(5):
                    await graph.ainvoke({"log": [f"in{turn}"]}, config("t"))
                seen.append((await graph.aget_state(config("t"))).values)
            assert seen[0] == seen[1]
