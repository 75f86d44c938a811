"""Messages in the tenant savers: stamped always, trimmed at saves, and purged from storage."""

from __future__ import annotations

import asyncio
import copy
import itertools
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError, TenantRequiredError
from langgraph_ephemeral_checkpointer.retention import (
    PurgeResult,
    RetainedCheckpointer,
    apurge_messages,
    purge_messages,
)
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy.names import Names
from tests.support.tenant_graphs import HAS_DELTA, META, at, checkpoint, config

KEY = "checkpointed_at"
DAY = 86_400.0
MONTH = timedelta(days=30)
CONFIG = config("t")
SUFFIXES = ("", "_blobs", "_writes")


class Clock:
    """Seconds since the epoch, as the test says; begins in 2024."""

    def __init__(self) -> None:
        self.now = 1_704_067_200.0

    def __call__(self) -> float:
        return self.now

    def pass_days(self, days: float) -> None:
        self.now += days * DAY

    def stamp(self) -> str:
        return datetime.fromtimestamp(self.now, UTC).isoformat(timespec="microseconds")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def holds(superuser: Any, schema: str) -> Any:
    """Gives the rows, of any tenant and table, in whose bytes a text stands."""

    def holds(text: str, table: str = "agent_threads") -> list[Any]:
        return [
            row
            for suffix in SUFFIXES
            for row in superuser.execute(f'SELECT t.* FROM {schema}."{table}{suffix}" t')
            if any(
                text.encode() in (value if isinstance(value, bytes) else repr(value).encode())
                for value in row
            )
        ]

    return holds


def answer(state: MessagesState) -> Any:
    return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}


def chat(saver: Any, *nodes: Any) -> Any:
    builder = StateGraph(MessagesState)
    names = [START]
    for node in nodes or (answer,):
        builder.add_node(node.__name__, node)
        names.append(node.__name__)
    for before, after in itertools.pairwise(names):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver)


def say(graph: Any, text: str, thread: Any = CONFIG) -> Any:
    # Saved before the next step moves the clock.
    return graph.invoke({"messages": [("user", text)]}, thread, durability="sync")


def messages(graph: Any, thread: Any = CONFIG) -> list[Any]:
    return list(graph.get_state(thread).values.get("messages", []))


def texts(graph: Any, thread: Any = CONFIG) -> list[str]:
    return [message.content for message in messages(graph, thread)]


# Stamps ----------------------------------------------------------------------------------


def test_every_message_is_stamped_at_its_first_save_and_keeps_that_stamp(
    make_saver: Any, clock: Clock
) -> None:
    """A run of 100 days ago with many supersteps, loaded by another process and continued."""
    kept: list[Any] = []

    def step(state: MessagesState) -> Any:
        clock.pass_days(1 / 24)
        kept.append(AIMessage(f"step {len(kept)}"))
        return {"messages": [kept[-1]]}

    def step2(state: MessagesState) -> Any:
        return step(state)

    question = HumanMessage("q", response_metadata={"mine": 1})
    begun = clock.stamp()
    with make_saver(clock=clock) as saver:
        graph = chat(saver, step, step2)
        graph.invoke({"messages": [question]}, CONFIG, durability="sync")
        first = {message.id: message.response_metadata[KEY] for message in messages(graph)}
    assert next(iter(first.values())) == begun
    assert len(set(first.values())) == 3
    clock.pass_days(100)
    with make_saver(clock=clock) as saver:
        graph = chat(saver, step, step2)
        graph.invoke({"messages": [("user", "again")]}, CONFIG, durability="sync")
        now = {message.id: message.response_metadata[KEY] for message in messages(graph)}
    assert {ident: now[ident] for ident in first} == first
    assert min(now[ident] for ident in now.keys() - first.keys()) > max(first.values())
    # The graph's own objects, and the caller's, are as they were.
    assert question.response_metadata == {"mine": 1}
    assert all(message.response_metadata == {} for message in kept)


def test_a_save_leaves_the_objects_that_it_was_given_alone(make_saver: Any, clock: Clock) -> None:
    with make_saver(clock=clock, message_retention=MONTH) as saver:
        long_ago = {KEY: "2020-01-01"}
        old = HumanMessage("old", id="1", response_metadata=long_ago)
        reply = AIMessage("re", id="2", response_metadata=long_ago)
        made = checkpoint(1, {"messages": [old, reply, HumanMessage("new", id="3")]})
        before = copy.deepcopy(made)
        written = [("messages", [HumanMessage("w", id="4")])]
        saved = saver.put(at("t"), made, META, made["channel_versions"])
        saver.put_writes(saved, written, "task")
        assert made == before
        assert written == [("messages", [HumanMessage("w", id="4")])]
        loaded = saver.get_tuple(saved)
        assert [m.id for m in loaded.checkpoint["channel_values"]["messages"]] == ["3"]
        ((_, _, stored),) = loaded.pending_writes
        assert stored[0].response_metadata[KEY] == clock.stamp()


def test_tenants_keep_stamps_apart_where_thread_and_message_ids_are_the_same(
    make_saver: Any, clock: Clock
) -> None:
    with make_saver(clock=clock) as saver:
        graph = chat(saver)
        seen = {}
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                graph.invoke({"messages": [HumanMessage("q", id="same")]}, CONFIG)
                seen[tenant] = messages(graph)[0].response_metadata[KEY]
            clock.pass_days(1)
        assert seen["a"] < seen["b"]


def test_a_deleted_thread_leaves_no_stamp_for_the_next_one_of_its_id(
    make_saver: Any, clock: Clock
) -> None:
    with make_saver(clock=clock) as saver:
        graph = chat(saver)
        for _ in range(2):
            graph.invoke({"messages": [HumanMessage("q", id="same")]}, CONFIG, durability="sync")
            assert messages(graph)[0].response_metadata[KEY] == clock.stamp()
            saver.delete_thread("t")
            clock.pass_days(1)


# Trimming at saves -----------------------------------------------------------------------


def test_retention_that_is_switched_on_later_goes_by_the_stamps_of_before(
    make_saver: Any, clock: Clock
) -> None:
    with make_saver(clock=clock) as saver:
        for turn in range(3):
            say(chat(saver), f"turn {turn}")
            clock.pass_days(20)
        assert len(messages(chat(saver))) == 6
    with make_saver(clock=clock, message_retention=MONTH, keep_checkpoints=2) as saver:
        graph = chat(saver)
        say(graph, "turn 3")
        assert texts(graph) == ["turn 2", "re turn 2", "turn 3", "re turn 3"]
        clock.pass_days(10_000)
        say(graph, "turn 4")
        assert texts(graph) == ["turn 4", "re turn 4"]


def test_a_cut_off_between_a_tool_call_and_its_result_leaves_neither_alone(
    make_saver: Any, clock: Clock
) -> None:
    """Two parallel calls, answered days apart: whole exchanges go or stay."""

    def call(state: MessagesState) -> Any:
        calls = [{"name": "t", "args": {}, "id": f"{len(state['messages'])}{n}"} for n in "ab"]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    def results(state: MessagesState) -> Any:
        clock.pass_days(3)
        calls = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage("done", tool_call_id=one["id"]) for one in calls]}

    with make_saver(clock=clock, message_retention=timedelta(days=8)) as saver:
        graph = chat(saver, call, results, answer)
        for turn in range(9):
            say(graph, f"turn {turn}")
            calls = [c["id"] for m in messages(graph) for c in getattr(m, "tool_calls", ())]
            answered = [m.tool_call_id for m in messages(graph) if m.type == "tool"]
            assert calls == answered
            assert messages(graph)[0].type == "human"
            clock.pass_days(1)
        # The last result of turn 6 is five days old.
        turns = [text for text in texts(graph) if text.startswith("turn")]
        assert turns == ["turn 6", "turn 7", "turn 8"]


def test_a_turn_paused_past_the_limit_is_whole_when_it_is_answered(
    make_saver: Any, clock: Clock
) -> None:
    """Question, tool call and the fresh answer, in another process than the one that asked."""

    def call(state: MessagesState) -> Any:
        return {"messages": [AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": "c"}])]}

    def ask(state: MessagesState) -> Any:
        return {"messages": [ToolMessage(interrupt("?"), tool_call_id="c"), HumanMessage("note")]}

    options: Any = {"clock": clock, "message_retention": MONTH}
    with make_saver(**options) as saver:
        say(chat(saver, call, ask, answer), "q")
    clock.pass_days(100)
    with make_saver(**options) as saver:
        result = saver.purge_messages(MONTH)
        assert (result.purged_thread_ids, list(result.kept)) == ([], ["t"])
        graph = chat(saver, call, ask, answer)
        graph.invoke(Command(resume="yes"), CONFIG)
        assert texts(graph) == ["q", "", "yes", "note", "re note"]


def test_stamps_of_every_form_are_read_and_garbage_means_unknown(
    make_saver: Any, clock: Clock
) -> None:
    """A zone, Z, naive, date only; what cannot be read keeps its own exchange and no other."""
    stamps = {
        "zone": "2023-11-01T01:00:00+05:30",
        "zulu": "2023-11-01T00:00:00Z",
        "naive": "2023-11-01T00:00:00",
        "date": "2023-11-01",
        "garbage": "a while ago",
        "young": "2023-12-30",
    }
    given = [
        message
        for name, stamp in {"unstamped": None, **stamps}.items()
        for message in (
            HumanMessage(name, response_metadata={KEY: stamp or "?"}),
            AIMessage(f"re {name}", response_metadata={KEY: stamp or "?"}),
        )
    ]
    with make_saver(clock=clock, message_retention=MONTH) as saver:
        graph = chat(saver)
        graph.invoke({"messages": [SystemMessage("rules"), *given]}, CONFIG)
        humans = [m.content for m in messages(graph) if m.type == "human"]
        assert humans == ["unstamped", "garbage", "young"]
        assert texts(graph)[0] == "rules"
        # In storage the oldest checkpoint that holds a message tells how old it is at least.
        saver.purge_messages(MONTH, clock=lambda: time.time() + 40 * DAY)
        assert texts(graph) == ["rules"]


def test_only_the_channels_that_are_named_are_touched(make_saver: Any, clock: Clock) -> None:
    class State(TypedDict):
        mine: list[Any]
        other: list[Any]
        mixed: list[Any]

    old = [
        HumanMessage("old", id="1", response_metadata={KEY: "2020-01-01"}),
        HumanMessage("new", id="2"),
    ]
    with make_saver(clock=clock, message_retention=MONTH, message_channels=["mine"]) as saver:
        graph: Any = StateGraph(State).add_node("n", lambda state: {}).add_edge(START, "n")
        graph = graph.compile(checkpointer=saver)
        graph.invoke({"mine": old, "other": old, "mixed": [*old, "text"]}, CONFIG)
        values = graph.get_state(CONFIG).values
        assert [m.id for m in values["mine"]] == ["2"]
        assert values["other"] == old
        assert values["mixed"] == [*old, "text"]
        clock.pass_days(100)
        saver.purge_messages(MONTH)
        values = graph.get_state(CONFIG).values
        assert (values["mine"], values["other"]) == ([], old)


# Purging ---------------------------------------------------------------------------------


def test_a_purge_of_the_tenant_in_scope_leaves_no_byte_and_no_other_tenant_alone(
    make_saver: Any, clock: Clock, holds: Any, superuser: Any, schema: str
) -> None:
    """Removed messages, inputs, writes and older checkpoints, in idle threads, page after page."""

    def tidy(state: MessagesState) -> Any:
        return {"messages": [RemoveMessage(id=state["messages"][-1].id)]}

    def rows(tenant: str) -> list[str]:
        return [
            repr(row)
            for suffix in SUFFIXES
            for row in superuser.execute(
                f"SELECT t.* FROM {schema}.agent_threads{suffix} t WHERE tenant = %s ORDER BY t",
                [tenant],
            )
        ]

    with make_saver(clock=clock, tenant=None) as saver:
        graph = chat(saver, answer, tidy)
        for tenant in ("a", "b"):
            with saver.tenant_scope(tenant):
                for n in range(5):
                    say(graph, f"OLDWORD-{tenant}", config(f"t{n}"))
        clock.pass_days(40)
        with saver.tenant_scope("a"):
            say(graph, "NEWWORD", config("t0"))
        other = rows("b")
        with pytest.raises(TenantRequiredError):
            saver.purge_messages(MONTH)
        with saver.tenant_scope("a"):
            dry = saver.purge_messages(MONTH, dry_run=True, batch_size=2)
            assert holds("OLDWORD-a")
            result = purge_messages(saver, MONTH, batch_size=2)  # asks the saver's own
            assert isinstance(result, PurgeResult)
            assert result.purged_thread_ids == [f"t{n}" for n in range(5)]
            assert (result.thread_count, result.message_count) == (5, 10)
            for name in ("purged_thread_ids", "message_count", "row_count", "thread_count"):
                assert getattr(dry, name) == getattr(result, name)
            assert texts(graph, config("t0")) == ["NEWWORD"]
            assert texts(graph, config("t1")) == []
            assert saver.purge_messages(MONTH).purged_thread_ids == []
            say(graph, "again", config("t1"))
            assert texts(graph, config("t1")) == ["again"]
        assert holds("OLDWORD-a") == []
        assert holds("NEWWORD")
        assert rows("b") == other


def test_only_the_messages_of_a_row_change(
    make_saver: Any, clock: Clock, superuser: Any, schema: str
) -> None:
    """Ids, versions, metadata and times of every checkpoint are as they were."""
    columns = "checkpoint_id, parent_id, source, step, run_id, channels, versions, held, made_at"
    facts = f"SELECT {columns}, born_at FROM {schema}.agent_threads ORDER BY checkpoint_id"
    with make_saver(clock=clock) as saver:
        graph = chat(saver)
        say(graph, "OLDWORD")
        clock.pass_days(40)
        say(graph, "NEWWORD")
        rows = superuser.execute(facts).fetchall()
        history = [(s.config, s.metadata) for s in graph.get_state_history(CONFIG)]
        saver.purge_messages(MONTH)
        assert superuser.execute(facts).fetchall() == rows
        assert [(s.config, s.metadata) for s in graph.get_state_history(CONFIG)] == history
        waiting = next(s for s in graph.get_state_history(CONFIG) if s.next == ("answer",))
        replayed = graph.invoke(None, waiting.config)["messages"]
        assert [m.content for m in replayed] == ["NEWWORD", "re NEWWORD"]


def test_a_hook_that_fails_loses_nothing(make_saver: Any, clock: Clock, holds: Any) -> None:
    with make_saver(clock=clock) as saver:
        graph = chat(saver)
        for thread in ("one", "two"):
            say(graph, f"OLDWORD {thread}", config(thread))
        clock.pass_days(40)
        before = len(holds("OLDWORD one"))

        def archive(thread_id: str, going: list[Any]) -> None:
            if thread_id == "one":
                raise OSError("the archive is away")
            assert [m.content for m in going] == ["OLDWORD two", "re OLDWORD two"]

        result = saver.purge_messages(MONTH, on_before_trim=archive)
        assert result.purged_thread_ids == ["two"]
        assert "the archive is away" in result.errors["one"]
        assert len(holds("OLDWORD one")) == before
        assert holds("OLDWORD two") == []


def test_a_purge_waits_for_the_lock_of_the_thread(
    make_saver: Any, clock: Clock, app_dsn: str, schema: str, holds: Any
) -> None:
    with make_saver(clock=clock) as saver:
        say(chat(saver), "OLDWORD")
        clock.pass_days(40)
        results: list[PurgeResult] = []
        with psycopg.connect(app_dsn) as other:
            key = Names(schema, "agent_threads").key("default", "t")
            other.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            purging = threading.Thread(target=lambda: results.append(saver.purge_messages(MONTH)))
            purging.start()
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not other.execute(waiting).fetchone()[0]:  # type: ignore[index]
                assert purging.is_alive()
            assert holds("OLDWORD")
            other.commit()
            purging.join()
        assert results[0].purged_thread_ids == ["t"]
        assert holds("OLDWORD") == []


def test_a_purge_gives_way_to_writes_that_hold_its_rows(
    make_saver: Any, clock: Clock, superuser: Any, schema: str, holds: Any
) -> None:
    """A task's writes take no thread lock; whoever waits for them gives up, and says so."""
    with make_saver(clock=clock) as saver:
        say(chat(saver), "OLDWORD")
        clock.pass_days(40)
        before = len(holds("OLDWORD"))
        with superuser.transaction():
            superuser.execute(f"SELECT FROM {schema}.agent_threads_writes FOR UPDATE")
            result = saver.purge_messages(MONTH)
            assert result.purged_thread_ids == []
            assert "saved to" in result.kept["t"]
        assert len(holds("OLDWORD")) == before
        assert saver.purge_messages(MONTH).purged_thread_ids == ["t"]
        assert holds("OLDWORD") == []


def test_a_save_or_a_write_meanwhile_is_never_lost(
    make_saver: Any, clock: Clock, holds: Any
) -> None:
    """Between reading and writing: a turn, a task's write, and then a deleted thread."""
    with make_saver(clock=clock) as saver, make_saver(clock=clock) as other:
        graph = chat(saver)
        for thread in ("turn", "write", "deleted"):
            say(graph, "OLDWORD", config(thread))
        clock.pass_days(40)
        heard = []

        def archive(thread_id: str, going: list[Any]) -> None:
            heard.append(thread_id)
            if thread_id == "turn":
                say(chat(other), "MEANWHILE", config("turn"))
            elif thread_id == "write":
                head = other.get_tuple(config("write")).config
                other.put_writes(head, [("messages", [AIMessage("LATE", id="late")])], "task")
                other.put_writes(head, [("__resume__", going)], "task")
            else:
                other.delete_thread("deleted")

        result = saver.purge_messages(MONTH, on_before_trim=archive)
        assert sorted(heard) == ["deleted", "turn", "write"]
        # What was written meanwhile belongs to the exchange, so that is not old any more.
        assert (result.errors, result.purged_thread_ids) == ({}, ["turn"])
        assert texts(graph, config("turn")) == ["MEANWHILE", "re MEANWHILE"]
        writes = [write[1:] for write in saver.get_tuple(config("write")).pending_writes]
        assert sorted((channel, len(value)) for channel, value in writes) == [
            ("__resume__", 2),
            ("messages", 1),
        ]
        assert saver.get_tuple(config("deleted")) is None


def test_a_write_that_takes_the_place_of_one_that_was_read_stays(
    make_saver: Any, clock: Clock, holds: Any
) -> None:
    """The same row, and as many of them: only its content tells that it is another."""
    with make_saver(clock=clock) as saver, make_saver(clock=clock) as other:
        graph = chat(saver)
        say(graph, "OLDWORD")
        clock.pass_days(40)
        say(graph, "NEWWORD")
        head = saver.get_tuple(CONFIG).config
        saver.put_writes(head, [("__resume__", [messages(graph)[0]])], "task")

        def archive(thread_id: str, going: list[Any]) -> None:
            other.put_writes(head, [("__resume__", ["FRESH"])], "task")

        assert saver.purge_messages(MONTH, on_before_trim=archive).purged_thread_ids == ["t"]
        assert holds("OLDWORD") == []
        assert [w[2] for w in saver.get_tuple(head).pending_writes] == [["FRESH"]]


def test_purges_beside_running_saves_tear_nothing(app_dsn: str, schema: str, clock: Clock) -> None:
    """Turns, writes and purges at once, on a pool, pruning: every young turn is whole."""
    with ConnectionPool(app_dsn, min_size=4, max_size=6, open=True) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, clock=clock, keep_checkpoints=3)
        graph = chat(saver)
        threads = [config(f"thread {n}") for n in range(3)]
        for thread in threads:
            say(graph, "OLDWORD", thread)
        clock.pass_days(40)
        failures: list[BaseException] = []

        def talk(thread: Any) -> None:
            try:
                for n in range(8):
                    say(graph, f"turn {n}", thread)
            except BaseException as error:  # noqa: BLE001 - told to the test's own thread
                failures.append(error)

        talkers = [threading.Thread(target=talk, args=(thread,)) for thread in threads]
        for talker in talkers:
            talker.start()
        results = []
        while any(talker.is_alive() for talker in talkers):
            results.append(saver.purge_messages(MONTH))
        for talker in talkers:
            talker.join()
        results.append(saver.purge_messages(MONTH))
        assert failures == []
        assert [result.errors for result in results if result.errors] == []
        expected = [text for n in range(8) for text in (f"turn {n}", f"re turn {n}")]
        for thread in threads:
            assert texts(graph, thread) == expected


def test_inside_a_transaction_of_the_callers_it_is_theirs_to_end(
    app_dsn: str, schema: str, clock: Clock, holds: Any
) -> None:
    with psycopg.connect(app_dsn) as conn:
        saver = TenantPostgresSaver(conn, schema=schema, clock=clock)
        say(chat(saver), "OLDWORD")
        conn.commit()
        clock.pass_days(40)
        conn.execute("SET LOCAL lock_timeout = '7s'")
        assert saver.purge_messages(MONTH).purged_thread_ids == ["t"]
        assert conn.execute("SHOW lock_timeout").fetchone() == ("7s",)
        assert conn.execute("SELECT current_setting('langgraph.tenant')").fetchone() == ("",)
        conn.rollback()
        assert holds("OLDWORD")
        assert saver.purge_messages(MONTH).purged_thread_ids == ["t"]
        assert holds("OLDWORD") == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"older_than": timedelta(0)}, ValueError),
        ({"older_than": timedelta(days=-1)}, ValueError),
        ({"older_than": 30}, TypeError),
        ({"older_than": None}, TypeError),
        ({"batch_size": 0}, ValueError),
        ({"batch_size": True}, TypeError),
        ({"channels": "messages"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused_before_any_sql(
    app_dsn: str, schema: str, superuser: Any, wrong: Any, error: Any
) -> None:
    with TenantPostgresSaver.from_conn_string(app_dsn, schema=schema) as saver:
        with pytest.raises(error):
            saver.purge_messages(**{"older_than": MONTH, **wrong})
        made = superuser.execute(
            "SELECT count(*) FROM pg_namespace WHERE nspname = %s", (schema,)
        ).fetchone()
        assert made == (0,)


def test_an_age_beyond_history_purges_nothing(make_saver: Any, clock: Clock) -> None:
    with make_saver(clock=clock, message_retention=timedelta.max) as saver:
        graph = chat(saver)
        say(graph, "q")
        assert saver.purge_messages(timedelta.max).purged_thread_ids == []
        assert texts(graph) == ["q", "re q"]


def test_wrong_options_are_refused(make_saver: Any) -> None:
    for options, error in (
        ({"message_retention": timedelta(0)}, ValueError),
        ({"message_retention": 30}, TypeError),
        ({"message_channels": "messages"}, TypeError),
    ):
        with pytest.raises(error), make_saver(**options):
            pass


def test_an_asynchronous_hook_is_refused_from_synchronous_code(
    make_saver: Any, clock: Clock, holds: Any
) -> None:
    async def archive(thread_id: str, going: list[Any]) -> None:
        raise AssertionError("never awaited")

    with make_saver(clock=clock) as saver:
        say(chat(saver), "OLDWORD")
        clock.pass_days(40)
        with pytest.raises(AsyncRequiredError):
            saver.purge_messages(MONTH, on_before_trim=archive)
        assert holds("OLDWORD")


# Asynchronous ----------------------------------------------------------------------------


async def test_the_asynchronous_class_stamps_trims_and_purges(
    make_async_saver: Any, clock: Clock, holds: Any
) -> None:
    heard: list[str] = []

    async def archive(thread_id: str, going: list[Any]) -> None:
        await asyncio.sleep(0)
        heard.extend(message.content for message in going)

    options: Any = {"clock": clock, "message_retention": timedelta(days=90), "tenant": None}
    async with make_async_saver(**options) as saver:
        graph = chat(saver)
        with saver.tenant_scope("acme"):
            for turn in range(4):
                await graph.ainvoke({"messages": [("user", f"turn-{turn}")]}, CONFIG)
                clock.pass_days(40)
            state = await graph.aget_state(CONFIG)
            assert [m.content for m in state.values["messages"]][::2] == [
                "turn-1",
                "turn-2",
                "turn-3",
            ]
            assert all(KEY in m.response_metadata for m in state.values["messages"])
            with pytest.raises(AsyncRequiredError, match="apurge_messages"):
                purge_messages(saver, MONTH)
            result = await saver.purge_messages(timedelta(days=60), on_before_trim=archive)
            assert result.purged_thread_ids == ["t"]
            assert sorted(set(heard)) == [
                *(f"re turn-{n}" for n in range(3)),
                *(f"turn-{n}" for n in range(3)),
            ]
            assert [len(holds(f"turn-{n}")) > 0 for n in range(4)] == [False, False, False, True]
            clock.pass_days(60)
            heard.clear()
            result = await apurge_messages(saver, MONTH, on_before_trim=archive)
            assert (result.purged_thread_ids, sorted(heard)) == (["t"], ["re turn-3", "turn-3"])


async def test_the_synchronous_class_is_purged_from_an_event_loop(
    make_saver: Any, clock: Clock, holds: Any
) -> None:
    """In a thread, in the tenant in scope; the hook runs on the loop."""
    loop, heard = asyncio.get_running_loop(), []

    async def archive(thread_id: str, going: list[Any]) -> None:
        assert asyncio.get_running_loop() is loop
        heard.append(thread_id)

    with make_saver(clock=clock, tenant=None) as saver:
        wrapped = RetainedCheckpointer(saver, max_age=timedelta(days=999), clock=clock)
        graph = chat(wrapped)
        with saver.tenant_scope("acme"):
            await asyncio.to_thread(say, graph, "OLDWORD")
            clock.pass_days(40)
            result = await apurge_messages(wrapped, MONTH, on_before_trim=archive)
        assert (result.purged_thread_ids, heard) == (["t"], ["t"])
        assert holds("OLDWORD") == []


async def test_a_cancelled_purge_leaves_no_thread_half_done(
    make_async_saver: Any, clock: Clock, holds: Any
) -> None:
    async with make_async_saver(clock=clock) as saver:
        graph = chat(saver)
        for n in range(4):
            await graph.ainvoke({"messages": [("user", f"OLDWORD{n}")]}, config(f"t{n}"))
        clock.pass_days(40)
        task: Any = None

        async def archive(thread_id: str, going: list[Any]) -> None:
            if thread_id == "t1":
                task.cancel()

        task = asyncio.create_task(saver.purge_messages(MONTH, on_before_trim=archive))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert holds("OLDWORD0") == []
        assert holds("OLDWORD3")
        await saver.purge_messages(MONTH)
        assert holds("OLDWORD") == []


# Delta channels --------------------------------------------------------------------------

if HAS_DELTA:
    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph.message import _messages_delta_reducer

    def delta_chat(saver: Any, every: int) -> Any:
        channel = DeltaChannel(_messages_delta_reducer, snapshot_frequency=every)
        # Made by a call: annotations are text in this module, and would be looked up globally.
        State = TypedDict("State", {"messages": Annotated[list[AnyMessage], channel]})  # noqa: UP013
        builder: Any = StateGraph(State).add_node("answer", lambda state: answer(state))
        return builder.add_edge(START, "answer").compile(checkpointer=saver)

    @pytest.mark.parametrize("keep", [None, 1])
    @pytest.mark.parametrize("every", [1, 3, 1000])
    def test_a_delta_channel_loses_the_old_exchanges_and_nothing_else(
        make_saver: Any, clock: Clock, holds: Any, every: int, keep: int | None
    ) -> None:
        with make_saver(clock=clock, keep_checkpoints=keep) as saver:
            graph = delta_chat(saver, every)
            for word in ("OLDWORD 1", "OLDWORD 2", "NEWWORD 3", "NEWWORD 4"):
                if word == "NEWWORD 3":
                    clock.pass_days(40)
                say(graph, word)
            before = messages(graph)
            assert [KEY in m.response_metadata for m in before] == [True] * 8
            result = saver.purge_messages(MONTH)
            assert (result.purged_thread_ids, result.untrimmed) == (["t"], {})
            assert messages(graph) == before[4:]
            assert holds("OLDWORD") == []
            say(graph, "NEWWORD 5")
            assert texts(graph)[::2] == ["NEWWORD 3", "NEWWORD 4", "NEWWORD 5"]

    def test_a_save_trims_the_snapshots_of_a_delta_channel(make_saver: Any, clock: Clock) -> None:
        with make_saver(clock=clock, message_retention=MONTH) as saver:
            graph = delta_chat(saver, 1)
            for turn in range(4):
                say(graph, f"turn {turn}")
                clock.pass_days(20)
            assert texts(graph)[::2] == ["turn 2", "turn 3"]


def test_an_unreadable_value_is_reported_and_the_rest_is_purged(
    make_saver: Any, clock: Clock, superuser: Any, schema: str, holds: Any
) -> None:
    with make_saver(clock=clock) as saver:
        graph = chat(saver)
        for thread in ("broken", "no pair", "sound"):
            say(graph, f"OLDWORD {thread}", config(thread))
        clock.pass_days(40)
        for thread, state in {"broken": b"\xc1", "no pair": b"\x07"}.items():
            superuser.execute(
                f"UPDATE {schema}.agent_threads SET state = %s WHERE thread_id = %s",
                (state, thread),
            )
        result = saver.purge_messages(MONTH)
        assert result.purged_thread_ids == ["sound"]
        assert "could not be opened" in result.errors["broken"]
        assert "no pair" in result.errors["no pair"]
        assert holds("OLDWORD sound") == []
        assert holds("OLDWORD broken")
