"""Graphs of every kind that stores differently, with nodes that need no model."""

from __future__ import annotations

import importlib.util
import operator
import uuid
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt

HAS_DELTA = importlib.util.find_spec("langgraph.channels.delta") is not None


class Everything(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    note: str
    item: str


def everything_graph(saver: Any, *, note: str = "n\0te") -> Any:
    """Messages, a subgraph that interrupts, a fan-out with Send, and a NUL in a value."""

    def ask(state: Everything) -> Any:
        answer = interrupt({"question": "go on?"})
        return {"log": [f"answer:{answer}"]}

    inner = StateGraph(Everything)
    inner.add_node("before", lambda state: {"log": ["before"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "before")
    inner.add_edge("before", "ask")
    inner.add_edge("ask", END)

    def reply(state: Everything) -> Any:
        return {"messages": [AIMessage(f"re: {state['messages'][-1].content}")], "note": note}

    def spread(state: Everything) -> list[Send]:
        return [Send("work", {"item": name}) for name in "xyz"]

    graph = StateGraph(Everything)
    graph.add_node("reply", reply)
    graph.add_node("work", lambda state: {"log": [f"work:{state['item']}"]})
    graph.add_node("sub", inner.compile())
    graph.add_edge(START, "reply")
    graph.add_conditional_edges("reply", spread, ["work"])
    graph.add_edge("work", "sub")
    graph.add_edge("sub", END)
    return graph.compile(checkpointer=saver)


class Plain(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    kept: str


def plain_graph(saver: Any, *, before_end: Any = None) -> Any:
    """Four nodes in parallel and one after them; ``kept`` is set by the input only."""

    def step(name: str) -> Any:
        return lambda state: {"log": [name]}

    def last(state: Plain) -> Any:
        if before_end is not None:
            before_end()
        return {"log": ["z"]}

    graph = StateGraph(Plain)
    for name in "abcd":
        graph.add_node(name, step(name))
        graph.add_edge(START, name)
        graph.add_edge(name, "z")
    graph.add_node("z", last)
    graph.add_edge("z", END)
    return graph.compile(checkpointer=saver)


def delta_graph(saver: Any, *, every: int = 5, hook: Any = None) -> Any:
    """A graph whose log is a delta channel, stored whole only now and then."""
    from langgraph.channels.delta import DeltaChannel

    def extend(left: list[str], updates: list[list[str]]) -> list[str]:
        return [*left, *(item for update in updates for item in update)]

    channel = DeltaChannel(extend, snapshot_frequency=every)
    # Made by a call: annotations are text in this module, and would be looked up globally.
    State = TypedDict("State", {"log": Annotated[list, channel]}, total=False)  # noqa: UP013

    def step(name: str) -> Any:
        def run(state: Any) -> Any:
            if hook is not None:
                hook(name)
            return {"log": [name]}

        return run

    graph = StateGraph(State)
    graph.add_node("a", step("a"))
    graph.add_node("b", step("b"))
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", END)
    return graph.compile(checkpointer=saver)


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def say(text: str) -> Any:
    return {"messages": [HumanMessage(text, id=str(uuid.uuid4()))]}


def checkpoint(n: int, values: Any = None, *, versions: Any = None, **more: Any) -> Any:
    """A checkpoint by hand, with an id that sorts by ``n`` and tells a time in 2024."""
    values = {"log": [n]} if values is None else values
    ticks = 0x01B21DD213814000 + (1_704_067_200 + n) * 10_000_000
    digits = f"{ticks:015x}"
    id_ = f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}-8000-{n:012x}"
    return {
        "v": 4,
        "id": id_,
        "ts": "2024-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions or dict.fromkeys(values, f"{n:032}.{n}"),
        "versions_seen": {},
        "updated_channels": None,
        **more,
    }


def at(thread: str, ns: str = "", id_: str | None = None) -> Any:
    found = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": found | ({"checkpoint_id": id_} if id_ else {})}


META: Any = {"source": "loop", "step": 1, "parents": {}}


def put(saver: Any, thread: str, n: int, values: Any = None, *, config: Any = None) -> Any:
    made = checkpoint(n, values)
    return saver.put(config or at(thread), made, META, made["channel_versions"])
