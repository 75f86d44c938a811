"""No purge takes a message that is younger than the limit, whatever the channel holds."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer, purge_messages

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONTH = timedelta(days=30)


class Posts(TypedDict):
    """What is said between two snapshots stands in writes alone."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def _keeping(backend: Any, clock: Any) -> RetainedCheckpointer:
    return RetainedCheckpointer(backend.saver, max_age=timedelta(days=9999), clock=clock)


def _texts(graph: Any, config: Any = CONFIG) -> list[str]:
    return [message.content for message in graph.get_state(config).values["messages"]]


def _bot(saver: Any, state: Any, clock: Any) -> Any:
    """Looks something up and posts it; nobody asks."""

    def look(state: Any) -> Any:
        day = int(clock.now // 86400)
        call = {"name": "look", "args": {}, "id": f"c{day}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def post(state: Any) -> Any:
        call = state["messages"][-1].tool_calls[0]["id"]
        day = int(clock.now // 86400 - START_DAY)
        return {"messages": [ToolMessage("seen", tool_call_id=call), AIMessage(f"POST{day}.")]}

    builder: Any = StateGraph(state).add_node("look", look).add_node("post", post)
    return builder.add_edge(START, "look").add_edge("look", "post").compile(checkpointer=saver)


START_DAY = 1_704_067_200 // 86400


@pytest.mark.parametrize("state", [MessagesState, Posts])
@pytest.mark.parametrize("rules", [[], [SystemMessage("be brief")]])
def test_a_bot_that_nobody_asks_keeps_its_young_posts(backend, clock, state, rules):
    graph = _bot(_keeping(backend, clock), state, clock)
    for n in range(10):
        graph.invoke({"messages": [] if n else rules}, CONFIG)
        clock.pass_days(5)
    result = purge_messages(graph.checkpointer, MONTH)
    assert (result.errors, result.untrimmed, result.kept) == ({}, {}, {})
    texts = [text for text in _texts(graph) if text.startswith("POST")]
    assert texts == [f"POST{day}." for day in (20, 25, 30, 35, 40, 45)]
    assert [backend.holds(f"POST{day}.") for day in (0, 5, 10, 15)] == [[], [], [], []]
    calls = [call["id"] for m in _messages(graph) for call in getattr(m, "tool_calls", [])]
    assert calls == [m.tool_call_id for m in _messages(graph) if m.type == "tool"]


def _messages(graph: Any) -> list[Any]:
    return list(graph.get_state(CONFIG).values["messages"])


@pytest.mark.parametrize("state", [MessagesState, Posts])
def test_an_instruction_stays_as_long_as_it_is_followed(backend, clock, state):
    """It and its posts are one exchange, which is not over; that is reported."""
    graph = _bot(_keeping(backend, clock), state, clock)
    for n in range(8):
        told = [] if n else [HumanMessage("post now and then")]
        graph.invoke({"messages": told}, CONFIG)
        clock.pass_days(5)
    before, rows = _texts(graph), sorted(map(repr, backend.rows()))
    result = purge_messages(graph.checkpointer, MONTH)
    assert (result.purged_thread_ids, result.errors) == ([], {})
    assert "goes on" in result.kept["t"]
    assert (_texts(graph), sorted(map(repr, backend.rows()))) == (before, rows)
    clock.pass_days(31)
    assert purge_messages(graph.checkpointer, MONTH).kept == {}
    assert backend.holds("POST") == backend.holds("now and then") == []


def test_the_memory_of_an_agent_that_nobody_speaks_to_keeps_what_is_young(backend, clock):
    """A subgraph with a checkpointer of its own, whose channel holds AI messages only."""

    def note(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"NOTE{int(clock.now // 86400 - START_DAY)}.")]}

    inner: Any = StateGraph(MessagesState).add_node("note", note).add_edge(START, "note")
    inner = inner.compile(checkpointer=True)
    seen: list[int] = []

    def call(state: MessagesState) -> Any:
        seen.append(len(inner.invoke({"messages": []})["messages"]))
        return {"messages": [AIMessage("done")]}

    builder: Any = StateGraph(MessagesState).add_node("call", call).add_edge(START, "call")
    graph = builder.compile(checkpointer=_keeping(backend, clock))
    for n in range(10):
        graph.invoke({"messages": [("user", f"go {n}")]}, CONFIG)
        clock.pass_days(5)
    purge_messages(graph.checkpointer, MONTH)
    assert [bool(backend.holds(f"NOTE{day}.")) for day in range(0, 50, 5)] == [False] * 4 + [
        True
    ] * 6
    graph.invoke({"messages": [("user", "go on")]}, CONFIG)
    assert seen == [*range(1, 11), 7]


@pytest.mark.parametrize("state", [MessagesState, Posts])
def test_a_question_in_a_channel_without_human_messages_keeps_all_of_it(backend, clock, state):
    """Nothing tells where the work that waits began."""

    def plan(state: Any) -> Any:
        return {"messages": [AIMessage("PLAN")]}

    def ask(state: Any) -> Any:
        return {"messages": [AIMessage(f"{interrupt('may I?')} of {len(state['messages'])}")]}

    builder: Any = StateGraph(state).add_node("plan", plan).add_node("ask", ask)
    builder.add_edge(START, "plan").add_edge("plan", "ask")
    graph = builder.compile(checkpointer=_keeping(backend, clock))
    graph.invoke({"messages": []}, CONFIG)
    clock.pass_days(40)
    result = purge_messages(graph.checkpointer, MONTH)
    assert "interrupt" in result.kept["t"]
    graph = builder.compile(
        checkpointer=RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    )
    graph.invoke(Command(resume="yes"), CONFIG)
    assert _texts(graph) == ["PLAN", "yes of 1"]


def test_what_a_step_that_failed_has_written_keeps_its_exchange(backend, clock):
    """An answer of today to an old question, from a step that is tried again later."""
    broken = {"one", "other"}

    def one(state: MessagesState) -> Any:
        if "one" in broken:
            raise LookupError
        return {"messages": [AIMessage("TODAY")]}

    def other(state: MessagesState) -> Any:
        if "other" in broken:
            raise LookupError
        return {"messages": [AIMessage("later")]}

    builder: Any = StateGraph(MessagesState).add_node("one", one).add_node("other", other)
    builder.add_edge(START, "one").add_edge(START, "other")
    graph = builder.compile(checkpointer=_keeping(backend, clock))
    for told in ({"messages": [("user", "QUESTION")]}, None):
        with pytest.raises(LookupError):
            graph.invoke(told, CONFIG)
        clock.pass_days(0 if told is None else 40)
        broken.discard("one")
    result = purge_messages(graph.checkpointer, MONTH)
    assert "goes on" in result.kept["t"]
    broken.clear()
    graph.invoke(None, CONFIG)
    assert _texts(graph) == ["QUESTION", "TODAY", "later"]


def test_what_a_subgraph_said_in_a_step_that_failed_keeps_its_exchange(backend, clock):
    broken = {"one", "two"}

    def one(state: MessagesState) -> Any:
        if "one" in broken:
            raise LookupError
        return {"messages": [AIMessage("TODAY")]}

    def two(state: MessagesState) -> Any:
        if "two" in broken:
            raise LookupError
        return {"messages": [AIMessage("later")]}

    inner: Any = StateGraph(MessagesState).add_node("one", one).add_node("two", two)
    inner = inner.add_edge(START, "one").add_edge("one", "two").compile()

    def call(state: MessagesState) -> Any:
        told = inner.invoke({"messages": [HumanMessage("INNER", id="i")]})["messages"]
        return {"messages": [AIMessage(" ".join(message.content for message in told))]}

    builder: Any = StateGraph(MessagesState).add_node("call", call).add_edge(START, "call")
    graph = builder.compile(checkpointer=_keeping(backend, clock))
    for told in ({"messages": [("user", "QUESTION")]}, None):
        with pytest.raises(LookupError):
            graph.invoke(told, CONFIG)
        clock.pass_days(0 if told is None else 40)
        broken.discard("one")
    result = purge_messages(graph.checkpointer, MONTH)
    assert "goes on" in result.kept["t"]
    broken.clear()
    graph.invoke(None, CONFIG)
    assert _texts(graph) == ["QUESTION", "INNER TODAY later"]
