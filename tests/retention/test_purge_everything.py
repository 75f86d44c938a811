"""Whatever the graph: after a purge no byte of an old exchange is stored, and the rest is whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Annotated, Any

import langgraph.checkpoint.base.id as ids
import pytest
from deepagents._messages_reducer import _messages_delta_reducer as deep_reducer
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer.retention import (
    RetainedCheckpointer,
    purge_messages,
    trim_messages,
)
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONTH = timedelta(days=30)
NODES = (
    "ask",
    "child",
    "asking child",
    "call",
    "memory",
    "asking memory",
    "fan",
    "command",
    "tidy",
)
WAYS = ("input", "command", "update")
FORMS: dict[str, Callable[[str], Any]] = {
    "message": lambda text: [HumanMessage(text)],
    "pair": lambda text: [("user", text)],
    "text": lambda text: text,
    "role": lambda text: [{"role": "user", "content": text}],
}


def _delta(reducer: Any, frequency: int) -> Any:
    channel = DeltaChannel(reducer, snapshot_frequency=frequency)
    return TypedDict("State", {"messages": Annotated[list[AnyMessage], channel]})


STATES: dict[str, Any] = {
    "plain": MessagesState,
    "delta 1": _delta(_messages_delta_reducer, 1),
    "delta 3": _delta(_messages_delta_reducer, 3),
    "delta": _delta(_messages_delta_reducer, 1000),
    "deepagents": _delta(deep_reducer, 1000),
}


@pytest.fixture
def clock(clock: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """LangGraph's ids go by the test's clock, too."""
    shim = SimpleNamespace(time_ns=lambda: int(clock() * 1e9))
    monkeypatch.setattr(ids, "time", shim)
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)
    return clock


def _word(state: Any) -> str:
    """What was asked last."""
    said = [message.text for message in state["messages"] if message.type == "human"]
    return said[-1] if said else "nobody"


def _says(text: str) -> Callable[[Any], Any]:
    return lambda state: {"messages": [AIMessage(f"{text} {_word(state)}")]}


def _asks(state: Any) -> Any:
    answer = interrupt({"question": f"really {_word(state)}?", "about": state["messages"][-1:]})
    return {"messages": [AIMessage(f"so {answer}")]}


def _graph(saver: Any, state: Any, names: list[str]) -> Any:
    plain = StateGraph(state).add_node("says", _says("child")).add_edge(START, "says")
    asking = StateGraph(state).add_node("says", _says("asking")).add_node("asks", _asks)
    asking.add_edge(START, "says").add_edge("says", "asks")

    def call(inner: Any) -> Callable[[Any], Any]:
        def invoke(state: Any) -> Any:
            told = inner.invoke({"messages": [("user", f"inner {_word(state)}")]})
            return {"messages": [AIMessage(told["messages"][-1].text)]}

        return invoke

    def tidy(state: Any) -> Any:
        gone = [
            m
            for m in state["messages"]
            if m.text in {f"{w} {_word(state)}" for w in ("child", "sent")}
        ]
        return {"messages": [RemoveMessage(id=message.id) for message in gone if message.id]}

    def fan(state: Any) -> list[Send]:
        return [
            Send("sent", {"messages": state["messages"]}),
            Send("sent", {"messages": [HumanMessage(_word(state))], "last": state["messages"][-1]}),
        ]

    nodes: dict[str, Any] = {
        "ask": _asks,
        "child": plain.compile(),
        "asking child": asking.compile(),
        "call": call(asking.compile()),
        "memory": call(plain.compile(checkpointer=True)),
        "asking memory": call(asking.compile(checkpointer=True)),
        "fan": lambda _: {},
        "command": lambda state: Command(
            update={"messages": [{"role": "ai", "content": f"told {_word(state)}"}]}
        ),
        "tidy": tidy,
    }
    builder: Any = StateGraph(state).add_node("begin", _says("begin")).add_edge(START, "begin")
    before = "begin"
    for name in names:
        builder.add_node(name, nodes[name]).add_edge(before, name)
        before = name
        if name == "fan":
            builder.add_node("sent", _says("sent"))
            builder.add_conditional_edges("fan", fan, ["sent"])
            before = "sent"
    return builder.compile(checkpointer=saver)


def _turn(graph: Any, way: str, told: Any, durability: Any, *, answers: int = 99) -> None:
    """One turn of the user, with so many answers to what the graph asks at most."""
    if way == "input":
        graph.invoke({"messages": told}, CONFIG, durability=durability)
    elif way == "command":
        command: Any = Command(update={"messages": told}, goto="begin")
        graph.invoke(command, CONFIG, durability=durability)
    else:
        graph.update_state(CONFIG, {"messages": told}, as_node=START)
        graph.invoke(None, CONFIG, durability=durability)
    word = _word(graph.get_state(CONFIG).values)
    while answers and (waiting := graph.get_state(CONFIG).interrupts):
        answers -= 1
        said = {one.id: f"yes {word}" for one in waiting}
        graph.invoke(Command(resume=said), CONFIG, durability=durability)


def _messages(graph: Any) -> list[Any]:
    return list(graph.get_state(CONFIG).values.get("messages", []))


def _saver(backend: Any, clock: Any, *, stamps: bool) -> Any:
    if backend.name == "tenant":
        return TenantPostgresSaver(backend.saver.conn, schema="messages", clock=clock)
    if not stamps:
        return backend.saver
    return RetainedCheckpointer(backend.saver, max_age=timedelta(days=9999), clock=clock)


def _no_byte_is_left(backend: Any, clock: Any, seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample(NODES, chance.randint(0, 4))
    state = chance.choice([*STATES])
    durability = chance.choice(["sync", "async", "exit"])
    # Where deepagents' channel was written a text, each subgraph says it again as its own.
    forms = ["message"] if state == "deepagents" and "child" in " ".join(names) else [*FORMS]
    saver = _saver(backend, clock, stamps=chance.random() < 0.5)
    graph = _graph(saver, STATES[state], names)
    turns = []
    for days, word, most in ((40, "OLDWORD", 3), (0, "NEWWORD", 2)):
        for n in range(chance.randint(word == "OLDWORD", most)):
            way, form = chance.choice(WAYS), chance.choice(forms)
            answers = 99 if chance.random() < 0.8 else chance.randint(0, 1)
            turns.append((word, way, form, answers))
            told = FORMS[form](f"{word}.{n}")
            _turn(graph, way, told, durability, answers=answers if word == "OLDWORD" else 99)
            clock.pass_days(0.5)
        if word == "OLDWORD" and graph.get_state(CONFIG).interrupts:
            _turn(graph, "input", [HumanMessage("OLDWORD at last")], durability)
        clock.pass_days(days)
    case = (names, state, durability, type(saver).__name__, turns)
    before = _messages(graph)
    assert backend.holds("OLDWORD")

    result = purge_messages(saver, MONTH, clock=clock)

    assert (result.errors, result.untrimmed, result.kept) == ({}, {}, {}), case
    assert backend.holds("OLDWORD") == [], case
    after = _messages(graph)
    assert [m.text for m in after] == [m.text for m in before if "OLDWORD" not in m.text], case
    cutoff = datetime.fromtimestamp(clock.now, UTC) - MONTH
    if all("checkpointed_at" in message.response_metadata for message in before):
        assert [m.text for m in trim_messages(before, cutoff)] == [m.text for m in after], case
    again = purge_messages(saver, MONTH, clock=clock)
    assert again.purged_thread_ids == [], case
    _turn(graph, "input", [("user", "THIRD")], durability)
    assert [m.text for m in _messages(graph)][: len(after)] == [m.text for m in after], case
    assert any("THIRD" in message.text for message in _messages(graph)), case


@pytest.mark.parametrize("make_backend", ["memory"], indirect=True)
@pytest.mark.parametrize("seed", range(120))
def test_after_a_purge_nothing_old_is_stored(backend, clock, seed):
    _no_byte_is_left(backend, clock, seed)


@pytest.mark.parametrize("make_backend", ["sqlite", "postgres", "tenant"], indirect=True)
@pytest.mark.parametrize("seed", range(1000, 1012))
def test_that_is_so_on_every_storage(backend, clock, seed):
    _no_byte_is_left(backend, clock, seed)
