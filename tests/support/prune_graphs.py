"""A graph that can do everything a prune has to cope with, steered by its input."""

import operator
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from langgraph.channels import EphemeralValue
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, StateSnapshot, interrupt
from typing_extensions import TypedDict

from tests.support.backends import Place
from tests.support.features import HAS_DELTA, HAS_OVERWRITE

if HAS_DELTA:
    from langgraph.channels.delta import DeltaChannel
if HAS_OVERWRITE:
    from langgraph.types import Overwrite

RUNS: list[str] = []
"""What ran, and how much state it saw; cleared by whoever looks."""


def extend(base: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return base + [item for write in writes for item in write]


def stored_as_deltas(frequency: int) -> Any:
    """The channel of a list field, as deltas where this LangGraph can."""
    if not HAS_DELTA:
        return operator.add
    return DeltaChannel(extend, list, snapshot_frequency=frequency)


def build(saver: Any, frequency: int = 5) -> Any:
    """Build the graph.

    `cmd` says what a turn does, by words: `fan` runs three tasks in parallel, `call` a
    subgraph per call that has a persistent one inside, `keep` a persistent subgraph that has
    one per call inside; `ask` makes the last node of any of them wait for an answer, and
    `deep` the innermost one.
    """

    class Inner(TypedDict):
        cmd: str
        out: str
        notes: Annotated[list, operator.add]
        dnotes: Annotated[list, stored_as_deltas(frequency)]

    class State(TypedDict):
        cmd: str
        out: str
        scratch: Annotated[str, EphemeralValue]
        plain: Annotated[list, operator.add]
        delta: Annotated[list, stored_as_deltas(frequency)]

    def note(name: str, *asking: str) -> Any:
        def run(state: Inner) -> dict[str, Any]:
            seen = f"{name}/{len(state['notes'])}/{len(state['dnotes'])}"
            answer = ""
            if any(word in state["cmd"].split() for word in asking):
                answer = interrupt(name)
            RUNS.append(seen)
            return {"notes": [seen], "dnotes": [seen], "out": f"{seen}{answer}"}

        return run

    def say(name: str, *asking: str) -> Any:
        def run(state: State) -> dict[str, Any]:
            seen = f"{name}/{len(state['plain'])}/{len(state['delta'])}"
            if any(word in state["cmd"].split() for word in asking):
                seen += str(interrupt(name))
            RUNS.append(seen)
            return {"plain": [f"{seen}<{state.get('out', '')}"], "delta": [seen]}

        return run

    def work(task: dict[str, Any]) -> dict[str, Any]:
        answer = interrupt(f"w{task['n']}") if "ask" in task["cmd"].split() else ""
        RUNS.append(f"w{task['n']}")
        return {"plain": [f"w{task['n']}{answer}"], "delta": [f"w{task['n']}{answer}"]}

    def sub(*nodes: tuple[str, Any], checkpointer: Any = None) -> Any:
        builder = StateGraph(Inner)
        last = START
        for name, node in nodes:
            builder.add_node(name, node)
            builder.add_edge(last, name)
            last = name
        builder.add_edge(last, END)
        return builder.compile(checkpointer=checkpointer)

    def route(state: State) -> Any:
        words = state["cmd"].split()
        if "fan" in words:
            return [Send("work", {"n": n, "cmd": state["cmd"]}) for n in range(3)]
        return next((word for word in ("call", "keep") if word in words), "z")

    in_call = sub(("ic1", note("ic1")), ("ic2", note("ic2", "deep")), checkpointer=True)
    in_keep = sub(("ik1", note("ik1")), ("ik2", note("ik2", "deep")))
    call = sub(("c1", note("c1")), ("c_in", in_call), ("c2", note("c2", "ask")))
    keep = sub(("k1", note("k1")), ("k_in", in_keep), ("k2", note("k2", "ask")), checkpointer=True)
    builder = StateGraph(State)
    builder.add_node("a", lambda state: {**say("a")(state), "scratch": "used"})
    builder.add_node("work", work)
    builder.add_node("call", call)
    builder.add_node("keep", keep)
    builder.add_node("z", say("z", "wait"))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", route, ["work", "call", "keep", "z"])
    for name in ("work", "call", "keep"):
        builder.add_edge(name, "z")
    builder.add_edge("z", END)
    return builder.compile(checkpointer=saver)


class Driver:
    """The graph on one place, sync and async savers alike; what it raises is an answer, too."""

    def __init__(self, place: Place, thread_id: str, frequency: int = 5) -> None:
        self.place = place
        self.graph = build(place.saver, frequency)
        self.config = {"configurable": {"thread_id": thread_id}}

    def at(self, checkpoint_id: str | None) -> dict[str, Any]:
        if checkpoint_id is None:
            return self.config
        thread_id = self.config["configurable"]["thread_id"]
        return {
            "configurable": {
                "thread_id": thread_id,
                "checkpoint_ns": "",
                "checkpoint_id": checkpoint_id,
            }
        }

    async def invoke(self, value: Any, at: str | None = None, durability: str = "sync") -> Any:
        if self.place.is_async:
            return await self.graph.ainvoke(value, self.at(at), durability=durability)
        return self.graph.invoke(value, self.at(at), durability=durability)

    async def update(self, value: Any, at: str | None = None, as_node: str | None = None) -> Any:
        if self.place.is_async:
            return await self.graph.aupdate_state(self.at(at), value, as_node=as_node)
        return self.graph.update_state(self.at(at), value, as_node=as_node)

    async def state(self, at: str | None = None) -> StateSnapshot:
        if self.place.is_async:
            return await self.graph.aget_state(self.at(at), subgraphs=True)
        return self.graph.get_state(self.at(at), subgraphs=True)

    async def history(self) -> list[StateSnapshot]:
        if self.place.is_async:
            return [state async for state in self.graph.aget_state_history(self.config)]
        return list(self.graph.get_state_history(self.config))

    async def ids(self) -> list[str]:
        """The root checkpoints' ids, newest first."""
        found = [state.config["configurable"]["checkpoint_id"] for state in await self.history()]
        return sorted(found, reverse=True)

    async def perform(self, operation: Mapping[str, Any]) -> Any:
        """Do one step of a history; returns what it gave, in a form that can be compared."""
        kind = operation["kind"]
        durability = operation.get("durability", "sync")
        at = None
        if "at" in operation and (ids := await self.ids()):
            at = ids[operation["at"] % len(ids)]
        try:
            if kind == "turn":
                value = {"cmd": operation["cmd"], "plain": ["in"], "delta": ["in"]}
                given = await self.invoke(value, at, durability)
            elif kind == "resume":
                waiting = (await self.state()).interrupts
                answer: Any = "yes"
                if len(waiting) > 1:  # answer only some of them
                    answer = {waiting[operation.get("which", 0) % len(waiting)].id: "yes"}
                given = await self.invoke(Command(resume=answer), at, durability)
            elif kind == "travel":
                given = await self.invoke(None, at, durability)
            elif kind == "copy":
                given = await self.update(None, at, "__copy__")
            elif kind == "overwrite" and HAS_OVERWRITE:
                value = {"plain": Overwrite(["over"]), "delta": Overwrite(["over"])}
                given = await self.update(value, at, "a")
            else:
                value = {"plain": ["up"], "delta": ["up"], "cmd": operation.get("cmd", "")}
                given = await self.update(value, at, "a")
        except Exception as error:  # noqa: BLE001 - invalid in this state; it has to be so on both
            return type(error).__name__
        if isinstance(given, dict) and "__interrupt__" in given:
            given = {**given, "__interrupt__": sorted(i.value for i in given["__interrupt__"])}
        return "updated" if isinstance(given, dict) and "configurable" in given else given


def new_thread() -> str:
    return uuid.uuid4().hex


def shape(state: Any) -> Any:
    """A state without the ids that differ from run to run."""
    if not isinstance(state, StateSnapshot):
        return state
    return (
        state.values,
        state.next,
        [
            (task.name, task.error, [i.value for i in task.interrupts], shape(task.state))
            for task in state.tasks
            if not isinstance(task.state, dict)
        ],
    )


def exact(state: Any) -> Any:
    """A state with every id and config in it, but without the saver that some configs carry."""
    if not isinstance(state, StateSnapshot):
        return state
    config = {
        key: value
        for key, value in state.config["configurable"].items()
        if key != "__pregel_checkpointer"
    }
    tasks = tuple(task._replace(state=exact(task.state)) for task in state.tasks)
    return state._replace(config=config, tasks=tasks)
