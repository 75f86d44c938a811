"""Purges beside runs: interrupts of every kind of subgraph, saves in between, pipelines."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Interrupt, interrupt

from langgraph_ephemeral_checkpointer.retention import (
    RetainedCheckpointer,
    apurge_messages,
    purge_messages,
)
from langgraph_ephemeral_checkpointer.strategies.postgres import purge as postgres_storage
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver, purging

MONTH = timedelta(days=30)


def _config(thread_id: str = "t") -> Any:
    return {"configurable": {"thread_id": thread_id}}


def _later() -> float:
    return time.time() + 40 * 86400


def _answer(state: MessagesState) -> Any:
    return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}


def _graph(saver: Any, node: Any = _answer) -> Any:
    builder = StateGraph(MessagesState).add_node("answer", node).add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def _say(graph: Any, text: str, thread_id: str = "t", **options: Any) -> Any:
    return graph.invoke({"messages": [("user", text)]}, _config(thread_id), **options)


def _texts(graph: Any, thread_id: str = "t") -> list[str]:
    return [m.content for m in graph.get_state(_config(thread_id)).values["messages"]]


# Interrupts in subgraphs ------------------------------------------------------------------


def _parent(saver: Any, *, persistent: bool, nested: bool = False) -> Any:
    """A graph that asks inside a subgraph, which has noted something before it asks."""
    ran: list[str] = []

    def note(state: MessagesState) -> Any:
        ran.append(state["messages"][-1].content)
        return {"messages": [AIMessage(f"noted {state['messages'][-1].content}")]}

    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"{state['messages'][-1].content}, {interrupt('?')}")]}

    builder = StateGraph(MessagesState).add_node("note", note).add_node("ask", ask)
    child: Any = builder.add_edge(START, "note").add_edge("note", "ask")
    child = child.compile(checkpointer=True if persistent else None)
    if nested:
        middle = StateGraph(MessagesState).add_node("inner", child).add_edge(START, "inner")
        child = middle.compile()

    def call(state: MessagesState) -> Any:
        told = child.invoke({"messages": [HumanMessage(state["messages"][-1].content)]})
        return {"messages": [AIMessage(told["messages"][-1].content)]}

    graph: Any = StateGraph(MessagesState).add_node("call", call).add_edge(START, "call")
    return graph.compile(checkpointer=saver), ran


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize(("persistent", "nested"), [(True, False), (True, True), (False, True)])
def test_an_interrupt_inside_a_subgraph_keeps_all_that_its_answer_needs(
    backend, clock, persistent, nested, durability
):
    """One with a memory of its own too: its old exchange goes, the paused one is whole."""
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=9999), clock=clock)
    graph, ran = _parent(saver, persistent=persistent, nested=nested)
    _say(graph, "OLDWORD", durability=durability)
    graph.invoke(Command(resume="yes"), _config(), durability=durability)
    clock.pass_days(20)
    _say(graph, "PAUSED", durability=durability)
    clock.pass_days(40)

    result = purge_messages(saver, MONTH)

    assert (result.purged_thread_ids, result.errors) == (["t"], {})
    assert "interrupt" in result.kept["t"]
    assert backend.holds("OLDWORD") == []
    assert [i.value for i in graph.get_state(_config()).interrupts] == ["?"]
    graph.invoke(Command(resume="ANSWERED"), _config(), durability=durability)
    assert _texts(graph) == ["PAUSED", "noted PAUSED, ANSWERED"]
    assert ran == ["OLDWORD", "PAUSED"]  # what had been done was not done again
    early = purge_messages(saver, MONTH)
    assert "goes on" in early.kept["t"]
    assert _texts(graph) == ["PAUSED", "noted PAUSED, ANSWERED"]  # the answer is of today
    clock.pass_days(31)
    assert purge_messages(saver, MONTH).kept == {}
    assert [backend.holds(word) for word in ("PAUSED", "ANSWERED")] == [[], []]


class PurgedMidway(RetainedCheckpointer):
    """A purge comes when a run saves its root checkpoint, and before that is stored."""

    result: Any = None
    armed = False

    def put(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if self.armed and not config["configurable"].get("checkpoint_ns"):
            self.armed = False
            self.result = purge_messages(self.inner, MONTH, clock=_later)
        return super().put(config, checkpoint, metadata, versions)


@pytest.mark.parametrize("persistent", [True, False])
def test_an_interrupt_in_a_subgraph_is_kept_before_its_root_checkpoint_is_stored(
    backend, persistent
):
    """With durability "exit" a subgraph's rows come first: the pause is seen in them alone."""
    saver = PurgedMidway(backend.saver, max_age=timedelta(days=9999))
    graph, ran = _parent(saver, persistent=persistent)
    saver.armed = True
    _say(graph, "PAUSED", durability="exit")

    assert saver.result.errors == {}
    assert saver.result.purged_thread_ids == []
    assert "interrupt" in saver.result.kept["t"]
    graph.invoke(Command(resume="ANSWERED"), _config())
    assert _texts(graph) == ["PAUSED", "noted PAUSED, ANSWERED"]
    assert ran == ["PAUSED"]


# Saves in between -------------------------------------------------------------------------


def _interrupt(saver: Any, thread_id: str) -> None:
    head = saver.get_tuple(_config(thread_id)).config
    saver.put_writes(head, [("__interrupt__", [Interrupt(value="PAUSED?")])], str(uuid.uuid4()))


def test_an_interrupt_that_is_committed_anywhere_in_the_purges_transaction_is_seen(
    pg_dsn, monkeypatch
):
    """Before each of its statements in turn: the exchange it waits in is there in the end."""
    write, position = postgres_storage._write, [0]

    def interfering(image: Any, changes: Any) -> Any:
        plan, answer, statements = write(image, changes), None, 0
        while True:
            try:
                statement = plan.send(answer)
            except StopIteration:
                return
            if statements == position[0]:
                _interrupt(other, image.thread_id)
            statements += 1
            seen.append(statements)
            answer = yield statement

    monkeypatch.setattr(postgres_storage, "_write", interfering)
    options: Any = {"options": "-c default_transaction_isolation=repeatable\\ read"}
    strict = psycopg.conninfo.make_conninfo(pg_dsn, **options)
    with (
        PostgresSaver.from_conn_string(strict) as saver,
        PostgresSaver.from_conn_string(pg_dsn) as other,
    ):
        graph, seen = _graph(saver), [0]
        while position[0] < max(seen) or not position[0]:
            thread_id, seen[:] = f"t{position[0]}", [0]
            _say(graph, "OLDWORD", thread_id)
            result = purge_messages(saver, MONTH, clock=_later)
            assert result.errors == {}
            assert result.purged_thread_ids == [], position
            assert "interrupt" in result.kept[thread_id]
            assert _texts(graph, thread_id) == ["OLDWORD", "re OLDWORD"]
            position[0] += 1
            saver.delete_thread(thread_id)
        assert position[0] > 4


def test_an_interrupt_that_is_committed_while_a_tenant_is_purged_is_seen(pg_dsn, monkeypatch):
    """A task's writes take no lock: they come in where the purge holds the thread's."""
    schema, write, at = "messages_beside", purging.TenantStorage._write, [0]

    def interfering(self: Any, image: Any, changes: Any) -> Any:
        plan, answer, batches = write(self, image, changes), None, 0
        while True:
            try:
                batch = plan.send(answer)
            except StopIteration:
                return
            if batches == at[0]:
                _interrupt(other, image.thread_id)
            batches += 1
            answer = yield batch

    monkeypatch.setattr(purging.TenantStorage, "_write", interfering)
    with (
        TenantPostgresSaver.from_conn_string(pg_dsn, schema=schema) as saver,
        TenantPostgresSaver.from_conn_string(pg_dsn, schema=schema) as other,
    ):
        graph = _graph(saver)
        for at[0] in (0, 1):
            _say(graph, "OLDWORD")
            result = saver.purge_messages(MONTH, clock=_later)
            assert (result.errors, result.purged_thread_ids) == ({}, [])
            assert "interrupt" in result.kept["t"]
            assert _texts(graph) == ["OLDWORD", "re OLDWORD"]
            saver.delete_thread("t")
        saver.conn.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.parametrize("cure", ["save", "purge"])
def test_what_a_run_brings_back_goes_with_the_next_save_or_purge(backend, clock, cure):
    """It had loaded the old text before the purge, and saved after it."""
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=9999), clock=clock)
    trimming = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)

    def slow(state: MessagesState) -> Any:
        if state["messages"][-1].content == "second":
            assert purge_messages(saver, MONTH).purged_thread_ids == ["t"]
            assert backend.holds("OLDWORD") == []
        return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}

    graph = _graph(saver, slow)
    _say(graph, "OLDWORD")
    clock.pass_days(40)
    _say(graph, "second", durability="sync")
    assert _texts(graph) == ["OLDWORD", "re OLDWORD", "second", "re second"]  # back again
    young = ["second", "re second"]
    if cure == "save":
        _say(_graph(trimming), "third")
        young += ["third", "re third"]
    else:
        assert purge_messages(saver, MONTH).purged_thread_ids == ["t"]
        assert backend.holds("OLDWORD") == []
    assert _texts(graph) == young
    purge_messages(saver, MONTH)
    assert backend.holds("OLDWORD") == []
    assert _texts(graph) == young


# Pipelines --------------------------------------------------------------------------------


def test_a_saver_in_pipeline_mode_is_purged(pg_dsn):
    with PostgresSaver.from_conn_string(pg_dsn, pipeline=True) as saver:
        graph = _graph(saver)
        _say(graph, "OLDWORD")
        _say(graph, "OLDWORD", "paused")
        _interrupt(saver, "paused")
        result = purge_messages(saver, MONTH, clock=_later)
        assert (result.purged_thread_ids, result.errors) == (["t"], {})
        assert list(result.kept) == ["paused"]
        assert _texts(graph) == []
        _say(graph, "NEWWORD")
        assert _texts(graph) == ["NEWWORD", "re NEWWORD"]
    with psycopg.connect(pg_dsn) as conn:
        query = "SELECT count(*) FROM checkpoint_blobs WHERE thread_id = 't' AND blob LIKE %s"
        assert conn.execute(query, (b"%OLDWORD%",)).fetchone() == (0,)


async def test_an_asynchronous_saver_in_pipeline_mode_is_purged(pg_dsn):
    async with AsyncPostgresSaver.from_conn_string(pg_dsn, pipeline=True) as saver:
        graph = _graph(saver)
        await graph.ainvoke({"messages": [("user", "OLDWORD")]}, _config())
        result = await apurge_messages(saver, MONTH, clock=_later)
        assert (result.purged_thread_ids, result.errors) == (["t"], {})
        assert (await graph.aget_state(_config())).values["messages"] == []
        async for found in saver.alist(None):
            assert "OLDWORD" not in repr(found)


def test_a_purge_that_waits_for_a_row_gives_way_and_says_so(pg_dsn):
    """Whoever holds the row is a run; the thread is left, and no error is made of it."""
    with (
        PostgresSaver.from_conn_string(pg_dsn) as saver,
        psycopg.connect(pg_dsn) as other,
    ):
        graph = _graph(saver)
        _say(graph, "OLDWORD")
        other.execute("SELECT FROM checkpoint_writes FOR UPDATE")
        result = purge_messages(saver, MONTH, clock=_later)
        assert (result.errors, result.purged_thread_ids) == ({}, [])
        assert "saved to" in result.kept["t"]
        other.rollback()
        assert _texts(graph) == ["OLDWORD", "re OLDWORD"]
        assert purge_messages(saver, MONTH, clock=_later).purged_thread_ids == ["t"]
