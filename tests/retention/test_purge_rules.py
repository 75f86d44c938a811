"""purge_messages: colours, hooks, refusals, what is left, and saves beside it."""

import asyncio
import contextlib
import json
import operator
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer.errors import (
    AsyncRequiredError,
    StorageUnusableError,
    UnsupportedCheckpointerError,
)
from langgraph_ephemeral_checkpointer.retention import (
    PurgeResult,
    RetainedCheckpointer,
    apurge_messages,
    purge_messages,
)
from langgraph_ephemeral_checkpointer.strategies import detect_strategy

MONTH = timedelta(days=30)
PLAIN = ["memory", "sqlite", "postgres"]  # the savers that do nothing about messages themselves


def _config(thread_id: str = "t") -> Any:
    return {"configurable": {"thread_id": thread_id}}


def _answer(state: MessagesState) -> Any:
    return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}


def _graph(saver: Any) -> Any:
    builder = StateGraph(MessagesState).add_node("answer", _answer).add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def _say(graph: Any, text: str, thread_id: str = "t") -> None:
    graph.invoke({"messages": [("user", text)]}, _config(thread_id))


def _texts(graph: Any, thread_id: str = "t") -> list[str]:
    return [m.content for m in graph.get_state(_config(thread_id)).values["messages"]]


def _later() -> float:
    return time.time() + 40 * 86400


@contextlib.asynccontextmanager
async def _async_saver(kind: str, dsn: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    if kind == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(":memory:") as sqlite:
            yield sqlite
    elif kind == "connection":
        async with AsyncPostgresSaver.from_conn_string(dsn) as postgres:
            yield postgres
    else:
        options: Any = {"autocommit": True, "prepare_threshold": 0}
        async with AsyncConnectionPool(dsn, min_size=1, max_size=1, kwargs=options) as pool:
            yield AsyncPostgresSaver(pool)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sqlite", "connection", "pool"])
async def test_asynchronous_savers_are_purged_by_apurge_messages_only(kind, pg_dsn, clock):
    async with _async_saver(kind, pg_dsn) as inner:
        saver = RetainedCheckpointer(inner, max_age=timedelta(days=99), clock=clock)
        graph = _graph(saver)
        await graph.ainvoke({"messages": [("user", "OLDWORD")]}, _config())
        clock.pass_days(40)
        await graph.ainvoke({"messages": [("user", "NEWWORD")]}, _config())
        with pytest.raises(AsyncRequiredError, match="apurge_messages"):
            purge_messages(saver, MONTH)
        heard: list[Any] = []

        async def archive(thread_id: str, messages: list[Any]) -> None:
            await asyncio.sleep(0)
            heard.extend(message.content for message in messages)

        result = await apurge_messages(saver, MONTH, on_before_trim=archive)

        assert isinstance(result, PurgeResult)
        assert (result.purged_thread_ids, result.message_count) == (["t"], 2)
        assert heard == ["OLDWORD", "re OLDWORD"]
        state = await graph.aget_state(_config())
        assert [m.content for m in state.values["messages"]] == ["NEWWORD", "re NEWWORD"]
        async for found in inner.alist(None):
            assert "OLDWORD" not in repr(found)


@pytest.mark.parametrize("kind", ["sqlite", "connection"])
async def test_a_plain_archive_does_not_block_the_event_loop(kind, pg_dsn):
    """It waits for something that the loop does meanwhile."""
    async with _async_saver(kind, pg_dsn) as saver:
        await saver.setup()  # type: ignore[attr-defined]
        await _graph(saver).ainvoke({"messages": [("user", "OLDWORD")]}, _config())
        loop, ticked = asyncio.get_running_loop(), threading.Event()
        heard: list[bool] = []

        def archive(thread_id: str, messages: list[Any]) -> None:
            loop.call_soon_threadsafe(ticked.set)
            heard.append(ticked.wait(10))

        result = await apurge_messages(saver, MONTH, clock=_later, on_before_trim=archive)
        assert (result.purged_thread_ids, heard) == (["t"], [True])


def test_a_plain_archive_that_gives_a_coroutine_is_refused_with_the_way_out(backend):
    async def archive(thread_id: str, messages: list[Any]) -> None: ...

    _say(_graph(backend.saver), "OLDWORD")
    result = purge_messages(
        backend.saver, MONTH, clock=_later, on_before_trim=lambda *args: archive(*args)
    )
    assert "await apurge_messages" in result.errors["t"]
    assert backend.holds("OLDWORD")


async def test_a_synchronous_saver_is_purged_from_the_event_loop_too(backend):
    await asyncio.to_thread(_say, _graph(backend.saver), "OLDWORD")
    result = await apurge_messages(backend.saver, MONTH, clock=_later)
    assert result.purged_thread_ids == ["t"]
    assert backend.holds("OLDWORD") == []


def test_a_pool_of_one_connection(pg_dsn):
    options: Any = {"autocommit": True, "prepare_threshold": 0}
    with ConnectionPool(pg_dsn, min_size=1, max_size=1, kwargs=options) as pool:
        saver = PostgresSaver(pool)  # type: ignore[arg-type]
        graph = _graph(saver)
        _say(graph, "OLDWORD")

        def archive(thread_id: str, messages: list[Any]) -> None:
            assert _texts(graph) == ["OLDWORD", "re OLDWORD"]  # needs the one connection

        purge_messages(saver, MONTH, clock=_later, on_before_trim=archive)
        assert _texts(graph) == []


def test_other_threads_and_young_ones_are_not_touched(backend, clock):
    """Whatever their ids look like, and page after page."""
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=999), clock=clock)
    graph = _graph(saver)
    old = ["a", "A", "a ", "a%", "a_", "b", "c:d"]
    for thread_id in old:
        _say(graph, f"OLDWORD {thread_id}", thread_id)
    clock.pass_days(40)
    young = ["aa", "B", "z", "a:"]
    for thread_id in young:
        _say(graph, "young", thread_id)
    rows = set(map(repr, backend.rows()))

    result = purge_messages(saver, MONTH, batch_size=2)

    assert sorted(result.purged_thread_ids) == sorted(old)
    assert result.thread_count == len(old) + len(young)
    assert backend.holds("OLDWORD") == []
    assert all(_texts(graph, thread_id) == ["young", "re young"] for thread_id in young)
    after = set(map(repr, backend.rows()))
    assert [row for row in rows - after if "young" in row] == []


def test_a_hook_that_fails_keeps_its_thread_and_no_other(backend):
    graph = _graph(backend.saver)
    _say(graph, "OLDWORD", "one")
    _say(graph, "OLDWORD", "two")
    before = len(backend.holds("OLDWORD"))

    def archive(thread_id: str, messages: list[Any]) -> None:
        if thread_id == "one":
            raise OSError("the archive is away")

    result = purge_messages(backend.saver, MONTH, clock=_later, on_before_trim=archive)

    assert result.purged_thread_ids == ["two"]
    assert "the archive is away" in result.errors["one"]
    assert len(backend.holds("OLDWORD")) == before / 2
    assert _texts(graph, "one") == ["OLDWORD", "re OLDWORD"]


def test_a_save_between_reading_and_writing_is_seen(backend, clock):
    """The thread is read again; what was saved meanwhile is there, the old text is not."""
    graph = _graph(RetainedCheckpointer(backend.saver, max_age=timedelta(days=99), clock=clock))
    _say(graph, "OLDWORD")
    clock.pass_days(40)
    heard: list[list[str]] = []

    def archive(thread_id: str, messages: list[Any]) -> None:
        if not heard:
            _say(graph, "MEANWHILE")
        heard.append([message.content for message in messages])

    result = purge_messages(graph.checkpointer, MONTH, on_before_trim=archive)

    assert heard == [["OLDWORD", "re OLDWORD"]]  # handed over once, though it took two attempts
    assert result.purged_thread_ids == ["t"]
    assert _texts(graph) == ["MEANWHILE", "re MEANWHILE"]
    assert backend.holds("OLDWORD") == []


@pytest.mark.parametrize("make_backend", PLAIN, indirect=True)
def test_a_thread_that_is_saved_to_all_the_time_is_reported(backend, clock, monkeypatch):
    graph = _graph(RetainedCheckpointer(backend.saver, max_age=timedelta(days=99), clock=clock))
    _say(graph, "OLDWORD")
    clock.pass_days(40)
    storage = detect_strategy(backend.saver).message_storage()
    read = type(storage).read

    def reading(self: Any, thread_id: str) -> Any:
        image = read(self, thread_id)
        _say(graph, "MEANWHILE")
        return image

    monkeypatch.setattr(type(storage), "read", reading)
    result = purge_messages(graph.checkpointer, MONTH)

    assert result.purged_thread_ids == []
    assert "saved to" in result.kept["t"]
    assert _texts(graph)[0] == "OLDWORD"


def test_a_run_that_had_loaded_the_old_text_brings_it_back_until_the_next_purge(backend):
    """Said in the documentation: not for good."""
    builder = StateGraph(MessagesState)

    def slow(state: MessagesState) -> Any:
        if state["messages"][-1].content == "second":
            purge_messages(backend.saver, MONTH, clock=_later)
        return {"messages": [AIMessage("done")]}

    graph: Any = builder.add_node("slow", slow).add_edge(START, "slow")
    graph = graph.compile(checkpointer=backend.saver)
    _say(graph, "OLDWORD")
    _say(graph, "second")
    assert _texts(graph) == ["OLDWORD", "done", "second", "done"]
    purge_messages(backend.saver, MONTH, clock=_later)
    assert backend.holds("OLDWORD") == []
    assert _texts(graph) == []


def test_purges_beside_running_saves_tear_nothing(make_backend, clock):
    """Turns and purges at once: every young turn is whole, the old one is gone in the end."""
    backend = make_backend()
    graph = _graph(RetainedCheckpointer(backend.saver, max_age=timedelta(days=99), clock=clock))
    threads = [f"thread {n}" for n in range(3)]
    for thread_id in threads:
        _say(graph, "OLDWORD", thread_id)
    clock.pass_days(40)
    failures: list[BaseException] = []

    def talk(thread_id: str) -> None:
        try:
            for n in range(8):
                _say(graph, f"turn {n}", thread_id)
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failures.append(error)

    talkers = [threading.Thread(target=talk, args=(thread_id,)) for thread_id in threads]
    for talker in talkers:
        talker.start()
    results = []
    while any(talker.is_alive() for talker in talkers):
        results.append(purge_messages(graph.checkpointer, MONTH))
    for talker in talkers:
        talker.join()
    final = purge_messages(graph.checkpointer, MONTH)

    assert failures == []
    assert [result.errors for result in (*results, final) if result.errors] == []
    assert backend.holds("OLDWORD") == []
    expected = [text for n in range(8) for text in (f"turn {n}", f"re turn {n}")]
    for thread_id in threads:
        assert _texts(graph, thread_id) == expected


def test_history_and_time_travel_work_after_a_purge(backend, clock):
    graph = _graph(RetainedCheckpointer(backend.saver, max_age=timedelta(days=99), clock=clock))
    _say(graph, "OLDWORD")
    clock.pass_days(40)
    _say(graph, "NEWWORD")
    before = {
        s.config["configurable"]["checkpoint_id"]: (s.next, len(s.tasks))
        for s in graph.get_state_history(_config())
    }
    purge_messages(graph.checkpointer, MONTH)
    history = list(graph.get_state_history(_config()))
    assert len(history) == len(before)
    waiting = next(s for s in history if s.next == ("answer",))
    assert [m.content for m in waiting.values["messages"]] == ["NEWWORD"]
    replayed = graph.invoke(None, waiting.config)["messages"]
    assert [m.content for m in replayed] == ["NEWWORD", "re NEWWORD"]


def test_an_interrupt_keeps_only_the_exchange_it_waits_in(backend, clock):
    def ask(state: MessagesState) -> Any:
        if state["messages"][-1].content == "OLDWORD":
            return {"messages": [AIMessage("re OLDWORD")]}
        return {"messages": [AIMessage(f"so {interrupt('PAUSED?')}")]}

    builder: Any = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=999), clock=clock)
    graph = builder.compile(checkpointer=saver)
    _say(graph, "OLDWORD")
    _say(graph, "PAUSED")
    clock.pass_days(100)
    result = purge_messages(saver, MONTH)
    assert (result.purged_thread_ids, list(result.kept)) == (["t"], ["t"])
    assert backend.holds("OLDWORD") == []
    assert [i.value for i in graph.get_state(_config()).interrupts] == ["PAUSED?"]
    graph.invoke(Command(resume="ANSWERED"), _config())
    assert _texts(graph) == ["PAUSED", "so ANSWERED"]
    assert "goes on" in purge_messages(saver, MONTH).kept["t"]
    assert _texts(graph) == ["PAUSED", "so ANSWERED"]  # the answer is of today
    clock.pass_days(31)
    purge_messages(saver, MONTH)
    assert [backend.holds(word) for word in ("PAUSED", "ANSWERED")] == [[], []]


def test_unknown_ages_are_kept_and_reported(backend):
    """Neither a stamp nor a time in any checkpoint: nothing is guessed."""
    message = HumanMessage("AGELESS", response_metadata={"checkpointed_at": "long ago"})
    checkpoint: Any = {
        "v": 4,
        "ts": "once",
        "id": "not-a-time",
        "channel_values": {"messages": [message]},
        "channel_versions": {"messages": "1"},
        "versions_seen": {},
    }
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    backend.saver.put(config, checkpoint, {"source": "update"}, {"messages": "1"})
    result = purge_messages(backend.saver, MONTH, clock=_later)
    assert result.purged_thread_ids == []
    assert "how old" in result.kept["t"]
    checkpoint |= {"id": "not-a-time-2", "ts": "2020-01-01T00:00:00+00:00"}
    backend.saver.put(config, checkpoint, {"source": "update"}, {"messages": "1"})
    assert purge_messages(backend.saver, MONTH, clock=_later).purged_thread_ids == ["t"]
    assert backend.holds("AGELESS") == []


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]  # which gives no ids


def _log(saver: Any) -> Any:
    builder: Any = StateGraph(Log).add_node("node", lambda state: {}).add_edge(START, "node")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("make_backend", PLAIN, indirect=True)
def test_of_two_messages_that_say_the_same_nobody_knows_the_age(backend):
    """Without ids and stamps: which of the two an older checkpoint holds cannot be told."""
    graph = _log(backend.saver)
    graph.invoke({"log": [HumanMessage("ok"), AIMessage("one")]}, _config("twice"))
    graph.invoke({"log": [HumanMessage("ok"), AIMessage("two")]}, _config("twice"))
    graph.invoke({"log": [HumanMessage("fine"), AIMessage("one")]}, _config("once"))
    result = purge_messages(backend.saver, MONTH, clock=_later)
    assert result.purged_thread_ids == ["once"]
    assert "how old" in result.kept["twice"]
    assert len(graph.get_state(_config("twice")).values["log"]) == 4


def test_the_same_words_said_again_later_are_as_young_as_their_own_stamp(backend, clock):
    graph = _log(RetainedCheckpointer(backend.saver, max_age=MONTH, clock=clock))
    for days in (40, 25):  # the second save trims the first, so no checkpoint holds both
        graph.invoke({"log": [HumanMessage("ok")]}, _config())
        clock.pass_days(days)
    purge_messages(graph.checkpointer, MONTH)
    (left,) = graph.get_state(_config()).values["log"]
    assert left.content == "ok"


class Last(TypedDict):
    log: Annotated[list[Any], lambda old, new: (old + new)[-1:]]


def test_a_stamp_counts_before_what_an_older_checkpoint_tells_of_the_same_words(backend, clock):
    """Said once without a stamp, and again with one: two messages, although no id says so."""
    builder: Any = StateGraph(Last).add_node("node", lambda state: {}).add_edge(START, "node")
    builder.compile(checkpointer=backend.saver).invoke({"log": [HumanMessage("ok")]}, _config())
    clock.now = time.time()
    clock.pass_days(100)
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=999), clock=clock)
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"log": [HumanMessage("ok")]}, _config())
    result = purge_messages(saver, MONTH)
    assert result.message_count == 1
    assert len(graph.get_state(_config()).values["log"]) == 1


def test_a_subgraph_called_in_an_old_exchange_goes_with_it_however_late_it_was_called(
    backend, clock
):
    """The question waited for weeks, then a subgraph worked on it: all that is one exchange.

    It stays whole while the answer is young.
    """
    saver = RetainedCheckpointer(backend.saver, max_age=timedelta(days=999), clock=clock)
    child = _graph(None)

    def work(state: MessagesState) -> Any:
        told = child.invoke({"messages": [HumanMessage(f"INNER {interrupt('?')}")]})
        return {"messages": [AIMessage(told["messages"][-1].content)]}

    builder: Any = StateGraph(MessagesState).add_node("work", work).add_edge(START, "work")
    graph = builder.compile(checkpointer=saver)
    _say(graph, "question")
    clock.pass_days(40)
    graph.invoke(Command(resume="answer"), _config())
    assert _texts(graph) == ["question", "re INNER answer"]
    assert backend.holds("INNER")
    assert purge_messages(saver, MONTH).row_count == 0
    clock.pass_days(31)
    purge_messages(saver, MONTH)
    assert _texts(graph) == []
    assert backend.holds("INNER") == []


class _Reverse:
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reverse", plaintext[::-1]

    def decrypt(self, name: str, ciphertext: bytes) -> bytes:
        if name != "reverse":
            raise ValueError("wrong key")
        return ciphertext[::-1]


def test_values_that_cannot_be_read_are_reported_and_left(make_backend):
    backend = make_backend(EncryptedSerializer(_Reverse()))
    graph = _graph(backend.saver)
    _say(graph, "OLDWORD")
    backend.saver.serde = InMemorySaver().serde  # which has no key
    rows = sorted(map(repr, backend.rows()))
    result = purge_messages(backend.saver, MONTH, clock=_later)
    assert result.purged_thread_ids == []
    assert result.errors.keys() | result.untrimmed.keys() == {"t"}
    assert sorted(map(repr, backend.rows())) == rows


def test_what_old_versions_of_langgraph_stored_is_searched_too(backend):
    """Metadata once recorded every write, and checkpoints their pending sends."""
    graph = _graph(backend.saver)
    _say(graph, "OLDWORD")
    said = {"answer": {"messages": [{"type": "ai", "content": "OLDWORD"}]}}
    if backend.name == "sqlite":
        backend.saver.conn.execute(
            "UPDATE checkpoints SET metadata = ?",
            (json.dumps({"source": "loop", "writes": said}).encode(),),
        )
        backend.saver.conn.commit()
    elif backend.name == "postgres":
        backend.saver.conn.execute(
            "UPDATE checkpoints SET metadata = metadata || jsonb_build_object('writes', %s::jsonb)",
            (psycopg.types.json.Jsonb(said),),
        )
    elif backend.name == "memory":  # a tenant saver never stored them
        for rows in backend.saver.storage["t"].values():
            for key, (checkpoint, metadata, parent) in rows.items():
                fields = backend.saver.serde.loads_typed(metadata) | {"writes": said}
                rows[key] = (checkpoint, backend.saver.serde.dumps_typed(fields), parent)
    if backend.name != "postgres":  # which kept pending sends in its table of writes
        state = backend.saver.get_tuple(_config())
        sends = [Send("answer", {"messages": [HumanMessage("OLDWORD", id="x")]})]
        config = {"configurable": {"checkpoint_ns": "", **state.config["configurable"]}}
        old: Any = {**state.checkpoint, "v": 1, "pending_sends": sends}
        backend.saver.put(config, old, {"source": "loop"}, {})
    purge_messages(backend.saver, MONTH, clock=_later)
    assert backend.holds("OLDWORD") == []
    assert _texts(graph) == []


@pytest.mark.parametrize("older_than", [timedelta(0), timedelta(-1), 0, float("nan"), -3.0])
def test_ages_that_are_no_ages_are_refused_and_nothing_is_touched(backend, older_than):
    graph = _graph(backend.saver)
    _say(graph, "OLDWORD")
    with pytest.raises(ValueError, match="older_than"):
        purge_messages(backend.saver, older_than, clock=_later)
    assert _texts(graph) == ["OLDWORD", "re OLDWORD"]


def test_other_wrong_arguments_are_refused(tmp_path):
    saver = InMemorySaver()
    for wrong in (
        {"older_than": "30d"},
        {"batch_size": 1.5},
        {"channels": "messages"},
        {"clock": 5},
        {"on_before_trim": "archive"},
    ):
        arguments: Any = {"older_than": MONTH} | wrong
        with pytest.raises(TypeError):
            purge_messages(saver, **arguments)
    with pytest.raises(ValueError, match="batch_size"):
        purge_messages(saver, MONTH, batch_size=0)
    with pytest.raises(TypeError, match="with"):
        purge_messages(SqliteSaver.from_conn_string(str(tmp_path / "x.db")), MONTH)  # type: ignore[arg-type]

    async def archive(thread_id: str, messages: list[Any]) -> None: ...

    with pytest.raises(AsyncRequiredError, match="on_before_trim"):
        purge_messages(saver, MONTH, on_before_trim=archive)

    class Foreign(BaseCheckpointSaver[Any]):
        pass

    with pytest.raises(UnsupportedCheckpointerError, match="Foreign"):
        purge_messages(Foreign(), MONTH)


def test_tables_that_the_javascript_saver_made_are_purged(pg_dsn):
    """They have no column for the path of a task."""
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        saver.setup()
        graph = _graph(saver)
        _say(graph, "OLDWORD")
        saver.conn.execute("ALTER TABLE checkpoint_writes DROP COLUMN task_path")
        tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")

        def holding() -> list[str]:
            found = {table: saver.conn.execute(f"SELECT * FROM {table}") for table in tables}
            return [table for table, rows in found.items() if "OLDWORD" in str(rows.fetchall())]

        assert holding() == [*tables[1:]]
        assert purge_messages(saver, MONTH).errors == {}
        result = purge_messages(saver, MONTH, clock=_later)
        assert (result.purged_thread_ids, result.errors, holding()) == (["t"], {}, [])
        saver.conn.execute("ALTER TABLE checkpoint_writes ADD task_path TEXT NOT NULL DEFAULT ''")
        assert purge_messages(saver, MONTH, clock=_later).errors == {}
        _say(graph, "NEXT")  # the tables are as the saver wants them again


def test_a_connection_inside_a_transaction_is_refused(pg_dsn):
    with psycopg.connect(pg_dsn, row_factory=psycopg.rows.dict_row) as conn:
        saver = PostgresSaver(conn)
        conn.execute("SELECT 1")
        with pytest.raises(StorageUnusableError, match="autocommit"):
            purge_messages(saver, MONTH)
    with contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False)) as lite:
        saver_lite = SqliteSaver(lite)
        _say(_graph(saver_lite), "OLDWORD")
        lite.execute("BEGIN")
        with pytest.raises(StorageUnusableError, match="transaction"):
            purge_messages(saver_lite, MONTH, clock=_later)


def test_a_saver_with_a_purge_of_its_own_is_asked(clock):
    """With everything that was asked for and is not the default, of the wrapper too."""

    class Own(InMemorySaver):
        def purge_messages(self, older_than: Any, **options: Any) -> Any:
            return older_than, options

    assert purge_messages(Own(), MONTH) == (MONTH, {})
    wrapped = RetainedCheckpointer(Own(), max_age=MONTH, clock=clock, channels=["talk"])
    asked = {"dry_run": True, "clock": clock, "channels": {"talk"}}
    assert purge_messages(wrapped, MONTH, dry_run=True) == (MONTH, asked)
    assert purge_messages(Own(), MONTH, batch_size=7) == (MONTH, {"batch_size": 7})


def test_a_database_that_was_never_set_up_has_nothing_to_purge(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "new.db")) as saver:
        assert purge_messages(saver, MONTH).thread_count == 0
