"""purge_messages: messages in models, alone, under one id, and beside channels of other kinds."""

from __future__ import annotations

import dataclasses
import logging
import operator
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer, purge_messages

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONTH = timedelta(days=30)


class Model(BaseModel):
    """A state that is a model: serializers store the messages in it as plain values."""

    messages: Annotated[list[AnyMessage], add_messages]
    last: AnyMessage | None = None


@dataclasses.dataclass
class Record:
    """A state that is a dataclass."""

    messages: Annotated[list[AnyMessage], add_messages]
    last: AnyMessage | None = None


class Log(TypedDict):
    """A channel with a reducer that looks at no ids."""

    log: Annotated[list[Any], operator.add]


class Beside(MessagesState):
    """Channels beside the conversation."""

    rules: list[AnyMessage]
    context: list[AnyMessage] | None


def _keeping(backend: Any, clock: Any) -> RetainedCheckpointer:
    """Stamps by the test's clock, and never trims: that is left to the purge."""
    return RetainedCheckpointer(backend.saver, max_age=timedelta(days=9999), clock=clock)


def _graph(state: type, saver: Any, node: Callable[[Any], Any]) -> Any:
    builder: Any = StateGraph(state)
    return builder.add_node("node", node).add_edge(START, "node").compile(checkpointer=saver)


def _texts(graph: Any, channel: str = "messages") -> list[str]:
    return [message.content for message in graph.get_state(CONFIG).values[channel]]


def _answer(state: Any) -> Any:
    return {"messages": [AIMessage(f"re {state.messages[-1].content}")]}


def _sends(state_type: Any, saver: Any) -> Any:
    def fan(state: Any) -> list[Send]:
        return [Send("answer", dataclasses.replace(state, last=state.messages[0]))]

    def fan_model(state: Any) -> list[Send]:
        return [Send("answer", state.model_copy(update={"last": state.messages[0]}))]

    builder: Any = StateGraph(state_type).add_node("begin", lambda state: {})
    builder.add_node("answer", _answer).add_edge(START, "begin")
    chosen = fan if state_type is Record else fan_model
    return builder.add_conditional_edges("begin", chosen, ["answer"]).compile(checkpointer=saver)


def _calls(state_type: Any, saver: Any) -> Any:
    child: Any = StateGraph(state_type).add_node("answer", _answer).add_edge(START, "answer")
    builder: Any = StateGraph(state_type).add_node("child", child.compile())
    return builder.add_edge(START, "child").compile(checkpointer=saver)


def _asks(state_type: Any, saver: Any) -> Any:
    def ask(state: Any) -> Any:
        interrupt(state)
        return _answer(state)

    return _graph(state_type, saver, ask)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("state_type", [Model, Record])
@pytest.mark.parametrize("how", [_sends, _calls, _asks])
def test_what_a_young_step_was_given_of_an_old_exchange_goes_from_models_too(
    make_backend, clock, how, state_type, pickled
):
    """A task, a subgraph, and a question get the whole state, which holds the old messages."""
    backend = make_backend(JsonPlusSerializer(pickle_fallback=True) if pickled else None)
    saver = _keeping(backend, clock)
    graph = how(state_type, saver)

    def turn(word: str) -> None:
        graph.invoke(state_type(messages=[HumanMessage(word)]), CONFIG)
        if graph.get_state(CONFIG).interrupts:
            graph.invoke(Command(resume="yes"), CONFIG)

    turn("OLDWORD")
    clock.pass_days(40)
    turn("NEWWORD")
    dry = purge_messages(saver, MONTH, dry_run=True)

    result = purge_messages(saver, MONTH)

    assert (result.errors, result.untrimmed, result.kept) == ({}, {}, {})
    assert (dry.row_count, dry.message_count) == (result.row_count, result.message_count)
    assert backend.holds("OLDWORD") == []
    assert _texts(graph) == ["NEWWORD", "re NEWWORD"]
    assert all(repr(state) for state in graph.get_state_history(CONFIG))
    turn("THIRD")
    assert _texts(graph)[-1] == "re THIRD"


def test_a_channel_of_rules_alone_keeps_no_old_step(backend, clock):
    """System messages never go, so they say nothing of the exchange that a step belongs to."""
    saver = _keeping(backend, clock)
    graph = _graph(Beside, saver, lambda state: {"messages": [AIMessage("re")]})
    graph.invoke({"messages": ("user", "OLDWORD"), "rules": [SystemMessage("be brief")]}, CONFIG)
    clock.pass_days(40)
    graph.invoke({"messages": ("user", "NEWWORD")}, CONFIG)

    result = purge_messages(saver, MONTH)

    assert result.kept == {}
    assert backend.holds("OLDWORD") == []
    assert _texts(graph, "rules") == ["be brief"]


def test_a_channel_that_held_nothing_once_is_a_conversation_all_the_same(backend, clock):
    saver = _keeping(backend, clock)
    graph = _graph(Beside, saver, lambda state: {"messages": [AIMessage("re")]})
    graph.invoke({"messages": ("user", "a"), "context": None}, CONFIG)
    graph.invoke({"messages": ("user", "b"), "context": [HumanMessage("OLDWORD")]}, CONFIG)
    clock.pass_days(40)
    graph.invoke({"messages": ("user", "c"), "context": [HumanMessage("NEWWORD")]}, CONFIG)

    purge_messages(saver, MONTH)

    assert backend.holds("OLDWORD") == []
    assert _texts(graph, "context") == ["NEWWORD"]


def test_of_messages_with_one_id_each_goes_by_its_own_stamp(backend, clock):
    """Where the reducer appends, a second message of an id does not replace the first."""
    saver = _keeping(backend, clock)

    def answer(state: Log) -> Any:
        return {"log": [AIMessage(f"re {state['log'][-1].content}", id="answer")]}

    graph = _graph(Log, saver, answer)
    for word in ("OLDWORD", "MIDWORD", "NEWWORD"):
        graph.invoke({"log": [HumanMessage(word, id="question")]}, CONFIG)
        clock.pass_days(20)

    result = purge_messages(saver, timedelta(days=50))

    assert _texts(graph, "log") == ["MIDWORD", "re MIDWORD", "NEWWORD", "re NEWWORD"]
    assert backend.holds("OLDWORD") == []
    assert result.kept == {}


def test_young_messages_without_ids_are_not_reported_as_of_unknown_age(backend, clock):
    saver = _keeping(backend, clock)
    graph = _graph(Log, saver, lambda state: {})
    for word in ("OLDWORD", "NEWWORD"):
        graph.invoke({"log": [HumanMessage(word)]}, CONFIG)
        clock.pass_days(20)

    result = purge_messages(saver, MONTH)

    assert result.kept == {}
    assert _texts(graph, "log") == ["NEWWORD"]


def test_a_task_that_waits_still_has_the_message_it_was_sent(backend, clock):
    """The message is old, but the answer to a question about it is not there yet."""
    saver = _keeping(backend, clock)

    def review(message: Any) -> Any:
        return {"messages": [AIMessage(f"{message.content}: {interrupt(message)}")]}

    def fan(state: MessagesState) -> list[Send]:
        return [Send("review", m) for m in state["messages"] if m.type == "human"]

    builder: Any = StateGraph(MessagesState).add_node("begin", lambda state: {})
    builder.add_node("review", review).add_edge(START, "begin")
    graph = builder.add_conditional_edges("begin", fan, ["review"]).compile(checkpointer=saver)

    def answer() -> None:
        waiting = graph.get_state(CONFIG).interrupts
        graph.invoke(Command(resume={one.id: "fine" for one in waiting}), CONFIG)

    graph.invoke({"messages": [HumanMessage("OLDWORD")]}, CONFIG)
    answer()
    clock.pass_days(40)
    graph.invoke({"messages": [HumanMessage("NEWWORD")]}, CONFIG)

    result = purge_messages(saver, MONTH)

    assert "interrupt" in result.kept["t"]
    assert _texts(graph) == ["NEWWORD"]
    asked = [one.value.content for one in graph.get_state(CONFIG).interrupts]
    assert sorted(asked) == ["NEWWORD", "OLDWORD"]
    answer()
    assert sorted(_texts(graph)[1:]) == ["NEWWORD: fine", "OLDWORD: fine"]
    purge_messages(saver, MONTH)
    places = [row for row in backend.holds("OLDWORD") if b"OLDWORD: fine" not in _bytes(row)]
    assert places == []
    clock.pass_days(40)
    purge_messages(saver, MONTH)
    assert backend.holds("OLDWORD") == []


def _bytes(row: tuple[Any, ...]) -> bytes:
    return b"".join(value for value in row if isinstance(value, bytes))


def test_a_workflow_that_waits_still_has_the_results_of_its_tasks(backend, clock):
    saver = _keeping(backend, clock)

    @task
    def first_of(messages: list[Any]) -> Any:
        return messages[0]

    @entrypoint(checkpointer=saver)
    def workflow(text: str, *, previous: Any = None) -> Any:
        said = [*(previous or []), HumanMessage(text)]
        first = first_of(said).result()
        said.append(AIMessage(f"{interrupt('?')} since {first.content}"))
        return entrypoint.final(value=said[-1].content, save=said)

    for word in ("OLDWORD", "MIDWORD"):
        workflow.invoke(word, CONFIG)
        workflow.invoke(Command(resume="fine"), CONFIG)
        clock.pass_days(20)
    workflow.invoke("NEWWORD", CONFIG)

    result = purge_messages(saver, MONTH)

    assert "interrupt" in result.kept["t"]
    assert workflow.invoke(Command(resume="yes"), CONFIG) == "yes since OLDWORD"


def test_a_channel_that_no_thread_has_is_warned_of(backend, clock, caplog):
    """A purge of a misspelt channel takes nothing, which must not look like success."""
    saver = _keeping(backend, clock)
    graph = _graph(Log, saver, lambda state: {})
    graph.invoke({"log": [HumanMessage("OLDWORD")]}, CONFIG)
    clock.pass_days(40)

    with caplog.at_level(logging.WARNING):
        result = purge_messages(saver, MONTH, channels=["log", "lgo"])

    assert result.purged_thread_ids == ["t"]
    assert "no thread has a channel named ['lgo']" in caplog.text


def test_messages_of_classes_that_are_gone_go_and_reach_the_archive(backend, clock, monkeypatch):
    saver = _keeping(backend, clock)
    graph = _graph(MessagesState, saver, lambda state: {"messages": [AIMessage("re OLDWORD")]})
    graph.invoke({"messages": [Custom("OLDWORD", extra="more of OLDWORD")]}, CONFIG)
    monkeypatch.delattr(f"{__name__}.Custom")
    clock.pass_days(40)
    heard: list[Any] = []

    result = purge_messages(saver, MONTH, on_before_trim=lambda _, gone: heard.extend(gone))

    assert result.errors == {}
    assert [message.content for message in heard] == ["OLDWORD", "re OLDWORD"]
    assert backend.holds("OLDWORD") == []


class Custom(HumanMessage):
    """A message class of the application's."""

    extra: str = ""


@pytest.mark.parametrize("make_backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_histories_nobody_stamped_with_one_id_twice_are_kept_and_reported(backend):
    graph = _graph(Log, backend.saver, lambda state: {})
    for word in ("one", "two"):
        graph.invoke({"log": [HumanMessage(word, id="question")]}, CONFIG)

    result = purge_messages(backend.saver, MONTH, clock=lambda: time.time() + 40 * 86400)

    assert "how old" in result.kept["t"]
    assert _texts(graph, "log") == ["one", "two"]


def test_a_checkpoint_of_a_year_that_no_datetime_holds_keeps_no_purge_from_its_thread(backend):
    checkpoint = empty_checkpoint()
    checkpoint["id"] = "ffffffff-ffff-7000-8000-000000000000"  # a UUID 7 of the year 10889
    checkpoint["channel_values"] = {"messages": [HumanMessage("of no known age", id="1")]}
    version = f"{1:032}.0123456789"
    checkpoint["channel_versions"] = {"messages": version}
    where: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    backend.saver.put(
        where, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"messages": version}
    )

    result = purge_messages(backend.saver, MONTH)

    assert result.errors == {}
    assert backend.saver.get_tuple(where) is not None
