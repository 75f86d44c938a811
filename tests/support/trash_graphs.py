"""Graphs whose state tells whether a run saw its whole thread."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt


class State(TypedDict, total=False):
    turns: Annotated[list, operator.add]
    first: dict  # set by the first turn and never again
    count: int
    question: str


def config(thread_id, **more):
    return {"configurable": {"thread_id": thread_id, **more}}


def is_whole(state: dict[str, Any]) -> bool:
    """A state is whole if it is empty, or what some number of turns in a row leave."""
    turns = state.get("turns", [])
    if not turns:
        return not state.get("first") and not state.get("count")
    return bool(state.get("first")) and len(turns) == state.get("count", 0)


def plain_graph(saver, meanwhile=lambda state: None):
    """Two nodes; ``meanwhile`` is called inside the first, once the thread is loaded."""

    def work(state):
        meanwhile(state)
        update = {"turns": [len(state.get("turns", []))], "count": state.get("count", 0) + 1}
        return update if state.get("first") else {**update, "first": {"name": "Ada"}}

    def rest(state):
        return {}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_node("rest", rest)
    graph.add_edge(START, "work")
    graph.add_edge("work", "rest")
    graph.add_edge("rest", END)
    return graph.compile(checkpointer=saver)


def nested_graph(saver, meanwhile=lambda state: None, *, persistent=False):
    """A root that calls a subgraph, which remembers across calls where it is persistent."""

    class Inner(TypedDict, total=False):
        memory: Annotated[list, operator.add]
        question: str

    def think(state):
        meanwhile(state)
        return {"memory": [len(state.get("memory", []))]}

    inner = StateGraph(Inner)
    inner.add_node("think", think)
    inner.add_edge(START, "think")
    compiled = inner.compile(checkpointer=True if persistent else None)

    def work(state):
        update = {"turns": [len(state.get("turns", []))], "count": state.get("count", 0) + 1}
        return update if state.get("first") else {**update, "first": {"name": "Ada"}}

    def call(state):
        compiled.invoke({"question": "what?"})
        return {"turns": []}

    graph = StateGraph(State)
    graph.add_node("inner", call if not persistent else compiled)
    graph.add_node("work", work)
    graph.add_edge(START, "inner")
    graph.add_edge("inner", "work")
    graph.add_edge("work", END)
    return graph.compile(checkpointer=saver)


def asking_graph(saver, meanwhile=lambda: None):
    """A root that asks a human twice in one node; ``meanwhile`` is called before it asks."""

    def ask(state):
        meanwhile()
        first = interrupt("first?")
        second = interrupt("second?")
        return {"turns": [first, second], "count": 2, "first": {"name": "Ada"}}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    return graph.compile(checkpointer=saver)
