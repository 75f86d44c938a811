"""Old exchanges that a save cannot drop from a DeltaChannel: listed, logged, and gone later."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer.messages.backlog import Backlog, Held
from langgraph_ephemeral_checkpointer.retention import (
    RetainedCheckpointer,
    apurge_messages,
    purge_messages,
)
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONTH = timedelta(days=30)


def _graph(saver: Any, frequency: int, reducer: Any = None) -> Any:
    channel = DeltaChannel(reducer or _messages_delta_reducer, snapshot_frequency=frequency)
    # Made by a call: annotations are text in this module, and would be looked up globally.
    State = TypedDict("State", {"messages": Annotated[list[AnyMessage], channel]})  # noqa: UP013

    def answer(state: Any) -> Any:
        word = state["messages"][-1].content
        if word == "PAUSED":
            note = HumanMessage(f"so {interrupt('?')}")  # a node may speak as a human
            return {"messages": [note, AIMessage("done")]}
        return {"messages": [AIMessage(f"re {word}")]}

    builder: Any = StateGraph(State).add_node("answer", answer).add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def _say(graph: Any, text: str, config: Any = CONFIG) -> None:
    graph.invoke({"messages": [("user", text)]}, config, durability="sync")


def _texts(graph: Any, config: Any = CONFIG) -> list[str]:
    return [m.content for m in graph.get_state(config).values["messages"]]


def _retaining(backend: Any, clock: Any) -> Any:
    """A saver that trims at saves, as a new process makes it on the same storage."""
    if backend.name == "tenant":
        conn = backend.saver.conn
        return TenantPostgresSaver(conn, schema="messages", message_retention=MONTH, clock=clock)
    return RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_thread_that_no_save_could_trim_is_listed_and_logged_once(
    backend, clock, caplog, restarts
):
    """Until a purge: then it is gone from the list, from the thread and from storage."""
    saver = _retaining(backend, clock)
    graph = _graph(saver, 1000)
    _say(graph, "OLDWORD")
    _say(graph, "second")
    assert saver.untrimmed_threads() == {}  # nothing is too old
    clock.pass_days(40)
    if restarts:
        saver = _retaining(backend, clock)
        graph = _graph(saver, 1000)
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            _say(graph, f"turn {n}")

    assert "OLDWORD" in _texts(graph)  # not trimmed, and whole
    assert list(saver.untrimmed_threads()) == ["t"]
    assert "messages: exchanges that began before" in saver.untrimmed_threads()["t"]
    warnings = [r.getMessage() for r in caplog.records if "untrimmed" in r.getMessage()]
    assert len(warnings) == 1
    assert "'t'" in warnings[0]
    assert "purge_messages()" in warnings[0]

    purge_messages(saver, MONTH, dry_run=True)
    assert list(saver.untrimmed_threads()) == ["t"]
    result = purge_messages(saver, MONTH)
    assert (result.purged_thread_ids, result.untrimmed) == (["t"], {})
    assert saver.untrimmed_threads() == {}
    assert backend.holds("OLDWORD") == []
    _say(graph, "turn 3")
    assert saver.untrimmed_threads() == {}
    assert _texts(graph)[::2] == [f"turn {n}" for n in range(4)]


@pytest.mark.parametrize("frequency", [2, 5])
def test_the_next_snapshot_takes_a_thread_off_the_list(backend, clock, frequency):
    """What a load gives is old exchanges and a listed thread, or neither."""
    saver = _retaining(backend, clock)
    graph = _graph(saver, frequency)
    _say(graph, "OLDWORD")
    _say(graph, "second")
    clock.pass_days(40)
    listed = []
    for n in range(6):
        _say(graph, f"turn {n}")
        old = any("OLDWORD" in text for text in _texts(graph))
        assert old == ("t" in saver.untrimmed_threads())
        listed.append(old)
    assert listed[-1] is False
    assert listed == sorted(listed, reverse=True)
    young = [f"turn {n}" for n in range(6)]
    assert _texts(graph)[::2] == young


def test_a_run_in_which_an_exchange_becomes_too_old_is_listed(clock):
    """What it loaded was young; its own later saves could not trim it."""
    saver = RetainedCheckpointer(InMemorySaver(), max_age=MONTH, clock=clock)
    graph = _graph(saver, 1000)
    _say(graph, "first")
    _say(graph, "second")
    head = saver.get_tuple(CONFIG)
    clock.pass_days(40)
    metadata: Any = {**head.metadata, "step": 9}
    later: Any = {**head.checkpoint, "id": str(uuid6())}
    saver.put(head.config, later, metadata, {})
    assert list(saver.untrimmed_threads()) == []  # nobody has loaded the channel yet
    list(graph.get_state_history(CONFIG))  # the newest checkpoint that was loaded counts
    saver.put(head.config, later, metadata, {})
    assert list(saver.untrimmed_threads()) == ["t"]
    saver.delete_thread("t")
    assert saver.untrimmed_threads() == {}


def test_a_run_that_began_from_a_snapshot_is_listed_while_its_saves_hold_none(clock):
    """Until the next one, which may be many saves away."""
    inner = InMemorySaver()
    graph = _graph(RetainedCheckpointer(inner, max_age=MONTH, clock=clock), 1)
    _say(graph, "OLDWORD")
    _say(graph, "second")
    clock.pass_days(40)
    saver = RetainedCheckpointer(inner, max_age=MONTH, clock=clock)
    head = saver.get_tuple(CONFIG)
    values = head.checkpoint["channel_values"]
    (snapshot,) = (value for channel, value in values.items() if channel == "messages")
    metadata: Any = {**head.metadata, "counters_since_delta_snapshot": {"messages": (1, 1)}}
    without = {**head.checkpoint, "channel_values": {}}
    later: Any = {**without, "id": str(uuid6())}
    saver.put(head.config, later, metadata, {})
    assert list(saver.untrimmed_threads()) == ["t"]
    with_it: Any = {**without, "channel_values": {"messages": snapshot}}
    saver.put(head.config, with_it, head.metadata, {})
    assert saver.untrimmed_threads() == {}


def test_an_answer_to_an_old_question_keeps_all_of_its_exchange(backend, clock):
    """Though a node speaks as a human in it, and the snapshot comes with the answer."""
    graph = _graph(_retaining(backend, clock), 4)
    _say(graph, "OLDWORD")
    clock.pass_days(10)
    _say(graph, "PAUSED")
    clock.pass_days(100)
    saver = _retaining(backend, clock)
    graph = _graph(saver, 4)
    graph.invoke(Command(resume="yes"), CONFIG, durability="sync")
    assert _texts(graph)[-3:] == ["PAUSED", "so yes", "done"]
    _say(graph, "next")
    _say(graph, "next")
    assert _texts(graph) == ["so yes", "done", "next", "re next", "next", "re next"]  # of its day


def test_what_holds_no_messages_or_nothing_old_is_not_listed(clock):
    """Other delta channels, channels that were not named, ordinary channels, messages of today."""

    def extend(left: list[str], updates: list[list[str]]) -> list[str]:
        return [*left, *(item for update in updates for item in update)]

    other = DeltaChannel(extend, snapshot_frequency=1000)
    State = TypedDict("State", {"log": Annotated[list, other]})  # noqa: UP013
    builder: Any = StateGraph(State).add_node("n", lambda state: {"log": ["n"]})
    saver = RetainedCheckpointer(InMemorySaver(), max_age=MONTH, clock=clock)
    log = builder.add_edge(START, "n").compile(checkpointer=saver)
    plain: Any = StateGraph(MessagesState).add_node("n", lambda state: {"messages": "hi"})
    plain = plain.add_edge(START, "n").compile(checkpointer=saver)
    unnamed = RetainedCheckpointer(InMemorySaver(), max_age=MONTH, clock=clock, channels=["x"])
    for _ in range(3):
        log.invoke({"log": ["in"]}, CONFIG)
        plain.invoke({"messages": "hi"}, {"configurable": {"thread_id": "plain"}})
        _say(_graph(unnamed, 1000), "hi")
        clock.pass_days(40)
    assert saver.untrimmed_threads() == {}
    assert unnamed.untrimmed_threads() == {}


def test_each_tenant_has_a_list_of_its_own(pg_dsn, clock):
    """Of the tenant in scope, through a wrapper too."""
    with TenantPostgresSaver.from_conn_string(
        pg_dsn, schema="backlog", message_retention=MONTH, clock=clock, tenant=None
    ) as saver:
        wrapped = RetainedCheckpointer(saver, max_age=MONTH, clock=clock)
        graph = _graph(wrapped, 1000)
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                _say(graph, "one")
                _say(graph, "two")
        clock.pass_days(40)
        with saver.tenant_scope("a"):
            _say(graph, "three")
            assert list(saver.untrimmed_threads()) == ["t"]
            assert list(wrapped.untrimmed_threads()) == ["t"]
        with saver.tenant_scope("b"):
            assert saver.untrimmed_threads() == wrapped.untrimmed_threads() == {}
        with saver.tenant_scope("a"):
            purge_messages(wrapped, MONTH)
            assert saver.untrimmed_threads() == wrapped.untrimmed_threads() == {}
        saver.conn.execute("DROP SCHEMA backlog CASCADE")


def test_an_asynchronous_run_is_listed_and_purged_too(clock):
    async def run() -> None:
        saver = RetainedCheckpointer(InMemorySaver(), max_age=MONTH, clock=clock)
        graph = _graph(saver, 1000)
        for n in range(3):
            await graph.ainvoke({"messages": [("user", f"turn {n}")]}, CONFIG)
            clock.pass_days(20)
        await graph.ainvoke({"messages": [("user", "turn 3")]}, CONFIG)
        assert list(saver.untrimmed_threads()) == ["t"]
        await apurge_messages(saver, MONTH)
        assert saver.untrimmed_threads() == {}

    asyncio.run(run())


def test_the_list_is_bounded():
    backlog, old = Backlog(limit=10), 1_600_000_000
    from datetime import UTC, datetime

    for n in range(100):
        thread = (None, f"t{n}")
        backlog.loaded(thread, "", "messages", "1", Held(datetime.fromtimestamp(old, UTC)))
        backlog.saved(thread, "", ["messages"], datetime.fromtimestamp(old + 1, UTC))
    listed = list(backlog.untrimmed(None))
    assert (len(listed), listed[0], listed[-1]) == (10, "t90", "t99")
    assert len(backlog._loaded) == 10
