"""Runs that died: what they were told is in inputs and writes, and in no channel."""

from __future__ import annotations

import operator
import time
from datetime import timedelta
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer, purge_messages

CONFIG: Any = {"configurable": {"thread_id": "t"}}
MONTH = timedelta(days=30)


class DiedError(Exception):
    """The process is killed here."""


class Dying(RetainedCheckpointer):
    """DiedError at the save of a step, or before the first write of a task."""

    at_step: int | None = None
    at_writes = False

    def put(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if self.at_step is not None and metadata["step"] >= self.at_step:
            raise DiedError
        return super().put(config, checkpoint, metadata, versions)

    @property
    def put_writes(self) -> Any:  # type: ignore[override]
        inner = super().put_writes

        def put_writes(config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            if self.at_writes:
                raise DiedError
            inner(config, writes, task_id, task_path)

        return put_writes


def _later() -> float:
    return time.time() + 40 * 86400


def _dying(backend: Any) -> Dying:
    # Stamps of today, as checkpoints are of today; the purge comes later.
    return Dying(backend.saver, max_age=timedelta(days=9999))


def _answer(state: MessagesState) -> Any:
    return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}


def _graph(saver: Any) -> Any:
    builder = StateGraph(MessagesState).add_node("answer", _answer).add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def _die(graph: Any, told: Any) -> None:
    with pytest.raises(DiedError):
        graph.invoke(told, CONFIG, durability="sync")


INPUTS = {
    "pairs": [("system", "rules"), ("user", "OLDWORD")],
    "roles": [{"role": "user", "content": "OLDWORD"}],
    "text": "OLDWORD",
    "messages": [SystemMessage("rules"), HumanMessage([{"type": "text", "text": "OLDWORD"}])],
    "one": HumanMessage("OLDWORD", id="1"),
}


@pytest.mark.parametrize("at_writes", [True, False])
@pytest.mark.parametrize("form", INPUTS)
def test_the_input_of_a_run_that_died_before_its_first_superstep_goes(backend, form, at_writes):
    """It stands in ``__start__``, and in the writes of a superstep without a checkpoint."""
    saver = _dying(backend)
    saver.at_writes, saver.at_step = at_writes, 0
    _die(_graph(saver), {"messages": INPUTS[form]})
    assert backend.holds("OLDWORD")
    rows = sorted(map(repr, backend.rows()))
    heard: list[Any] = []
    options: Any = {"on_before_trim": lambda _, messages: heard.extend(messages)}

    early = purge_messages(backend.saver, MONTH, **options)
    assert (early.purged_thread_ids, early.kept, heard) == ([], {}, [])
    assert sorted(map(repr, backend.rows())) == rows
    result = purge_messages(backend.saver, MONTH, clock=_later, **options)

    assert (result.purged_thread_ids, result.errors, result.kept) == (["t"], {}, {})
    assert backend.holds("OLDWORD") == []
    assert result.message_count == len(heard) > 0
    assert any("OLDWORD" in str(message.content) for message in heard)
    assert purge_messages(backend.saver, MONTH, clock=_later).purged_thread_ids == []
    graph = _graph(backend.saver)
    graph.invoke({"messages": [("user", "NEXT")]}, CONFIG)
    assert [m.content for m in graph.get_state(CONFIG).values["messages"]] == ["NEXT", "re NEXT"]


@pytest.mark.parametrize("paused", [False, True])
def test_an_input_that_was_lost_goes_though_the_thread_went_on(backend, paused):
    """The next input took its place, and no channel ever held it."""

    def ask(state: MessagesState) -> Any:
        if state["messages"][-1].content == "PAUSED":
            interrupt("?")
        return _answer(state)

    saver = _dying(backend)
    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    graph: Any = builder.compile(checkpointer=saver)
    saver.at_step = 0
    _die(graph, {"messages": [("user", "OLDWORD")]})
    saver.at_step = None
    graph.invoke({"messages": [("user", "OLDWORD second")]}, CONFIG)
    if paused:
        graph.invoke({"messages": [("user", "PAUSED")]}, CONFIG)
    result = purge_messages(saver, MONTH, clock=_later)
    assert (result.purged_thread_ids, list(result.kept)) == (["t"], ["t"] if paused else [])
    assert backend.holds("OLDWORD") == []
    assert bool(backend.holds("PAUSED")) == paused


class Research(TypedDict):
    topic: str
    found: Annotated[list[str], operator.add]


def test_messages_sent_to_tasks_go_where_the_step_never_ended(backend):
    """A Send holds them, and the state of the graph holds no conversation at all."""

    def fan(state: Research) -> list[Send]:
        return [Send("work", {"ask": [HumanMessage("OLDWORD", id="1")]})]

    def work(state: Any) -> Any:
        raise DiedError

    builder: Any = StateGraph(Research).add_node("work", work)
    graph = builder.add_conditional_edges(START, fan, ["work"]).compile(checkpointer=backend.saver)
    _die(graph, {"topic": "kept by the application"})
    assert backend.holds("OLDWORD")
    purge_messages(backend.saver, MONTH, clock=_later)
    assert backend.holds("OLDWORD") == []
    assert graph.get_state(CONFIG).values["topic"] == "kept by the application"


def test_what_the_neighbours_of_a_task_that_failed_wrote_goes(backend):
    """The step has no checkpoint: its writes stand beside the error, in any form."""

    def fails(state: MessagesState) -> Any:
        raise DiedError("the application's own text")

    def speaks(state: MessagesState) -> Any:
        call = {"name": "find", "args": {"q": "OLDWORD"}, "id": "c"}
        result = ToolMessage("OLDWORD", tool_call_id="c")
        return {"messages": [AIMessage("OLDWORD", tool_calls=[call]), result]}

    def asks(state: MessagesState) -> Any:
        return Command(update={"messages": ("ai", "OLDWORD")}, goto="speaks")

    builder: Any = StateGraph(MessagesState)
    for node in (fails, speaks, asks):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "asks").add_edge(START, "speaks").add_edge("asks", "fails")
    graph = builder.compile(checkpointer=backend.saver)
    _die(graph, {"messages": [("user", "OLDWORD")]})
    result = purge_messages(backend.saver, MONTH, clock=_later)
    assert (result.errors, result.kept) == ({}, {})
    assert backend.holds("OLDWORD") == []


def test_an_answer_that_killed_the_run_goes_with_its_question(backend):
    """Command(resume=...) and the interrupt's payload, once the task has failed for good."""

    def ask(state: MessagesState) -> Any:
        answer = interrupt({"draft": [AIMessage("OLDWORD draft", id="d")]})
        return {"messages": [AIMessage(f"so {answer['said'][0].content}")]}

    saver = _dying(backend)
    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    graph: Any = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [("user", "OLDWORD")]}, CONFIG)
    saver.at_step = 1
    _die(graph, Command(resume={"said": [HumanMessage("OLDWORD answer", id="a")]}))
    assert backend.holds("OLDWORD answer")
    result = purge_messages(backend.saver, MONTH, clock=_later)
    assert (result.errors, result.kept) == ({}, {})
    assert backend.holds("OLDWORD") == []


def test_a_question_in_a_thread_without_a_conversation_is_kept_whole(backend):
    """Only the task that was sent holds messages; its interrupt waits, so nothing goes."""

    def fan(state: Research) -> list[Send]:
        return [Send("work", {"ask": [HumanMessage("PAUSED", id="1")]})]

    def work(state: Any) -> Any:
        return {"found": [f"{state['ask'][0].content} {interrupt('go on?')}"]}

    builder: Any = StateGraph(Research).add_node("work", work)
    graph = builder.add_conditional_edges(START, fan, ["work"]).compile(checkpointer=backend.saver)
    graph.invoke({"topic": "x"}, CONFIG)
    rows = sorted(map(repr, backend.rows()))
    result = purge_messages(backend.saver, MONTH, clock=_later)
    assert (result.purged_thread_ids, list(result.kept)) == ([], ["t"])
    assert sorted(map(repr, backend.rows())) == rows
    assert graph.invoke(Command(resume="yes"), CONFIG)["found"] == ["PAUSED yes"]
    purge_messages(backend.saver, MONTH, clock=_later)
    assert graph.get_state(CONFIG).values["found"] == ["PAUSED yes"]  # the application's own copy


@pytest.mark.parametrize("form", ["pairs", "roles", "text"])
def test_an_input_that_is_no_conversation_is_not_touched(backend, form):
    """The same forms, in a channel that the graph keeps as they are."""

    class State(TypedDict):
        messages: Any
        question: str

    builder: Any = StateGraph(State).add_node("node", lambda state: {}).add_edge(START, "node")
    saver = _dying(backend)
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": INPUTS[form], "question": "OLDWORD"}, CONFIG)
    saver.at_step = 2
    _die(graph, {"messages": INPUTS[form], "question": "OLDWORD"})
    rows = sorted(map(repr, backend.rows()))
    purge_messages(backend.saver, MONTH, clock=_later)
    assert sorted(map(repr, backend.rows())) == rows


def test_an_input_in_a_channel_that_was_not_named_stays(backend):
    saver = _dying(backend)
    saver.at_step = 0
    _die(_graph(saver), {"messages": [HumanMessage("OLDWORD")]})
    assert purge_messages(saver, MONTH, channels=["talk"], clock=_later).purged_thread_ids == []
    assert backend.holds("OLDWORD")
    purge_messages(saver, MONTH, channels=["messages"], clock=_later)
    assert backend.holds("OLDWORD") == []


def test_a_new_question_at_an_old_checkpoint_is_as_young_as_its_stamp(backend, clock):
    """Written before its own checkpoint is, by a run that goes on: it is not lost."""
    graph = _graph(backend.saver)
    graph.invoke({"messages": [("user", "OLDWORD")]}, CONFIG)
    clock.now = _later()
    head = backend.saver.get_tuple(CONFIG).config
    fresh = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    fresh.put_writes(
        head, [("messages", [HumanMessage("YOUNG", id="y"), AIMessage("re")])], "a" * 8
    )
    backend.saver.put_writes(head, [("messages", [AIMessage("OLDWORD again", id="o")])], "b" * 8)

    result = purge_messages(backend.saver, MONTH, clock=clock)

    assert result.purged_thread_ids == ["t"]
    assert backend.holds("OLDWORD") == []
    written = {w[2][0].content: len(w[2]) for w in fresh.get_tuple(head).pending_writes if w[2]}
    assert written == {"YOUNG": 2}


def test_a_question_of_unknown_age_at_an_old_checkpoint_is_kept_and_reported(backend):
    """Nobody stamped it, and a write carries no time: it may have come today."""
    graph = _graph(backend.saver)
    graph.invoke({"messages": [("user", "OLDWORD")]}, CONFIG)
    head = backend.saver.get_tuple(CONFIG).config
    message = HumanMessage("AGELESS", id="a", response_metadata={"checkpointed_at": "?"})
    backend.saver.put_writes(head, [("messages", [message])], "a" * 8)
    result = purge_messages(backend.saver, MONTH, clock=_later)
    assert backend.holds("OLDWORD") == []
    assert backend.holds("AGELESS")
    assert "how old" in result.kept["t"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("form", INPUTS)
def test_a_command_as_first_input_goes_with_its_exchange(backend, form, durability):
    """LangGraph stores its update beside a checkpoint that it never stores."""
    graph = _graph(backend.saver)
    command: Any = Command(update={"messages": INPUTS[form]}, goto="answer")
    graph.invoke(command, CONFIG, durability=durability)
    assert backend.holds("OLDWORD")
    rows = sorted(map(repr, backend.rows()))
    assert purge_messages(backend.saver, MONTH).row_count == 0
    assert sorted(map(repr, backend.rows())) == rows
    result = purge_messages(backend.saver, MONTH, clock=_later)
    assert (result.errors, result.kept, result.untrimmed) == ({}, {}, {})
    assert backend.holds("OLDWORD") == []
    assert purge_messages(backend.saver, MONTH, clock=_later).row_count == 0
    graph.invoke({"messages": [("user", "NEXT")]}, CONFIG)
    assert [
        m.content for m in graph.get_state(CONFIG).values["messages"] if m.type != "system"
    ] == [
        "NEXT",
        "re NEXT",
    ]


def test_a_first_command_whose_run_died_goes_as_well(backend):
    """It is all there is, beside a checkpoint that was stored by a later run."""
    saver = _dying(backend)
    saver.at_step = -1
    _die(_graph(saver), Command(update={"messages": ("user", "OLDWORD")}, goto="answer"))
    saver.at_step = None
    _graph(saver).invoke({"messages": [("user", "OLDWORD second")]}, CONFIG)
    result = purge_messages(saver, MONTH, clock=_later)
    assert (result.errors, result.kept, result.untrimmed) == ({}, {}, {})
    assert backend.holds("OLDWORD") == []


def test_a_young_answer_beside_an_old_checkpoint_that_was_pruned_stays(backend, clock):
    """The run that writes it goes on; its messages tell that they are of today."""
    graph = _graph(backend.saver)
    graph.invoke({"messages": [("user", "OLDWORD")]}, CONFIG)
    clock.now = _later()
    head = backend.saver.get_tuple(CONFIG).config["configurable"]["checkpoint_id"]
    digit = "0" if head[-1] != "0" else "1"
    pruned: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": ""}}
    pruned["configurable"]["checkpoint_id"] = head[:13] + "-6" + head[15:-1] + digit
    fresh = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    told = [AIMessage("YOUNG", id="y"), HumanMessage("YOUNG too", id="z")]
    fresh.put_writes(pruned, [("messages", told)], "a" * 8)
    purge_messages(backend.saver, MONTH, clock=clock)
    assert backend.holds("OLDWORD") == []
    assert backend.holds("YOUNG too")
    stored = b"".join(value for row in backend.rows() for value in row if isinstance(value, bytes))
    assert stored.count(b"YOUNG") == 2
