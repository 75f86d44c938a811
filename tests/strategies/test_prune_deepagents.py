"""An agent of deepagents, which keeps its messages and files in delta channels by default."""

from __future__ import annotations

import warnings

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from tests.support.backends import PRUNED_KINDS, open_pair
from tests.support.prune_graphs import new_thread

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports deprecated parts of its own dependencies
    from deepagents import create_deep_agent


class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **kwargs):
        return self


def answers(turns):
    for turn in range(turns):
        call = {
            "name": "write_file",
            "args": {"file_path": f"/f{turn}.txt", "content": f"text {turn}"},
            "id": f"call-{turn}",
        }
        yield AIMessage("", tool_calls=[call], id=f"ai-{turn}")
        yield AIMessage(f"answer {turn}", id=f"answer-{turn}")


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_an_agent_pruned_between_its_turns_remembers_what_it_would_have(kind, keep, locate):
    async with open_pair(kind, locate(kind)) as sides:
        thread_id = new_thread()
        config = {"configurable": {"thread_id": thread_id}}
        seen = []
        for place in sides:
            agent = create_deep_agent(
                model=Model(messages=answers(4)), checkpointer=place.saver, subagents=[]
            )
            states = []
            for turn in range(4):
                value = {"messages": [{"role": "user", "content": f"q{turn}", "id": f"q-{turn}"}]}
                if place.is_async:
                    await agent.ainvoke(value, config)
                    state = await agent.aget_state(config)
                else:
                    agent.invoke(value, config)
                    state = agent.get_state(config)
                if place is sides[0]:
                    outcome = await place.prune(thread_id, keep)
                    assert outcome.left_whole is None
                states.append(
                    (
                        [(m.type, m.content) for m in state.values["messages"]],
                        sorted(state.values.get("files", {})),
                        state.next,
                    )
                )
            seen.append(states)
        assert seen[0] == seen[1]
        assert len(seen[0][-1][0]) == 16
        assert seen[0][-1][1] == [f"/f{turn}.txt" for turn in range(4)]
