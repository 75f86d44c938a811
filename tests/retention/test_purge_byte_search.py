"""After a purge, a search of every byte that is stored finds nothing of the old exchange."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import langgraph.types
import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer, purge_messages

MONTH = timedelta(days=30)
Overwrite: Any = getattr(langgraph.types, "Overwrite", list)  # LangGraph 1.0 begins without it
CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Opaque:
    """A value that only pickle can store."""


class XorCipher:
    """Encryption enough for a test: the bytes on disk are not the text."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, _name: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in ciphertext)


class State(MessagesState):
    """Messages, and something else that must stay as it is."""

    note: Any
    reset: bool


def _chat(saver: Any, note: Any) -> Any:
    """A turn that leaves its words in every place a turn can."""

    def draft(state: State) -> Any:
        word = state["messages"][-1].content
        answer = interrupt({"draft": AIMessage(f"draft of {word}"), "ask": f"send {word}?"})
        call = {"name": "search", "args": {"q": f"find {word}"}, "id": "call_1"}
        return {
            "messages": [
                AIMessage(f"so {answer}", tool_calls=[call]),
                AIMessage("soon gone " + word),
            ],
            "note": note,
        }

    def fan(state: State) -> list[Send]:
        return [Send("tool", {"messages": state["messages"], "call": state["messages"][-2]})]

    def tool(state: Any) -> Any:
        text = state["call"].tool_calls[0]["args"]["q"]
        return {"messages": [ToolMessage(f"found {text}", tool_call_id="call_1")]}

    def child_node(state: MessagesState) -> Any:
        return {"messages": [("ai", f"child saw {state['messages'][-1].content}")]}

    child = StateGraph(MessagesState).add_node("child_node", child_node)
    child = child.add_edge(START, "child_node")

    def private(state: State) -> Any:
        told = memory.invoke({"messages": [("user", f"remember {state['messages'][-1].content}")]})
        return {"messages": [AIMessage(told["messages"][-1].content)]}

    memory = child.compile(checkpointer=True)

    def tidy(state: State) -> Any:
        gone = [m for m in state["messages"] if str(m.content).startswith("soon gone")]
        return {"messages": [RemoveMessage(id=m.id) for m in gone]}

    def again(state: State) -> Any:
        return {"messages": Overwrite(list(state["messages"])) if state.get("reset") else []}

    builder = StateGraph(State)
    for name, node in {
        "draft": draft,
        "tool": tool,
        "private": private,
        "tidy": tidy,
        "again": again,
    }.items():
        builder.add_node(name, node)
    builder.add_node("child", child.compile())
    builder.add_edge(START, "draft").add_conditional_edges("draft", fan, ["tool"])
    builder.add_edge("tool", "child").add_edge("child", "private").add_edge("private", "tidy")
    builder.add_edge("tidy", "again")
    return builder.compile(checkpointer=saver)


def _turn(graph: Any, word: str, *, durability: str = "sync", reset: bool = False) -> Any:
    graph.invoke({"messages": [("user", word)], "reset": reset}, CONFIG, durability=durability)
    return graph.invoke(Command(resume=f"yes {word}"), CONFIG, durability=durability)


def _words(graph: Any) -> list[str]:
    return [message.content for message in graph.get_state(CONFIG).values["messages"]]


SERDES = {
    "msgpack": lambda: None,
    "pickle": lambda: JsonPlusSerializer(pickle_fallback=True),
    "encrypted": lambda: EncryptedSerializer(XorCipher()),
}


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("kind", SERDES)
def test_the_old_exchange_is_nowhere_and_the_new_one_is_whole(
    make_backend, clock, kind, durability
):
    """Inputs, answers, sends, subgraphs, removed messages, older checkpoints: all without it."""
    backend = make_backend(SERDES[kind]())
    decrypt = XorCipher().decrypt if kind == "encrypted" else None
    note = Opaque() if kind == "pickle" else {"plain": (1, "two")}
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=9999), clock=clock)
    graph = _chat(saver, note)
    _turn(graph, "OLDWORD", durability=durability, reset=True)
    clock.pass_days(40)
    _turn(graph, "NEWWORD", durability=durability)
    before = _words(graph)
    assert backend.holds("OLDWORD", decrypt=decrypt)

    result = purge_messages(saver, MONTH)

    assert result.purged_thread_ids == ["t"]
    assert (result.errors, result.untrimmed, result.kept) == ({}, {}, {})
    assert backend.holds("OLDWORD", decrypt=decrypt) == []
    assert _words(graph) == [word for word in before if "NEWWORD" in word] != before
    assert type(graph.get_state(CONFIG).values["note"]) is type(note)
    again = purge_messages(saver, MONTH)
    assert again.purged_thread_ids == []
    _turn(graph, "THIRD", durability=durability)
    assert any("THIRD" in word for word in _words(graph))


def test_histories_that_nobody_stamped_go_by_their_checkpoints(backend):
    """Without a stamp a message is as old as the oldest checkpoint that holds it."""
    graph = _chat(backend.saver, None)
    _turn(graph, "OLDWORD")
    now = time.time()

    early = purge_messages(backend.saver, MONTH, clock=lambda: now + 29 * 86400)
    assert early.purged_thread_ids == []
    late = purge_messages(backend.saver, MONTH, clock=lambda: now + 31 * 86400)

    assert late.purged_thread_ids == ["t"]
    assert backend.holds("OLDWORD") == []
    assert _words(graph) == []


def test_a_dry_run_says_what_the_live_run_does_and_writes_nothing(backend):
    graph = _chat(backend.saver, None)
    _turn(graph, "OLDWORD")
    later = time.time() + 40 * 86400
    before = sorted(map(repr, backend.rows()))
    heard: list[Any] = []
    options: Any = {"clock": lambda: later, "on_before_trim": lambda *args: heard.append(args)}

    dry = purge_messages(backend.saver, MONTH, dry_run=True, **options)
    assert sorted(map(repr, backend.rows())) == before
    assert heard == []
    live = purge_messages(backend.saver, MONTH, **options)

    for name in ("purged_thread_ids", "thread_count", "message_count", "row_count", "kept"):
        assert getattr(dry, name) == getattr(live, name)
    (thread_id, messages), *rest = heard
    assert (thread_id, rest) == ("t", [])
    texts = " ".join(str(message.content) for message in messages)
    assert "found find OLDWORD" in texts
    assert "soon gone OLDWORD" in texts  # removed long ago, and still stored until now
    assert all(hasattr(message, "response_metadata") for message in messages)


def test_a_value_of_another_kind_is_not_touched(backend):
    """A channel that holds anything else than messages stays as it is, byte for byte."""
    graph = _chat(backend.saver, [HumanMessage("OLDWORD kept by the application"), "mixed"])
    _turn(graph, "OLDWORD")
    note = graph.get_state(CONFIG).values["note"]

    purge_messages(backend.saver, MONTH, clock=lambda: time.time() + 40 * 86400)

    assert graph.get_state(CONFIG).values["note"] == note
    assert _words(graph) == []


def test_a_workflow_of_the_functional_api_forgets_what_its_tasks_said(backend, clock):
    """Inputs, results of tasks, outputs and the saved state of @entrypoint workflows."""
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=999), clock=clock)

    @task
    def model(messages: list[Any]) -> AIMessage:
        return AIMessage(f"re {messages[-1].content}")

    @entrypoint(checkpointer=saver)
    def workflow(messages: list[Any], *, previous: list[Any] | None = None) -> Any:
        messages = add_messages(previous or [], messages)
        said = model(messages).result()
        return entrypoint.final(value=said.content, save=add_messages(messages, [said]))

    workflow.invoke([HumanMessage("OLDWORD")], CONFIG)
    clock.pass_days(40)
    assert workflow.invoke([HumanMessage("NEWWORD")], CONFIG) == "re NEWWORD"
    assert backend.holds("OLDWORD")

    result = purge_messages(saver, MONTH)

    assert (result.errors, result.untrimmed) == ({}, {})
    assert backend.holds("OLDWORD") == []
    assert backend.holds("NEWWORD")
    assert workflow.invoke([HumanMessage("THIRD")], CONFIG) == "re THIRD"


def test_an_interrupt_that_was_given_up_protects_nothing(backend, clock):
    """The thread went on without an answer, so nothing will ever resume that subgraph."""
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=999), clock=clock)

    def ask(state: MessagesState) -> Any:
        word = state["messages"][-1].content
        return {"messages": [AIMessage(interrupt(f"{word}?") if "OLDWORD" in word else word)]}

    child = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    graph: Any = StateGraph(MessagesState).add_node("child", child).add_edge(START, "child")
    graph = graph.compile(checkpointer=saver)
    graph.invoke({"messages": [("user", "OLDWORD")]}, CONFIG)
    assert graph.get_state(CONFIG).interrupts
    graph.invoke({"messages": [("user", "never mind")]}, CONFIG)
    clock.pass_days(40)
    graph.invoke({"messages": [("user", "NEWWORD")]}, CONFIG)

    result = purge_messages(saver, MONTH)

    assert result.kept == {}
    assert backend.holds("OLDWORD") == []
    assert _words(graph) == ["NEWWORD", "NEWWORD"]
