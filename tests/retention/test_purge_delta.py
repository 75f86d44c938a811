"""Messages in a DeltaChannel: snapshots and the writes between them lose the same messages."""

import contextlib
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, Overwrite, interrupt
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.retention import (
    RetainedCheckpointer,
    purge_messages,
    trim_messages,
)

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONTH = timedelta(days=30)
FREQUENCIES = [1, 2, 5, 1000]


def _graph(saver: Any, frequency: int, reducer: Any = None, *, asks: bool = False) -> Any:
    class State(TypedDict):
        messages: Annotated[
            list[AnyMessage],
            DeltaChannel(reducer or _messages_delta_reducer, snapshot_frequency=frequency),
        ]

    def model(state: State) -> Any:
        word = state["messages"][-1].content
        call = {"name": "look", "args": {"at": word}, "id": f"call {word}"}
        return {"messages": [AIMessage(f"looking at {word}", tool_calls=[call])]}

    def tool(state: State) -> Any:
        call = state["messages"][-1].tool_calls[0]
        seen = interrupt(f"may I see {call['args']['at']}?") if asks else "seen"
        return {"messages": [ToolMessage(f"{seen} {call['args']['at']}", tool_call_id=call["id"])]}

    builder = StateGraph(State).add_node("model", model).add_node("tool", tool)
    return builder.add_edge(START, "model").add_edge("model", "tool").compile(checkpointer=saver)


def _retained(saver: Any, clock: Any, days: float = 9999) -> RetainedCheckpointer:
    return RetainedCheckpointer(saver, max_age=timedelta(days=days), clock=clock)


def _messages(graph: Any, config: Any = None) -> list[Any]:
    return list(graph.get_state(config or CONFIG).values.get("messages", []))


def _history(graph: Any) -> dict[str, list[Any]]:
    return {
        state.config["configurable"]["checkpoint_id"]: list(state.values.get("messages", []))
        for state in graph.get_state_history(CONFIG)
    }


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_every_checkpoint_loses_the_old_exchanges_and_nothing_else(
    backend, clock, frequency, durability
):
    """State, history and the next turn are what trimming the state itself would have given."""
    graph = _graph(_retained(backend.saver, clock), frequency)
    for word in ("OLDWORD one", "OLDWORD two", "NEWWORD three", "NEWWORD four"):
        if word == "NEWWORD three":
            clock.pass_days(40)
        graph.invoke({"messages": [("user", word)]}, CONFIG, durability=durability)
    before, history = _messages(graph), _history(graph)
    assert all("checkpointed_at" in message.response_metadata for message in before)

    result = purge_messages(graph.checkpointer, MONTH)

    assert (result.purged_thread_ids, result.untrimmed) == (["t"], {})
    cutoff = datetime.fromtimestamp(clock.now, UTC) - MONTH
    assert _messages(graph) == trim_messages(before, cutoff) == before[6:]
    assert _history(graph) == {
        key: trim_messages(messages, cutoff) for key, messages in history.items()
    }
    assert backend.holds("OLDWORD") == []
    assert purge_messages(graph.checkpointer, MONTH).purged_thread_ids == []
    graph.invoke({"messages": [("user", "NEWWORD five")]}, CONFIG, durability=durability)
    assert [m.content for m in _messages(graph)][:6] == [m.content for m in before[6:]]
    assert len(_messages(graph)) == 9


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_with_forks_overwrites_and_removals(backend, clock, seed):
    """Whatever happened to the channel, each checkpoint is the trimmed one of before."""
    chance = random.Random(seed)
    graph = _graph(_retained(backend.saver, clock), chance.choice([1, 2, 3, 1000]))
    for step in range(12):
        clock.pass_days(chance.uniform(1, 8))
        ids = [state.config for state in graph.get_state_history(CONFIG)]
        config = chance.choice(ids) if ids and chance.random() < 0.3 else CONFIG
        now = _messages(graph, config)
        act = chance.choice(["turn", "turn", "remove", "overwrite", "edit"]) if now else "turn"
        if act == "turn":
            graph.invoke({"messages": [("user", f"word {step}.")]}, config)
        elif act == "remove":
            gone = [RemoveMessage(id=m.id) for m in now[:3]]
            graph.update_state(config, {"messages": gone}, as_node="tool")
        elif act == "overwrite":
            kept = Overwrite([HumanMessage(f"all {step}.", id=f"all {step}"), *now[-3:]])
            graph.update_state(config, {"messages": kept}, as_node="tool")
        else:
            new = now[0].model_copy(update={"content": f"edited {step}."})
            graph.update_state(config, {"messages": [new]}, as_node="tool")
    history = _history(graph)

    result = purge_messages(graph.checkpointer, MONTH)

    assert (result.errors, result.untrimmed) == ({}, {})
    for key, messages in _history(graph).items():
        was = {message.id: message for message in history[key]}
        assert [was[message.id] for message in messages] == messages  # in order, and equal
        calls = {call["id"] for m in messages for call in getattr(m, "tool_calls", [])}
        had = {call["id"] for m in history[key] for call in getattr(m, "tool_calls", [])}
        answers = {m.tool_call_id for m in messages if m.type == "tool"}
        had_answers = {m.tool_call_id for m in history[key] if m.type == "tool"}
        assert answers & had <= calls  # nothing that had its other half has lost it
        assert calls & had_answers <= answers


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_a_pending_interrupt_keeps_its_exchange_and_resumes(backend, clock, frequency):
    graph = _graph(_retained(backend.saver, clock), frequency, asks=True)
    graph.invoke({"messages": [("user", "OLDWORD one")]}, CONFIG)
    graph.invoke(Command(resume="OLDWORD yes"), CONFIG)
    clock.pass_days(20)
    graph.invoke({"messages": [("user", "PAUSED two")]}, CONFIG)
    clock.pass_days(40)

    result = purge_messages(graph.checkpointer, MONTH)

    assert result.purged_thread_ids == ["t"]
    assert "interrupt" in result.kept["t"]
    assert backend.holds("OLDWORD") == []
    end = graph.invoke(Command(resume="yes"), CONFIG)["messages"]
    assert [m.content for m in end] == ["PAUSED two", "looking at PAUSED two", "yes PAUSED two"]
    purge_messages(graph.checkpointer, MONTH)
    assert len(_messages(graph)) == 3  # the answer is of today
    clock.pass_days(31)
    purge_messages(graph.checkpointer, MONTH)
    assert _messages(graph) == []
    assert backend.holds("PAUSED") == []


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_a_save_trims_the_snapshots_it_stores(backend, clock, frequency):
    """Between snapshots a saver never sees the value; with one, the old exchange is gone."""
    graph = _graph(_retained(backend.saver, clock, days=30), frequency)
    graph.invoke({"messages": [("user", "OLDWORD one")]}, CONFIG)
    clock.pass_days(40)
    for n in range(3):
        graph.invoke({"messages": [("user", f"NEWWORD {n}")]}, CONFIG)

    texts = [m.content for m in _messages(graph)]

    assert all("OLDWORD" not in text for text in texts) == (frequency < 1000)
    assert [text for text in texts if text.startswith("NEWWORD")] == [
        "NEWWORD 0",
        "NEWWORD 1",
        "NEWWORD 2",
    ]
    purge_messages(graph.checkpointer, MONTH)
    assert backend.holds("OLDWORD") == []
    assert [m.content for m in _messages(graph)] == [t for t in texts if "OLDWORD" not in t]


def _shouting(state: list[Any], writes: list[Any]) -> list[Any]:
    """A reducer that makes other messages of what is written."""
    return state + [
        HumanMessage(f"{message.content}!", id=f"{message.id}!")
        for write in writes
        for message in write
    ]


@pytest.mark.parametrize("frequency", [2])
def test_a_reducer_of_another_kind_is_reported_and_left_alone(backend, clock, frequency):
    """What writing does to the channel is not understood: not trimmed, and not silently."""
    graph = _graph(_retained(backend.saver, clock), frequency, _shouting)
    for n in range(3):
        values = {"messages": [HumanMessage(f"OLDWORD {n}", id=str(n))]}
        graph.update_state(CONFIG, values, as_node="tool")
    before, rows = _messages(graph), backend.rows()
    clock.pass_days(40)

    result = purge_messages(graph.checkpointer, MONTH)

    assert result.purged_thread_ids == []
    assert "messages" in result.untrimmed["t"]
    assert _messages(graph) == before
    assert backend.rows() == rows


def test_a_run_saved_at_its_end_after_a_question_nobody_answered(backend, clock):
    """What the last step before it wrote does not tell what its own steps made of the channel."""

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]

    builder = StateGraph(State)
    builder.add_node("tidy", lambda state: {"messages": Overwrite(list(state["messages"]))})
    builder.add_node("tool", lambda _: {"messages": [AIMessage("OLDWORD seen")]})
    builder.add_node("ask", lambda _: {"messages": [AIMessage(interrupt("may I?"))]})
    builder.add_edge(START, "tidy").add_edge("tidy", "tool").add_edge("tidy", "ask")
    graph = builder.compile(checkpointer=_retained(backend.saver, clock))
    graph.invoke({"messages": [("user", "OLDWORD one")]}, CONFIG)
    graph.invoke({"messages": [("user", "OLDWORD two")]}, CONFIG, durability="exit")
    clock.pass_days(40)
    graph.invoke({"messages": [("user", "NEWWORD")]}, CONFIG)

    result = purge_messages(graph.checkpointer, MONTH)

    assert (result.errors, result.untrimmed) == ({}, {})
    assert backend.holds("OLDWORD one") == backend.holds("OLDWORD two") == []
    assert graph.invoke(Command(resume="NEWWORD yes"), CONFIG)["messages"][0].content == "NEWWORD"


@pytest.mark.parametrize("frequency", [1, 1000])
def test_a_message_that_belongs_to_an_old_and_a_young_exchange_stays_in_both(
    backend, clock, frequency
):
    """Removing a question moves its answer to the one before; the writes are shared."""
    graph = _graph(_retained(backend.saver, clock), frequency)
    graph.invoke({"messages": [HumanMessage("first", id="1")]}, CONFIG)
    clock.pass_days(40)
    graph.invoke({"messages": [HumanMessage("second", id="2")]}, CONFIG)
    graph.update_state(CONFIG, {"messages": [RemoveMessage(id="2")]}, as_node="tool")
    before = _history(graph)
    assert len(_messages(graph)) == 5

    purge_messages(graph.checkpointer, MONTH)

    assert _history(graph) == before  # nothing of it can go without the other
    clock.pass_days(40)
    purge_messages(graph.checkpointer, MONTH)
    assert _messages(graph) == []
    assert [backend.holds(word) for word in ("first", "second")] == [[], []]


class DiedError(Exception):
    """The process is killed here."""


class _Dying(RetainedCheckpointer):
    """Dies at its next save, or at the first save of a turn that writes one answer."""

    armed = False

    def put(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if self.armed:
            raise DiedError
        return super().put(config, checkpoint, metadata, versions)


@pytest.mark.parametrize("turns", [0, 1])
@pytest.mark.parametrize("frequency", [1, 1000])
def test_the_input_of_a_run_that_died_goes_with_its_age(backend, frequency, turns):
    """It stands in the writes of the checkpoint before: by its stamp, as those carry no time."""
    saver = _Dying(backend.saver, max_age=timedelta(days=9999))
    graph = _graph(saver, frequency)
    for n in range(turns):
        graph.invoke({"messages": [("user", f"OLDWORD {n}")]}, CONFIG, durability="sync")
    saver.armed = bool(turns)
    with pytest.raises(DiedError) if turns else contextlib.nullcontext():
        graph.invoke({"messages": [("user", "OLDWORD lost")]}, CONFIG, durability="sync")
    assert backend.holds("OLDWORD lost")
    early = purge_messages(backend.saver, MONTH)
    assert early.purged_thread_ids == []
    result = purge_messages(backend.saver, MONTH, clock=lambda: time.time() + 40 * 86400)
    assert (result.purged_thread_ids, result.kept, result.untrimmed) == (["t"], {}, {})
    assert backend.holds("OLDWORD") == []


def test_an_input_of_unknown_age_at_an_old_checkpoint_stays_and_is_reported(backend):
    """Nobody stamped it: it may be of today, and nothing else in storage has it."""
    graph = _graph(backend.saver, 1000)
    graph.invoke({"messages": [("user", "OLDWORD")]}, CONFIG, durability="sync")
    head = backend.saver.get_tuple(CONFIG).config
    unread = HumanMessage("AGELESS", id="a", response_metadata={"checkpointed_at": "?"})
    late = [unread, AIMessage("AGELESS too", id="b")]
    backend.saver.put_writes(head, [("messages", late)], "0" * 8)
    backend.saver.put_writes(head, [("messages", [AIMessage("OLDWORD 2", id="c")])], "1" * 8)
    result = purge_messages(backend.saver, MONTH, clock=lambda: time.time() + 40 * 86400)
    assert "how old" in result.kept["t"]
    assert backend.holds("OLDWORD") == []
    assert backend.holds("AGELESS")
    assert backend.holds("AGELESS too")


def _extend(old: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*old, *(item for write in writes for item in write)]


@pytest.mark.parametrize(
    "items",
    [
        [["one"], ["two"]],
        [[{"type": "click"}], [{"type": "scroll"}]],
        [[("a", "b")], [("c", "d")]],
        [[1, AIMessage("a message")], [2]],
    ],
    ids=["texts", "dicts", "pairs", "also messages"],
)
def test_a_delta_channel_of_anything_else_is_never_touched(backend, clock, items):
    """Before its first snapshot only its writes tell what it holds, and texts tell nothing."""

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]
        log: Annotated[list, DeltaChannel(_extend, list)]

    builder = StateGraph(State).add_node("node", lambda _: {"messages": [AIMessage("said")]})
    graph = builder.add_edge(START, "node").compile(checkpointer=_retained(backend.saver, clock))
    for item in items:
        graph.invoke({"messages": [("user", "OLDWORD")], "log": item}, CONFIG)
    log = graph.get_state(CONFIG).values["log"]
    assert len(log) == sum(map(len, items))
    clock.pass_days(40)

    result = purge_messages(graph.checkpointer, MONTH)

    assert (result.errors, result.message_count) == ({}, 4)
    assert graph.get_state(CONFIG).values["log"] == log
    assert backend.holds("OLDWORD") == []


def test_a_branch_whose_sibling_was_pruned(backend, clock):
    """What the run of the other branch wrote says nothing about the update that began this one."""

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]
        log: Annotated[list, DeltaChannel(_extend, list)]  # is rebuilt from the ancestors

    def tool(state: State) -> Any:
        if "fails" in state["messages"][-2].content:
            raise LookupError
        return {"messages": [AIMessage("seen")]}

    builder = StateGraph(State).add_node("tool", tool)
    builder.add_node("model", lambda _: {"messages": [AIMessage("looking")]})
    builder.add_edge(START, "model").add_edge("model", "tool")
    graph = builder.compile(checkpointer=_retained(backend.saver, clock))
    graph.invoke({"messages": [("user", "OLDWORD one")], "log": ["one"]}, CONFIG)
    head = graph.get_state(CONFIG).config
    with pytest.raises(LookupError):
        graph.invoke({"messages": [("user", "OLDWORD fails")]}, CONFIG, durability="exit")
    graph.update_state(head, {"messages": [AIMessage("OLDWORD branch")]}, as_node="tool")
    policy = TTLPolicy(max_checkpoints_per_thread=1)
    assert TTLSweeper(backend.saver, policy).sweep().pruned_checkpoint_count == 1
    clock.pass_days(40)
    graph.invoke({"messages": [("user", "NEWWORD")]}, CONFIG)

    result = purge_messages(graph.checkpointer, MONTH)

    assert (result.errors, result.untrimmed) == ({}, {})
    assert [m.content for m in _messages(graph)] == ["NEWWORD", "looking", "seen"]
    assert backend.holds("OLDWORD one") == backend.holds("OLDWORD branch") == []


@pytest.mark.parametrize("frequency", FREQUENCIES)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_question_in_a_subgraph_goes_with_the_exchange_it_was_asked_in(
    backend, frequency, durability
):
    """Where a run is saved at its end only, the subgraph's first row does not name its caller."""

    class State(TypedDict):
        messages: Annotated[
            list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=frequency)
        ]

    inner = StateGraph(State).add_node("one", lambda _: {"messages": [AIMessage("one")]})
    inner.add_node("ask", lambda _: {"messages": [AIMessage(interrupt("OLDWORD?"))]})
    inner.add_edge(START, "one").add_edge("one", "ask")
    builder: Any = StateGraph(State).add_node("inner", inner.compile()).add_edge(START, "inner")
    graph = builder.compile(checkpointer=backend.saver)
    graph.invoke({"messages": [("user", "OLDWORD")]}, CONFIG, durability=durability)
    later = time.time() + 40 * 86400
    waiting = purge_messages(backend.saver, MONTH, clock=lambda: later)
    assert "interrupt" in waiting.kept["t"]
    graph.invoke(Command(resume="OLDWORD yes"), CONFIG, durability=durability)
    assert [m.content for m in _messages(graph)] == ["OLDWORD", "one", "OLDWORD yes"]
    result = purge_messages(backend.saver, MONTH, clock=lambda: later)
    assert (result.kept, result.untrimmed) == ({}, {})
    assert backend.holds("OLDWORD") == []


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_what_was_written_and_taken_out_again_goes(backend, clock, durability):
    """A run that is saved at its end stores both the message and the order to remove it."""

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]

    def tidy(state: State) -> Any:
        return {"messages": [RemoveMessage(id=state["messages"][-1].id)]}

    builder = StateGraph(State).add_node("say", lambda _: {"messages": [AIMessage("OLDWORD")]})
    builder.add_node("tidy", tidy).add_edge(START, "say").add_edge("say", "tidy")
    graph = builder.compile(checkpointer=_retained(backend.saver, clock))
    for word in ("OLDWORD", "NEWWORD"):
        graph.invoke({"messages": [("user", word)]}, CONFIG, durability=durability)
        clock.pass_days(20)
    purge_messages(graph.checkpointer, MONTH)
    assert len(backend.holds("OLDWORD")) == 1  # of the turn that is young
    assert [m.content for m in _messages(graph)] == ["NEWWORD"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_what_a_task_wrote_beside_a_question_is_there_for_the_answer(backend, clock, durability):
    class State(TypedDict):
        messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]

    builder = StateGraph(State).add_node("say", lambda _: {"messages": [AIMessage("said")]})
    builder.add_node("ask", lambda _: {"messages": [AIMessage(interrupt("?"))]})
    builder.add_edge(START, "say").add_edge(START, "ask")
    graph = builder.compile(checkpointer=_retained(backend.saver, clock))
    graph.invoke({"messages": [("user", "PAUSED")]}, CONFIG, durability=durability)
    clock.pass_days(40)
    assert "interrupt" in purge_messages(graph.checkpointer, MONTH).kept["t"]
    graph.invoke(Command(resume="yes"), CONFIG, durability=durability)
    assert sorted(m.content for m in _messages(graph)) == ["PAUSED", "said", "yes"]
