"""RetainedCheckpointer at every save: stamps, trimming, the hook, and what it leaves alone."""

import asyncio
import copy
import inspect
import logging
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer

CONFIG: Any = {"configurable": {"thread_id": "t"}}
KEY = "checkpointed_at"
MONTH = timedelta(days=30)


def _chat(saver: Any, nodes: Any) -> Any:
    builder = StateGraph(MessagesState)
    names = []
    for node in nodes:
        builder.add_node(node.__name__, node)
        names.append(node.__name__)
    for before, after in zip([START, *names], names, strict=False):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver)


def answer(state: MessagesState) -> Any:
    return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}


def _messages(graph: Any) -> list[Any]:
    return list(graph.get_state(CONFIG).values["messages"])


def _texts(graph: Any) -> list[str]:
    return [message.content for message in _messages(graph)]


def _stamp(clock: Any) -> str:
    return datetime.fromtimestamp(clock.now, UTC).isoformat(timespec="microseconds")


def test_stamps_are_of_the_first_save_through_many_supersteps_and_reloads(backend, clock):
    """A run of 100 days ago, reloaded and continued: each message keeps its own first stamp."""
    kept: list[Any] = []

    def step(state: MessagesState) -> Any:
        clock.pass_days(1 / 24)
        kept.append(AIMessage(f"step {len(kept)}"))
        return {"messages": [kept[-1]]}

    def step2(state: MessagesState) -> Any:
        return step(state)

    def step3(state: MessagesState) -> Any:
        return step(state)

    begun = _stamp(clock)
    graph = _chat(
        RetainedCheckpointer(backend.saver, max_age=timedelta(days=999), clock=clock),
        [step, step2, step3],
    )
    question = HumanMessage("q", response_metadata={"mine": 1})
    graph.invoke({"messages": [question]}, CONFIG, durability="sync")
    first = {message.id: message.response_metadata[KEY] for message in _messages(graph)}
    assert next(iter(first.values())) == begun
    assert len(set(first.values())) == 4  # each of its own superstep
    clock.pass_days(100)
    # A new process: nothing is remembered but what storage holds.
    graph = _chat(
        RetainedCheckpointer(backend.saver, max_age=timedelta(days=999), clock=clock),
        [step, step2, step3],
    )
    graph.invoke({"messages": [("user", "again")]}, CONFIG, durability="sync")

    now = {message.id: message.response_metadata[KEY] for message in _messages(graph)}
    assert {ident: now[ident] for ident in first} == first
    assert all(now[ident] > max(first.values()) for ident in now.keys() - first.keys())
    assert all(KEY not in message.response_metadata for message in kept)
    assert question.response_metadata == {"mine": 1}  # the caller's objects are as they were
    assert _messages(graph)[0].response_metadata == {"mine": 1, KEY: begun}


def test_a_message_replaced_under_its_id_keeps_its_first_stamp(backend, clock):
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    graph = _chat(saver, [answer])
    graph.invoke({"messages": [HumanMessage("q", id="q")]}, CONFIG)
    first = _messages(graph)[0].response_metadata[KEY]
    clock.pass_days(3)
    graph = _chat(RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock), [answer])
    graph.update_state(CONFIG, {"messages": [HumanMessage("edited", id="q")]})
    assert _messages(graph)[0].content == "edited"
    assert _messages(graph)[0].response_metadata[KEY] == first


def test_each_save_drops_what_is_too_old_and_keeps_the_rest_equal(backend, clock):
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    graph = _chat(saver, [answer])
    for turn in range(4):
        graph.invoke({"messages": [("user", f"turn {turn}")]}, CONFIG)
        seen = _messages(graph)
        clock.pass_days(20)
    assert [m.content for m in seen] == ["turn 2", "re turn 2", "turn 3", "re turn 3"]


def test_the_exchange_in_progress_is_never_trimmed(backend, clock):
    """A single turn that takes longer than the limit is whole at its end."""

    def slow(state: MessagesState) -> Any:
        clock.pass_days(40)
        return {"messages": [AIMessage("slow")]}

    graph = _chat(RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock), [slow, answer])
    graph.invoke({"messages": [("user", "q")]}, CONFIG)
    assert _texts(graph) == ["q", "slow", "re slow"]


def test_a_turn_paused_past_the_limit_and_then_answered_is_whole(backend, clock):
    """Question, tool calls, and the fresh answer; even though a node speaks as a human in it."""

    def call(state: MessagesState) -> Any:
        return {"messages": [AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": "c"}])]}

    def one(state: MessagesState) -> Any:
        return {"messages": [ToolMessage("one", tool_call_id="c"), HumanMessage("note")]}

    def two(state: MessagesState) -> Any:
        return {"messages": [AIMessage(interrupt("two?"))]}

    builder = StateGraph(MessagesState)
    for node in (call, one, two, answer):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "call").add_edge("call", "one").add_edge("call", "two")
    builder.add_edge(["one", "two"], "answer")
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [("user", "q")]}, CONFIG)
    clock.pass_days(100)
    fresh = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    graph = builder.compile(checkpointer=fresh)

    graph.invoke(Command(resume="yes"), CONFIG)

    assert _texts(graph)[:4] == ["q", "", "one", "note"]
    assert set(_texts(graph)) >= {"yes"}
    clock.pass_days(1)
    graph.invoke({"messages": [("user", "next")]}, CONFIG)  # the pause is over
    assert "q" not in _texts(graph)


def test_an_order_to_remove_what_was_trimmed_does_not_block_the_thread(backend, clock):
    """A node removes an old message beside an interrupt; the resume finds it gone already."""

    def forget(state: MessagesState) -> Any:
        old = [m for m in state["messages"] if m.content == "old"]
        return {"messages": [RemoveMessage(id=m.id) for m in old]}

    def ask(state: MessagesState) -> Any:
        if state["messages"][-1].content != "new":
            return {"messages": []}
        return {"messages": [AIMessage(interrupt("?"))]}

    builder = StateGraph(MessagesState)
    builder.add_node("forget", forget).add_node("ask", ask)
    builder.add_edge(START, "forget").add_edge(START, "ask")
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    graph = builder.compile(checkpointer=saver)
    graph.update_state(CONFIG, {"messages": [HumanMessage("old")]}, as_node="ask")
    clock.pass_days(40)
    graph.invoke({"messages": [("user", "new")]}, CONFIG)
    graph.invoke(Command(resume="yes"), CONFIG)
    assert _texts(graph) == ["new", "yes"]


def test_the_hook_hears_of_each_message_once_and_first(backend, clock):
    heard: list[Any] = []

    def archive(thread_id: str, messages: list[Any]) -> None:
        assert "turn 0" in _texts(graph)  # nothing is gone yet
        heard.append((thread_id, [message.content for message in messages]))

    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock, on_before_trim=archive)
    graph = _chat(saver, [answer])
    graph.invoke({"messages": [("user", "turn 0")]}, CONFIG)
    clock.pass_days(40)
    graph.invoke({"messages": [("user", "turn 1")]}, CONFIG)
    assert heard == [("t", ["turn 0", "re turn 0"])]
    assert _texts(graph) == ["turn 1", "re turn 1"]


@pytest.mark.parametrize("name", [None, "question"])
def test_the_hook_hears_again_of_words_said_again_after_they_have_gone(backend, clock, name):
    """They are another message, though nothing but the day tells them apart."""
    heard: list[Any] = []

    class State(TypedDict):
        log: Annotated[list[Any], lambda old, new: old + new]

    saver = RetainedCheckpointer(
        backend.saver,
        max_age=MONTH,
        clock=clock,
        on_before_trim=lambda _, messages: heard.extend(message.content for message in messages),
    )
    graph = StateGraph(State).add_node("node", lambda state: {}).add_edge(START, "node")
    compiled = graph.compile(checkpointer=saver)
    for text in ("ok", "other", "ok", "last"):
        compiled.invoke({"log": [HumanMessage(text, id=name)]}, CONFIG)
        clock.pass_days(40)
    assert heard == ["ok", "other", "ok"]


def test_the_hook_hears_of_a_message_that_was_edited_while_its_exchange_went(backend, clock):
    """A run that loaded it before may still change it; the archive gets both wordings, once."""
    heard: list[Any] = []

    def edit(state: MessagesState) -> Any:
        first = state["messages"][0]
        later = len(state["messages"]) > 1
        return {"messages": [HumanMessage("turn 0, corrected", id=first.id)] if later else []}

    saver = RetainedCheckpointer(
        backend.saver,
        max_age=MONTH,
        clock=clock,
        on_before_trim=lambda _, messages: heard.extend(message.content for message in messages),
    )
    graph = _chat(saver, [edit, answer])
    graph.invoke({"messages": [("user", "turn 0")]}, CONFIG)
    clock.pass_days(40)
    graph.invoke({"messages": [("user", "turn 1")]}, CONFIG)
    assert heard == ["turn 0", "re turn 0", "turn 0, corrected"]
    assert _texts(graph) == ["turn 1", "re turn 1"]


def test_the_hook_hears_of_a_thread_that_was_deleted_and_begun_anew(backend, clock):
    heard: list[Any] = []
    saver = RetainedCheckpointer(
        backend.saver,
        max_age=MONTH,
        clock=clock,
        on_before_trim=lambda _, messages: heard.extend(message.content for message in messages),
    )
    graph = _chat(saver, [answer])
    for _ in range(2):
        for turn in range(2):
            graph.invoke({"messages": [HumanMessage(f"turn {turn}", id=f"h{turn}")]}, CONFIG)
            clock.pass_days(40)
        saver.delete_thread("t")
    assert [text for text in heard if text == "turn 0"] == ["turn 0", "turn 0"]


def test_a_hook_that_fails_loses_nothing_and_is_asked_again(backend, clock, caplog):
    down = [True]

    def archive(thread_id: str, messages: list[Any]) -> None:
        if down[0]:
            raise OSError("the archive is away")

    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock, on_before_trim=archive)
    graph = _chat(saver, [answer])
    graph.invoke({"messages": [("user", "turn 0")]}, CONFIG)
    clock.pass_days(40)
    with caplog.at_level(logging.ERROR):
        graph.invoke({"messages": [("user", "turn 1")]}, CONFIG)
    assert _texts(graph) == ["turn 0", "re turn 0", "turn 1", "re turn 1"]
    assert "on_before_trim failed" in caplog.text
    down[0] = False
    graph.invoke({"messages": [("user", "turn 2")]}, CONFIG)
    assert "turn 0" not in _texts(graph)


def test_an_async_hook_works_in_async_code_and_trims_nothing_in_sync_code(clock, caplog):
    heard: list[Any] = []

    async def archive(thread_id: str, messages: list[Any]) -> None:
        await asyncio.sleep(0)
        heard.append([message.content for message in messages])

    saver = RetainedCheckpointer(
        InMemorySaver(), max_age=MONTH, clock=clock, on_before_trim=archive
    )
    graph = _chat(saver, [answer])
    graph.invoke({"messages": [("user", "turn 0")]}, CONFIG)
    clock.pass_days(40)
    with caplog.at_level(logging.ERROR):
        graph.invoke({"messages": [("user", "turn 1")]}, CONFIG)
    assert "asynchronous" in caplog.text
    assert _texts(graph)[0] == "turn 0"
    asyncio.run(graph.ainvoke({"messages": [("user", "turn 2")]}, CONFIG))
    assert heard == [["turn 0", "re turn 0"]]
    assert _texts(graph)[0] == "turn 1"


@pytest.mark.parametrize("make_backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_only_lists_of_messages_are_touched_and_only_in_the_channels_named(backend, clock):
    def last(_: Any, new: Any) -> Any:
        return new

    class State(TypedDict):
        named: Annotated[list[Any], last]
        other: Annotated[list[Any], last]
        mixed: Annotated[list[Any], last]
        single: Any

    graph = StateGraph(State).add_node("node", lambda state: {}).add_edge(START, "node")
    saver = RetainedCheckpointer(
        backend.saver, max_age=MONTH, clock=clock, channels=["named", "mixed", "single"]
    )
    compiled = graph.compile(checkpointer=saver)
    compiled.invoke(
        {
            "named": [HumanMessage("a"), HumanMessage("b")],
            "other": [HumanMessage("a")],
            "mixed": [HumanMessage("a"), "text"],
            "single": HumanMessage("a"),
        },
        CONFIG,
    )
    values = compiled.get_state(CONFIG).values
    assert all(KEY in message.response_metadata for message in values["named"])
    for untouched in (values["other"][0], values["mixed"][0], values["single"]):
        assert KEY not in untouched.response_metadata
    clock.pass_days(40)
    compiled.update_state(CONFIG, {"named": [*values["named"], HumanMessage("c")]})
    assert [m.content for m in compiled.get_state(CONFIG).values["named"]] == ["c"]


def test_the_same_words_without_ids_are_told_apart(backend, clock):
    """A plain list reducer gives no ids: two times "ok" are two messages of two days."""

    class State(TypedDict):
        log: Annotated[list[Any], lambda old, new: old + new]

    graph = StateGraph(State).add_node("node", lambda state: {}).add_edge(START, "node")
    compiled = graph.compile(
        checkpointer=RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    )
    for _ in range(6):
        compiled.invoke({"log": [HumanMessage("ok")]}, CONFIG)
        clock.pass_days(20)
        log = compiled.get_state(CONFIG).values["log"]
        stamps = {m.response_metadata[KEY] for m in log}
        assert len(log) == len(stamps) <= 2
    assert datetime.fromisoformat(max(stamps)).timestamp() == clock.now - 20 * 86400


@pytest.mark.parametrize("name", [None, "question"])
def test_words_said_again_after_they_have_gone_are_young(backend, clock, name):
    """Neither the words nor an id that many messages have tells that it is the one of before."""

    class State(TypedDict):
        log: Annotated[list[Any], lambda old, new: old + new]

    graph = StateGraph(State).add_node("node", lambda state: {}).add_edge(START, "node")
    compiled = graph.compile(
        checkpointer=RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    )
    for text, days in (("ok", 40), ("other", 1), ("ok", 1), ("last", 1), ("last", 1)):
        compiled.invoke({"log": [HumanMessage(text, id=name)]}, CONFIG)
        clock.pass_days(days)
    log = compiled.get_state(CONFIG).values["log"]
    assert [message.content for message in log] == ["other", "ok", "last", "last"]
    assert len({message.response_metadata[KEY] for message in log}) == 4


def test_a_message_without_id_keeps_its_stamp_while_its_run_is_looked_at(backend, clock):
    """Somebody who loads the thread beside the run does not make what the run says younger."""

    class State(TypedDict):
        log: Annotated[list[Any], lambda old, new: old + new]

    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)

    def look(state: State) -> Any:
        saver.get_tuple(CONFIG)
        clock.pass_days(1 / 24)
        return {"log": [AIMessage("re")]}

    graph = StateGraph(State).add_node("one", look).add_node("two", look)
    compiled = graph.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=saver)
    begun = _stamp(clock)
    compiled.invoke({"log": [HumanMessage("ok")]}, CONFIG, durability="sync")
    assert compiled.get_state(CONFIG).values["log"][0].response_metadata[KEY] == begun


def test_a_thread_that_another_process_deleted_begins_anew(backend, clock):
    """The next message with the same words is not as old as the deleted one."""

    class State(TypedDict):
        log: Annotated[list[Any], lambda old, new: old + new]

    graph = StateGraph(State).add_node("node", lambda state: {}).add_edge(START, "node")
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    compiled = graph.compile(checkpointer=saver)
    compiled.invoke({"log": [HumanMessage("ok")]}, CONFIG)
    clock.pass_days(40)
    backend.saver.delete_thread("t")
    compiled.invoke({"log": [HumanMessage("ok")]}, CONFIG)
    (message,) = compiled.get_state(CONFIG).values["log"]
    assert message.response_metadata[KEY] == _stamp(clock)


def test_deleting_a_thread_forgets_its_stamps(backend, clock):
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    graph = _chat(saver, [answer])
    graph.invoke({"messages": [HumanMessage("q", id="q")]}, CONFIG)
    saver.delete_thread("t")
    clock.pass_days(40)
    graph.invoke({"messages": [HumanMessage("q", id="q")]}, CONFIG)
    assert _messages(graph)[0].response_metadata[KEY] == _stamp(clock)


class Scoped(InMemorySaver):
    """A saver that binds what is in scope when ``put_writes`` is read, as a tenant saver does."""

    scope = "none"
    bound: list[str]

    @property
    def put_writes(self) -> Any:  # type: ignore[override]
        scope = self.scope

        def put_writes(config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            self.bound.append(scope)
            InMemorySaver.put_writes(self, config, writes, task_id, task_path)

        return put_writes


def test_a_scope_that_the_inner_saver_binds_when_its_method_is_read_survives(clock):
    inner = Scoped()
    inner.bound = []
    saver = RetainedCheckpointer(inner, max_age=MONTH, clock=clock)
    inner.scope = "acme"
    put_writes = saver.put_writes  # as LangGraph reads it, where a run starts
    inner.scope = "elsewhere"
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    put_writes(config, [("messages", [HumanMessage("q")])], "task")
    assert inner.bound == ["acme"]
    assert "task_path" in inspect.signature(put_writes).parameters


def test_two_tenants_with_the_same_ids_do_not_share_stamps(clock):
    class Tenants(InMemorySaver):
        tenant = "a"

        def current_tenant(self) -> str:
            return self.tenant

    inner = Tenants()
    saver = RetainedCheckpointer(inner, max_age=MONTH, clock=clock)
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    writes = [("messages", [HumanMessage("q", id="1")])]
    saver.put_writes(config, writes, "task a")
    clock.pass_days(5)
    inner.tenant = "b"
    saver.put_writes(config, writes, "task b")
    stored = [
        inner.serde.loads_typed(value)[0]
        for _, _, value, *_ in inner.writes[("t", "", "1")].values()
    ]
    assert len({message.response_metadata[KEY] for message in stored}) == 2


def test_it_can_do_what_the_inner_saver_can_and_no_more(backend):
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH)
    for name in dir(BaseCheckpointSaver):
        if not name.startswith("_") and callable(getattr(BaseCheckpointSaver, name)):
            base = getattr(BaseCheckpointSaver, name)
            inner = getattr(type(backend.saver), name)
            if name in {"with_allowlist", "get_next_version", "get", "aget"}:
                continue
            assert (getattr(type(saver), name) is base) == (inner is base), name
    assert isinstance(saver, RetainedCheckpointer)
    assert saver.serde is backend.saver.serde
    assert saver.config_specs == backend.saver.config_specs
    assert saver.get_next_version(None, None) == 1 or "." in saver.get_next_version(None, None)
    assert "max_age" in repr(saver)
    assert copy.copy(saver).inner is backend.saver
    with pytest.raises(AttributeError):
        _ = saver.no_such_attribute


def test_a_subclass_of_it_keeps_its_own_methods_in_front(clock):
    class Mine(RetainedCheckpointer):
        saves = 0

        def put(self, *args: Any) -> Any:
            self.saves += 1
            return super().put(*args)

    saver = Mine(InMemorySaver(), max_age=MONTH, clock=clock)
    graph = _chat(saver, [answer])
    graph.invoke({"messages": [("user", "q")]}, CONFIG)
    assert saver.saves == 3
    assert all(KEY in message.response_metadata for message in _messages(graph))


def test_an_allowlist_of_the_graph_reaches_the_inner_saver(clock):
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    if not hasattr(BaseCheckpointSaver, "with_allowlist"):
        return
    inner = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=[("a", "B")]))
    saver = RetainedCheckpointer(inner, max_age=MONTH, clock=clock)
    clone = saver.with_allowlist([("c", "D")])
    assert clone is not saver
    assert clone.inner is not inner
    assert clone._keeper is saver._keeper
    assert saver.with_allowlist([("a", "B")]) is saver


@pytest.mark.parametrize(
    ("age", "error"),
    [
        (timedelta(0), ValueError),
        (timedelta(days=-1), ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (0, ValueError),
        (True, TypeError),
        ("30d", TypeError),
        (None, TypeError),
    ],
)
def test_wrong_ages_are_refused(age, error):
    with pytest.raises(error, match="max_age"):
        RetainedCheckpointer(InMemorySaver(), max_age=age)


def test_wrong_savers_and_channels_are_refused_with_a_hint():
    with pytest.raises(TypeError, match="from_conn_string"):
        RetainedCheckpointer(object(), max_age=MONTH)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one name"):
        RetainedCheckpointer(InMemorySaver(), max_age=MONTH, channels="messages")
    for wrong in ({"clock": 5}, {"on_before_trim": "archive"}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be callable"):
            RetainedCheckpointer(InMemorySaver(), max_age=MONTH, **wrong)


def test_the_sweeper_looks_through_it(backend, clock):
    saver = RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock)
    graph = _chat(saver, [answer])
    graph.invoke({"messages": [("user", "q")]}, CONFIG)
    sweeper = TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=60), clock=lambda: 4e9)
    assert sweeper.sweep().deleted_thread_ids == ["t"]
    assert backend.saver.get_tuple(CONFIG) is None


def test_what_the_inner_saver_binds_to_its_versions_survives(clock):
    class Bound(InMemorySaver):
        scope = "acme"

        @property
        def get_next_version(self) -> Any:  # type: ignore[override]
            scope = self.scope
            return lambda current, channel: f"{scope}.{current}"

    inner = Bound()
    next_version = RetainedCheckpointer(inner, max_age=MONTH, clock=clock).get_next_version
    inner.scope = "elsewhere"
    assert next_version("1", None) == "acme.1"
