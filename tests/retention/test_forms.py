"""However a message is written: its age is known from its first save on, or it is listed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from deepagents._messages_reducer import _messages_delta_reducer
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Overwrite, Send
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer.messages.backlog import Held, held_in
from langgraph_ephemeral_checkpointer.retention import (
    RetainedCheckpointer,
    purge_messages,
    stamp_messages,
)
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONTH = timedelta(days=30)

FORMS: dict[str, Any] = {
    "message": lambda text: HumanMessage(text),
    "pair": lambda text: ("user", text),
    "text": lambda text: text,
    "role": lambda text: {"role": "user", "content": text},
    "list of messages": lambda text: [HumanMessage(text)],
    "list of pairs": lambda text: [("human", text)],
    "list of texts": lambda text: [text],
    "list of roles": lambda text: [{"role": "user", "content": text}],
    "list of types": lambda text: [{"type": "human", "content": text}],
    "list of all": lambda text: [HumanMessage(text), ("ai", "so"), {"role": "ai", "content": ""}],
}  # fmt: skip


class Often(TypedDict):
    """deepagents' channel, with a snapshot now and then."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=12)]  # fmt: skip  # noqa: E501


class Never(TypedDict):
    """deepagents' channel, between two snapshots."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=999)]  # fmt: skip  # noqa: E501


def _retaining(backend: Any, clock: Any) -> Any:
    """A saver that trims at saves, as a new process makes it on the same storage."""
    if backend.name == "tenant":
        conn = backend.saver.conn
        return TenantPostgresSaver(conn, schema="messages", message_retention=MONTH, clock=clock)
    return RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)


def _answer(state: Any) -> Any:
    return {"messages": [AIMessage("answer")]}


def _graph(saver: Any, state: Any, speak: Any = None) -> Any:
    """Answers what it is told, or what a node says by itself."""
    builder: Any = StateGraph(state).add_node("answer", _answer)
    if speak is None:
        return builder.add_edge(START, "answer").compile(checkpointer=saver)
    builder.add_node("speak", speak).add_edge("speak", "answer")
    fan = lambda state: [Send("speak", {"messages": []})]  # noqa: E731
    return builder.add_conditional_edges(START, fan, ["speak"]).compile(checkpointer=saver)


def _by_input(saver: Any, state: Any, written: Any) -> Any:
    return _graph(saver, state).invoke({"messages": written}, CONFIG)


def _by_command(saver: Any, state: Any, written: Any) -> Any:
    command: Any = Command(update={"messages": written}, goto="answer")
    return _graph(saver, state).invoke(command, CONFIG)


def _by_update(saver: Any, state: Any, written: Any) -> Any:
    graph = _graph(saver, state)
    graph.update_state(CONFIG, {"messages": written}, as_node=START)
    return graph.invoke(None, CONFIG)


def _by_send(saver: Any, state: Any, written: Any) -> Any:
    return _graph(saver, state, lambda _: {"messages": written}).invoke({"messages": []}, CONFIG)


def _by_node_command(saver: Any, state: Any, written: Any) -> Any:
    speak = lambda _: Command(update={"messages": written})  # noqa: E731
    return _graph(saver, state, speak).invoke({"messages": []}, CONFIG)


def _by_subgraph(saver: Any, state: Any, written: Any) -> Any:
    """Told to a subgraph with a memory of its own; what the graph itself holds is young."""
    inner = StateGraph(state).add_node("answer", _answer).add_edge(START, "answer")
    memory: Any = inner.compile(checkpointer=True)

    def call(_: Any) -> Any:
        memory.invoke({"messages": written})
        return {"messages": Overwrite([AIMessage("called")])}

    builder: Any = StateGraph(state).add_node("call", call).add_edge(START, "call")
    return builder.compile(checkpointer=saver).invoke({"messages": []}, CONFIG)


WAYS = [_by_input, _by_command, _by_update, _by_send, _by_node_command, _by_subgraph]


def _old(way: Any, saver: Any, state: Any, clock: Any) -> list[str]:
    """The questions that are too old, of those that a new process loads."""
    saver = getattr(saver, "inner", saver)
    ns = "call" if way is _by_subgraph else ""
    found = saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": ns}})
    value = found.checkpoint["channel_values"].get("messages")
    if state is not MessagesState:
        channel = DeltaChannel(_messages_delta_reducer)
        delta = saver.get_delta_channel_history(config=found.config, channels=["messages"])
        channel = channel.from_checkpoint(value or delta["messages"].get("seed"))
        if value is None:
            channel.replay_writes(delta["messages"]["writes"])
        value = channel.get()
    limit = (clock.now - MONTH.total_seconds()) // 86400
    said = [message.text for message in value if message.text.startswith("day ")]
    return [text for text in said if int(text.split()[1]) < limit]


def _is_trimmed_or_listed(backend: Any, clock: Any, form: str, way: Any, state: Any) -> None:
    """Each turn by a process of its own, which knows only what is stored."""
    for turn in range(11):
        saver = _retaining(backend, clock)
        way(saver, state, FORMS[form](f"day {int(clock.now // 86400)}"))
        old = _old(way, saver, state, clock)
        assert not old or list(saver.untrimmed_threads()) == ["t"], turn
        if state is MessagesState:
            assert old == []
        clock.pass_days(9)
    if state is Often:
        assert len(_old(way, saver, state, clock)) < 8  # a snapshot has let most of them go


@pytest.mark.parametrize("make_backend", ["memory"], indirect=True)
@pytest.mark.parametrize("state", [MessagesState, Often, Never])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_too_old_goes_or_is_listed(backend, clock, form, way, state):
    _is_trimmed_or_listed(backend, clock, form, way, state)


@pytest.mark.parametrize("make_backend", ["sqlite", "postgres", "tenant"], indirect=True)
@pytest.mark.parametrize("state", [Often, Never])
@pytest.mark.parametrize("form", ["text", "list of pairs"])
def test_that_is_so_on_every_storage(backend, clock, form, state):
    for way in (_by_input, _by_subgraph):
        clock.now = 1_704_067_200.0
        backend.saver.delete_thread("t")
        _is_trimmed_or_listed(backend, clock, form, way, state)


@pytest.mark.parametrize("form", FORMS)
def test_a_purge_goes_by_the_checkpoints(backend, form):
    """Of a thread that a save cannot date: each question was said by itself, and days ago."""

    def echo(state: Any) -> Any:
        return {"messages": [("ai", f"re {state['messages'][-1].text}")]}

    builder: Any = StateGraph(Never).add_node("echo", echo).add_edge(START, "echo")
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH)
    graph = builder.compile(checkpointer=saver)
    for word in ("OLDWORD", "SECOND", "THIRD", "FOURTH"):
        graph.invoke({"messages": FORMS[form](word)}, CONFIG)
    stamped = {"message", "list of messages", "list of roles", "list of types", "list of all"}
    why = saver.untrimmed_threads().get("t", "")
    assert ("no stamp" in why) == (form not in stamped)
    assert purge_messages(saver, MONTH).row_count == 0
    purge_messages(saver, MONTH, clock=lambda: time.time() + 40 * 86400)
    assert backend.holds("OLDWORD") == backend.holds("FOURTH") == []
    assert saver.untrimmed_threads() == {}


def test_what_a_conversation_holds_ends_at_the_latest_with_what_comes_after():
    def at(message: Any, day: int) -> Any:
        return stamp_messages([message], datetime(2024, 1, day, tzinfo=UTC))[0]

    q, a, system = HumanMessage("q"), AIMessage("a"), SystemMessage("s")
    moment = datetime(2024, 1, 5, tzinfo=UTC)
    assert held_in([]) == held_in([q]) == held_in([system, a]) == Held(None)
    assert held_in([q, a, q]) == Held(None, ageless=True)
    assert held_in([q, at(a, 5), q, a]) == Held(moment)
    assert held_in([at(q, 1), at(a, 5), q]) == Held(moment)
    assert held_in([q, a, q, at(a, 5)]) == Held(moment)
    assert held_in([a, a, at(a, 5)]) == Held(moment)
    assert held_in([at(system, 1), at(q, 5), a, at(q, 9)]) == Held(moment)
