"""Real graphs with a fake model, and one of each shape that stores threads differently."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send, interrupt


class Items(TypedDict):
    items: Annotated[list[str], operator.add]


def chat(saver: Any) -> Any:
    """One node that asks a model."""
    model = FakeListChatModel(responses=["certainly"])

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def nested(saver: Any) -> Any:
    """A per-call subgraph and a persistent one."""

    def inner(name: str, checkpointer: bool | None = None) -> Any:
        builder = StateGraph(Items)
        builder.add_node(name, lambda _: {"items": [name]})
        builder.add_edge(START, name)
        return builder.compile(checkpointer=checkpointer)

    builder = StateGraph(Items)
    builder.add_node("call", inner("called"))
    builder.add_node("kept", inner("persistent", checkpointer=True))
    builder.add_edge(START, "call")
    builder.add_edge("call", "kept")
    return builder.compile(checkpointer=saver)


def fan_out(saver: Any) -> Any:
    """Three tasks by Send."""
    builder = StateGraph(Items)
    builder.add_node("one", lambda state: {"items": [f"one {state}"]})
    builder.add_conditional_edges(START, lambda _: [Send("one", n) for n in range(3)], ["one"])
    return builder.compile(checkpointer=saver)


def approval(saver: Any) -> Any:
    """Waits for a human in the root graph."""

    def ask(_: Items) -> dict[str, Any]:
        return {"items": [f"answer: {interrupt('may I?')}"]}

    builder = StateGraph(Items)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    return builder.compile(checkpointer=saver)


def nested_approval(saver: Any) -> Any:
    """Waits for a human inside a subgraph, after a node of that has run."""

    def ask(_: Items) -> dict[str, Any]:
        return {"items": [f"answer: {interrupt('may I?')}"]}

    inner = StateGraph(Items)
    inner.add_node("first", lambda _: {"items": ["first"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    builder = StateGraph(Items)
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "inner")
    builder.add_edge("inner", END)
    return builder.compile(checkpointer=saver)
