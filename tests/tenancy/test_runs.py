"""A run belongs, in every row and every read, to the scope that was open when it started.

Streams of several tenants, under the same thread ids, are read on in turn while scopes open and
close at random. What is stored then is what each tenant's runs store by themselves.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import operator
import pickle
import random
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from langgraph_ephemeral_checkpointer.messages.stamps import stamp_of
from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer
from langgraph_ephemeral_checkpointer.tenancy import runs
from tests.support.tenant_graphs import HAS_DELTA, at, delta_graph

TENANTS = ("acme", "globex", None)
NOBODY = "nobody"
"""Whose the runs are that start in no scope."""

THREADS = ("t", 7)  # LangGraph treats ids that are no strings differently
DURABILITIES = ("sync", "async", "exit")
SEEDS = range(6)


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    whose: str
    asks: bool


def _step(name: str) -> Any:
    return lambda state: {"log": [f"{state['whose']}:{name}"]}


def _ask(state: State) -> Any:
    answer = interrupt(f"{state['whose']} asks") if state.get("asks") else ""
    return {"log": [f"{state['whose']}:ask{answer}"]}


def _chain(*nodes: tuple[str, Any], **compiled: Any) -> Any:
    graph = StateGraph(State)
    before = START
    for name, node in nodes:
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph.compile(**compiled)


def family(saver: Any) -> Any:
    """Subgraphs per call and persistent, nested, beside a fan-out, and one with its own thread."""
    alone = _chain(("one", _step("one")), ("two", _step("two")), checkpointer=saver)
    deepest = _chain(("deep", _step("deep")), ("deeper", _step("deeper")))
    call = _chain(("first", _step("first")), ("nested", _only_new(deepest)), ("ask", _ask))
    keep = _chain(("note", _step("note")), ("more", _step("more")), checkpointer=True)

    def own(state: State, config: Any) -> Any:
        thread = f"{config['configurable']['thread_id']}-own"
        said = {"whose": state["whose"], "log": [f"{state['whose']}:own"]}
        alone.invoke(said, {"configurable": {"thread_id": thread}})
        return {"messages": [AIMessage(f"{state['whose']} answers")]}

    async def aown(state: State, config: Any) -> Any:
        thread = f"{config['configurable']['thread_id']}-own"
        said = {"whose": state["whose"], "log": [f"{state['whose']}:own"]}
        await alone.ainvoke(said, {"configurable": {"thread_id": thread}})
        return {"messages": [AIMessage(f"{state['whose']} answers")]}

    graph = StateGraph(State)
    graph.add_node("a", _step("a"))
    graph.add_node("b", _step("b"))
    graph.add_node("own", RunnableLambda(own, afunc=aown))
    graph.add_node("sent", _step("sent"))
    graph.add_node("call", _only_new(call))
    graph.add_node("keep", _only_new(keep))
    for name in ("a", "b"):
        graph.add_edge(START, name)
    graph.add_edge(["a", "b"], "own")
    graph.add_conditional_edges(
        "own",
        lambda state: [Send("sent", {"whose": state["whose"]}) for _ in "xy"],
        ["sent"],
    )
    graph.add_edge("sent", "call")
    graph.add_edge("sent", "keep")
    graph.add_edge("call", END)
    graph.add_edge("keep", END)
    return graph.compile(checkpointer=saver)


def _only_new(graph: Any) -> Any:
    """A node that hands the graph a line of its own and gives back what the graph adds."""

    def taken(state: State, answer: Any) -> Any:
        return {"log": answer.get("log", [])}

    def told(state: State) -> Any:
        return {"whose": state["whose"], "asks": state.get("asks", False), "log": []}

    async def anode(state: State) -> Any:
        return taken(state, await graph.ainvoke(told(state)))

    return RunnableLambda(lambda state: taken(state, graph.invoke(told(state))), afunc=anode)


class Run(TypedDict):
    thread: Any
    said: Any
    durability: str


def _config(thread: Any) -> Any:
    return {"configurable": {"thread_id": thread}}


class Plan:
    """What one seed does; the model is each tenant's runs in a memory of its own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.runs: dict[str | None, list[Run]] = {tenant: [] for tenant in TENANTS}
        self.waits: set[tuple[str | None, Any]] = set()

    def next_run(self, busy: Any) -> tuple[str | None, Run] | None:
        free = [(who, thread) for who in TENANTS for thread in THREADS if (who, thread) not in busy]
        if not free:
            return None
        who, thread = self.random.choice(free)
        name = who or NOBODY
        if (who, thread) in self.waits:
            self.waits.discard((who, thread))
            said: Any = Command(resume=f"-{name}")
        else:
            asks = self.random.random() < 0.4
            if asks:
                self.waits.add((who, thread))
            said = {
                "whose": name,
                "asks": asks,
                "log": [f"{name}:in"],
                "messages": [HumanMessage(f"{name} says")],
            }
        run: Run = {
            "thread": thread,
            "said": said,
            "durability": self.random.choice(DURABILITIES),
        }
        self.runs[who].append(run)
        return who, run

    def scopes(self, saver: Any) -> ExitStack:
        """Open none, one or two scopes, of anybody."""
        stack = ExitStack()
        for _ in range(self.random.choice((0, 1, 1, 2))):
            stack.enter_context(saver.tenant_scope(self.random.choice(TENANTS[:2])))
        return stack


def _kind(ns: str) -> str:
    return "|".join(part.partition(":")[0] for part in ns.split("|"))


def _expected(plan: Plan) -> dict[str, Any]:
    """Per tenant: the checkpoints of each thread and namespace, and the end of each thread."""
    found = {}
    for who, started in plan.runs.items():
        memory = InMemorySaver()
        graph = family(memory)
        for run in started:
            for _ in graph.stream(
                run["said"], _config(run["thread"]), durability=run["durability"]
            ):
                pass
        if started:
            found[who or NOBODY] = _summary(memory.list(None))
    return found


def _summary(checkpoints: Any) -> Any:
    counts: Counter[Any] = Counter()
    ends: dict[Any, Any] = {}
    for one in checkpoints:
        place = one.config["configurable"]
        at = (place["thread_id"], _kind(place["checkpoint_ns"]))
        counts[at] += 1
        newest = ends.get(at)
        if newest is None or newest[0] < one.checkpoint["id"]:
            log = one.checkpoint["channel_values"].get("log", [])
            ends[at] = (one.checkpoint["id"], sorted(log))
    return {at: (count, ends[at][1]) for at, count in counts.items()}


def _check(plan: Plan, stored: dict[str, list[Any]], superuser: Any, schema: str) -> None:
    for tenant, tuples in stored.items():
        for one in tuples:
            text = repr((one.checkpoint["channel_values"], one.pending_writes))
            for other in (*TENANTS[:2], NOBODY):
                assert other == tenant or other not in text, (tenant, text)
    found = {tenant: _summary(tuples) for tenant, tuples in stored.items() if tuples}
    assert found == _expected(plan)
    for table in ("agent_threads", "agent_threads_blobs", "agent_threads_writes"):
        rows = superuser.execute(f"SELECT DISTINCT tenant FROM {schema}.{table}").fetchall()
        assert {tenant for (tenant,) in rows} <= set(found)


def _wrapped(saver: Any, retained: bool) -> Any:
    return RetainedCheckpointer(saver, max_age=3600) if retained else saver


def _default(seed: int) -> dict[str, Any]:
    """Runs without a scope are the default tenant's, or the one's that ``tenant_of`` gives."""
    if seed % 2:
        return {"tenant": None, "tenant_of": lambda thread: NOBODY}
    return {"tenant": NOBODY}


@pytest.mark.parametrize("retained", [False, True], ids=["bare", "retained"])
@pytest.mark.parametrize("seed", SEEDS)
def test_streams_read_on_under_any_scope_stay_their_tenants(
    make_saver: Any, superuser: Any, schema: str, seed: int, retained: bool
) -> None:
    plan = Plan(seed)
    with make_saver(**_default(seed)) as saver:
        graph = family(_wrapped(saver, retained))
        live: dict[Any, Any] = {}
        for _ in range(45):
            if len(live) < 3 and plan.random.random() < 0.3:
                if (started := plan.next_run(live)) is None:
                    continue
                who, run = started
                with ExitStack() as scope:
                    if who is not None:
                        scope.enter_context(saver.tenant_scope(who))
                    stream = graph.stream(
                        run["said"],
                        _config(run["thread"]),
                        durability=run["durability"],
                        subgraphs=plan.random.random() < 0.5,
                        stream_mode=plan.random.choice(["updates", "values", "custom"]),
                    )
                    live[who, run["thread"]] = stream
                    if next(stream, None) is None:
                        del live[who, run["thread"]]
            elif live:
                at = plan.random.choice(sorted(live, key=str))
                elsewhere = plan.random.random() < 0.2
                with plan.scopes(saver):
                    context = contextvars.Context() if elsewhere else contextvars.copy_context()
                    if context.run(next, live[at], None) is None:
                        del live[at]
        for stream in live.values():
            with plan.scopes(saver):
                list(stream)
        stored = {}
        for tenant in (*TENANTS[:2], NOBODY):
            with saver.tenant_scope(tenant):
                stored[tenant] = list(saver.list(None))
        _check(plan, stored, superuser, schema)


@pytest.mark.parametrize("retained", [False, True], ids=["bare", "retained"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_asynchronous_streams_read_on_under_any_scope_stay_their_tenants(
    make_async_saver: Any, superuser: Any, schema: str, seed: int, retained: bool
) -> None:
    plan = Plan(100 + seed)
    async with make_async_saver(**_default(seed)) as saver:
        graph = family(_wrapped(saver, retained))
        live: dict[Any, Any] = {}
        for _ in range(45):
            if len(live) < 3 and plan.random.random() < 0.3:
                if (started := plan.next_run(live)) is None:
                    continue
                who, run = started
                with ExitStack() as scope:
                    if who is not None:
                        scope.enter_context(saver.tenant_scope(who))
                    stream = graph.astream(
                        run["said"],
                        _config(run["thread"]),
                        durability=run["durability"],
                        subgraphs=plan.random.random() < 0.5,
                        stream_mode=plan.random.choice(["updates", "values", "custom"]),
                    )
                    live[who, run["thread"]] = stream
                    if await anext(stream, None) is None:
                        del live[who, run["thread"]]
            elif live:
                at = plan.random.choice(sorted(live, key=str))
                with plan.scopes(saver):
                    in_a_task = plan.random.random() < 0.3
                    reading = anext(live[at], None)
                    read = await (
                        asyncio.ensure_future(_awaited(reading)) if in_a_task else reading
                    )
                    if read is None:
                        del live[at]
        for stream in live.values():
            with plan.scopes(saver):
                async for _ in stream:
                    pass
        stored = {}
        for tenant in (*TENANTS[:2], NOBODY):
            with saver.tenant_scope(tenant):
                stored[tenant] = [one async for one in saver.alist(None)]
        _check(plan, stored, superuser, schema)


async def _awaited(reading: Any) -> Any:
    return await reading


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("retained", [False, True], ids=["bare", "retained"])
def test_a_run_that_goes_on_from_a_subgraphs_checkpoint_stays_its_tenants(
    make_saver: Any, superuser: Any, schema: str, durability: str, retained: bool
) -> None:
    """Such a config names the checkpoint of every graph on the way down."""
    with make_saver(tenant=NOBODY) as saver:
        graph = family(_wrapped(saver, retained))
        for name in TENANTS[:2]:
            said = {"whose": name, "asks": True, "log": [f"{name}:in"]}
            with saver.tenant_scope(name):
                graph.invoke(said, _config("t"))
        with saver.tenant_scope("acme"):
            state = graph.get_state(_config("t"), subgraphs=True)
            inner = next(task.state for task in state.tasks if task.name == "call")
            assert inner.config["configurable"]["checkpoint_map"]
            stream = graph.stream(None, inner.config, durability=durability, subgraphs=True)
            next(stream, None)
        with saver.tenant_scope("globex"):
            list(stream)
        for name, other in (("acme", "globex"), ("globex", "acme")):
            with saver.tenant_scope(name):
                for one in saver.list(None):
                    text = repr((one.checkpoint["channel_values"], one.pending_writes))
                    assert other not in text
        rows = superuser.execute(f"SELECT DISTINCT tenant FROM {schema}.agent_threads").fetchall()
        assert sorted(rows) == [("acme",), ("globex",)]


def test_a_node_works_for_its_runs_tenant_unless_it_opens_a_scope(make_saver: Any) -> None:
    seen: list[str] = []

    def look(state: State) -> Any:
        seen.append(saver.current_tenant())
        with saver.tenant_scope("other"):
            seen.append(saver.current_tenant())
            alone.invoke({"whose": "other", "log": ["other:in"]}, _config("of-other"))
        seen.append(saver.current_tenant())
        return {"log": [f"{state['whose']}:look"]}

    with make_saver(tenant=None) as saver:
        alone = _chain(("nested", _chain(("one", _step("one")))), checkpointer=saver)
        graph = _chain(("first", _step("first")), ("look", look), checkpointer=saver)
        with saver.tenant_scope("acme"):
            stream = graph.stream({"whose": "acme", "log": []}, _config("t"))
            next(stream)
        with saver.tenant_scope("globex"):
            list(stream)
            assert saver.current_tenant() == "globex"
            assert [*saver.list(None)] == []
        assert seen == ["acme", "other", "acme"]
        for name, thread in (("acme", "t"), ("other", "of-other")):
            with saver.tenant_scope(name):
                assert {one.config["configurable"]["thread_id"] for one in saver.list(None)} == {
                    thread
                }


def test_nobody_gets_to_see_how_a_run_remembers_its_scope(make_saver: Any) -> None:
    """Not in a config that the caller gave, nor in a stream, a state or what is stored."""
    with make_saver(tenant=None) as saver:
        graph = family(saver)
        given = _config("t")
        with saver.tenant_scope("acme"):
            said = {"whose": "acme", "log": []}
            streamed = list(
                graph.stream(said, given, stream_mode=["debug", "messages", "checkpoints"])
            )
            saver.get_tuple(given)
            shown = repr((streamed, graph.get_state(given), list(saver.list(None))))
        assert given == _config("t")
        assert "lgec" not in shown


def test_a_wrapper_remembers_the_messages_of_a_run_as_its_tenants(make_saver: Any) -> None:
    """The same message id of another tenant, said long ago, dates nothing of this one."""
    now = [1_700_000_000.0]
    with make_saver(tenant=None) as saver:
        wrapped = RetainedCheckpointer(saver, max_age=timedelta(days=30), clock=lambda: now[0])
        graph = _chain(
            ("first", _step("first")),
            ("say", lambda state: {"messages": [HumanMessage(state["whose"], id="1")]}),
            checkpointer=wrapped,
        )
        with saver.tenant_scope("globex"):
            graph.invoke({"whose": "globex", "log": []}, _config("t"))
        now[0] += 86_400 * 20
        with saver.tenant_scope("acme"):
            stream = graph.stream({"whose": "acme", "log": []}, _config("t"))
            next(stream)
        with saver.tenant_scope("globex"):
            list(stream)
        with saver.tenant_scope("acme"):
            (message,) = saver.get_tuple(at("t")).checkpoint["channel_values"]["messages"]
        stamp = stamp_of(message)
        assert stamp is not None
        assert stamp.timestamp() == now[0]


if "timeout" in inspect.signature(StateGraph.add_node).parameters:

    @pytest.mark.parametrize("thread", THREADS)
    async def test_a_node_with_a_timeout_hands_the_scope_on(
        make_async_saver: Any, thread: Any
    ) -> None:
        inner = _chain(("one", _step("one")), checkpointer=True)

        async def node(state: State) -> Any:
            await inner.ainvoke({"whose": state["whose"], "log": []})
            return {"log": [f"{state['whose']}:node"]}

        async with make_async_saver(tenant=None) as saver:
            graph = StateGraph(State)
            graph.add_node("first", _step("first"))
            graph.add_node("node", node, timeout=60)
            graph.add_edge(START, "first")
            graph.add_edge("first", "node")
            built = graph.compile(checkpointer=saver)
            with saver.tenant_scope("acme"):
                said: Any = {"whose": "acme", "log": []}
                stream = built.astream(said, _config(thread), durability="exit")
                await anext(stream)
            with saver.tenant_scope("globex"):
                async for _ in stream:
                    pass
                assert [one async for one in saver.alist(None)] == []


def test_a_run_is_known_by_its_config_and_by_its_copies() -> None:
    """Each by itself: LangGraph's versions differ in what they hand on."""

    class Runtime:
        stream_writer: Any = None

    def writing() -> Any:
        return lambda chunk: None

    scopes, other = object(), object()
    config: Any = {"configurable": {"__pregel_runtime": Runtime()}}
    runs.begin(scopes, config, lambda: "acme")
    runs.begin(scopes, config, lambda: "globex")
    run = runs.run_of(scopes, {"configurable": {**config["configurable"]}})
    assert run is not None
    assert run.tenant == "acme"
    assert runs.run_of(other, config) is None

    runtime = Runtime()
    runtime.stream_writer = writing()
    kept = {"__pregel_runtime": runtime}
    runs.begin(scopes, {"configurable": {**kept}}, lambda: None)
    run = runs.run_of(scopes, {"configurable": kept})
    assert run is not None
    assert run.tenant is None

    mine: Any = {"configurable": {"thread_id": "t"}}
    runs.begin(scopes, mine, lambda: "acme")
    assert mine == {"configurable": {"thread_id": "t"}}
    runtime.stream_writer = len  # of every run: it tells nothing
    runs.begin(scopes, {"configurable": {**kept}}, lambda: "acme")
    assert runs.run_of(scopes, {"configurable": kept}) is None


if HAS_DELTA:

    def test_a_history_that_is_read_on_stays_its_tenants(make_saver: Any) -> None:
        """LangGraph asks for the values of delta channels one checkpoint after the other."""
        with make_saver(tenant=None) as saver:
            for graph in (delta_graph(saver), delta_graph(_wrapped(saver, True))):
                with saver.tenant_scope("acme"):
                    graph.invoke({"log": ["in"]}, _config("t"))
                    expected = [state.values for state in graph.get_state_history(_config("t"))]
                    history = graph.get_state_history(_config("t"))
                    first = next(history)
                with saver.tenant_scope("globex"):
                    found = [first.values, *(state.values for state in history)]
                    # What the caller holds names a checkpoint, and not whose it is.
                    assert graph.get_state(first.config).values == {}
                    assert [*saver.list(None)] == []
                assert found == expected
                with saver.tenant_scope("acme"):
                    one = next(saver.list(None))
                for same in (copy.deepcopy(one.config), pickle.loads(pickle.dumps(one.config))):
                    assert same == one.config
                    assert type(same) is dict
