"""Real agents: LangChain's create_agent with its summarization, and deepagents."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.types import Command

from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer, purge_messages

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONTH = timedelta(days=30)


class Model(BaseChatModel):
    """Calls the tool twice in parallel for every human message, then answers with its words."""

    tool_name: str = "look_up"

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        asked = next(m for m in reversed(messages) if m.type == "human")
        last = messages[-1]
        said = AIMessage(f"answer to {asked.text[:60]}")
        if last is asked and "lookup" in asked.text:
            calls = [
                {"name": self.tool_name, "args": self._args(asked.text, n), "id": f"call_{n}"}
                for n in range(2)
            ]
            said = AIMessage([{"type": "text", "text": f"looking for {asked.text}"}])
            said = AIMessage(said.content, tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])

    def _args(self, text: str, n: int) -> dict[str, Any]:
        if self.tool_name == "task":
            return {"description": f"{text} part {n}", "subagent_type": "general-purpose"}
        return {"what": f"{text} part {n}"}


@tool
def look_up(what: str) -> str:
    """Look something up."""
    return f"result for {what}"


def _ask(graph: Any, text: str) -> Any:
    return graph.invoke({"messages": [HumanMessage(text)]}, CONFIG)


def _texts(graph: Any) -> list[str]:
    return [message.text for message in graph.get_state(CONFIG).values["messages"]]


def _sound(graph: Any) -> None:
    messages = graph.get_state(CONFIG).values["messages"]
    calls = [call["id"] for m in messages for call in getattr(m, "tool_calls", [])]
    answers = [m.tool_call_id for m in messages if m.type == "tool"]
    assert sorted(calls) == sorted(answers)


def _agent(saver: Any, kind: str) -> Any:
    if kind == "create_agent":
        return create_agent(Model(), [look_up], system_prompt="be brief", checkpointer=saver)
    if kind == "deepagents":
        return create_deep_agent(model=Model(), tools=[look_up], checkpointer=saver)
    return create_deep_agent(model=Model(tool_name="task"), tools=[], checkpointer=saver)


@pytest.mark.parametrize("kind", ["create_agent", "deepagents", "deepagents with subagents"])
def test_an_agent_used_every_few_weeks_stops_growing(backend, clock, kind):
    """Its old turns go whole, with tool calls, subagents and all, and it goes on working."""
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    graph = _agent(saver, kind)
    sizes = []
    for turn in range(5):
        _ask(graph, f"lookup TURN{turn}.")
        _sound(graph)
        clock.pass_days(20)
        result = purge_messages(saver, MONTH)
        assert (result.errors, result.untrimmed) == ({}, {})
        sizes.append(len(_texts(graph)))
        for past in range(turn):
            assert backend.holds(f"TURN{past}.") == []

    assert sizes[-1] == sizes[1]
    assert any("TURN4." in text for text in _texts(graph))
    _sound(graph)


def test_summarization_beside_it(backend, clock):
    """A summary is a message of its day; what it replaced leaves storage with its exchange."""
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    middleware: Any = SummarizationMiddleware(
        model=Model(), trigger=("messages", 8), keep=("messages", 4)
    )
    graph = create_agent(Model(), [look_up], middleware=[middleware], checkpointer=saver)
    for turn in range(4):
        _ask(graph, f"lookup TURN{turn}.")
        clock.pass_days(10)
    assert any("summary" in text.lower() for text in _texts(graph))
    _sound(graph)
    clock.pass_days(40)

    result = purge_messages(saver, MONTH)

    assert (result.errors, result.untrimmed) == ({}, {})
    assert _texts(graph) == []
    for turn in range(4):
        assert backend.holds(f"TURN{turn}.") == []
    _ask(graph, "lookup AFTER.")
    assert any("AFTER." in text for text in _texts(graph))


@pytest.mark.parametrize("purges", [True, False])
def test_a_summary_goes_with_the_old_messages_behind_it(backend, clock, purges):
    """It is written on the day of the next question, and stands for what is as old as they are."""
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    middleware: Any = SummarizationMiddleware(
        model=Model(), trigger=("messages", 6), keep=("messages", 3)
    )
    graph = create_agent(Model(), [look_up], middleware=[middleware], checkpointer=saver)
    _ask(graph, "lookup TURN0.")
    clock.pass_days(20)
    _ask(graph, "TURN1.")
    kept = _texts(graph)
    assert "summary" in kept[0]
    assert any("TURN0." in text for text in kept[1:-2])
    clock.pass_days(11)

    if purges:
        result = purge_messages(saver, MONTH)
        assert (result.errors, result.untrimmed, result.kept) == ({}, {}, {})
        assert backend.holds("TURN0.") == backend.holds("summary of the conversation") == []
    else:
        graph = create_agent(Model(), [look_up], checkpointer=saver)
        _ask(graph, "TURN2.")
    assert _texts(graph)[:2] == ["TURN1.", "answer to TURN1."]
    assert len(_texts(graph)) == (2 if purges else 4)


def test_a_tool_call_that_waits_for_approval_is_kept_and_can_be_approved(backend, clock):
    """Question, tool calls and the fresh answer are all there, months later."""
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    approve: Any = HumanInTheLoopMiddleware(interrupt_on={"look_up": True})
    graph = create_agent(Model(), [look_up], middleware=[approve], checkpointer=saver)
    _ask(graph, "no tool for OLDWORD")
    clock.pass_days(10)
    _ask(graph, "lookup PAUSED")
    clock.pass_days(100)
    result = purge_messages(saver, MONTH)
    assert "interrupt" in result.kept["t"]
    assert backend.holds("OLDWORD") == []

    answer: Any = {"decisions": [{"type": "approve"}, {"type": "approve"}]}
    graph.invoke(Command(resume=answer), CONFIG)

    texts = _texts(graph)
    assert texts[0] == "lookup PAUSED"
    assert texts[-1] == "answer to lookup PAUSED"
    assert sum("result for lookup PAUSED" in text for text in texts) == 2
    _sound(graph)
    assert "goes on" in purge_messages(saver, MONTH).kept["t"]
    assert _texts(graph) == texts  # the answer is of today
    clock.pass_days(31)
    purge_messages(saver, MONTH)
    assert backend.holds("PAUSED") == []


def test_an_agent_nobody_wrapped_is_purged_by_its_checkpoints(backend):
    graph = _agent(backend.saver, "deepagents")
    for _ in range(2):  # the same words twice, and none of them with an id
        graph.invoke({"messages": [("user", "lookup OLDWORD")]}, CONFIG)
    later = time.time() + 40 * 86400

    result = purge_messages(backend.saver, MONTH, clock=lambda: later)

    assert (result.errors, result.untrimmed) == ({}, {})
    assert backend.holds("OLDWORD") == []
    assert _texts(graph) == []
    _ask(graph, "lookup NEWWORD")
    _sound(graph)
    assert len(_texts(graph)) == 5


def test_an_asynchronous_agent_is_trimmed_the_same(clock):
    from langgraph.checkpoint.memory import InMemorySaver

    from langgraph_ephemeral_checkpointer.retention import apurge_messages

    async def run() -> None:
        saver = RetainedCheckpointer(InMemorySaver(), max_age=MONTH, clock=clock)
        graph = _agent(saver, "deepagents with subagents")
        for turn in range(3):
            await graph.ainvoke({"messages": [HumanMessage(f"lookup TURN{turn}.")]}, CONFIG)
            clock.pass_days(20)
        await apurge_messages(saver, MONTH)
        messages = (await graph.aget_state(CONFIG)).values["messages"]
        assert [m.text for m in messages if m.type == "human"] == ["lookup TURN2."]

    asyncio.run(run())
