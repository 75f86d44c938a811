"""Whatever runs do, with sweeps between any two saves: the thread is as if nobody had swept."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import langgraph.checkpoint.base.id as ids
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.errors import EmptyInputError
from langgraph.types import Command

from benchmarks.stress_undo import delta_graph
from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from tests.support.features import HAS_DELTA
from tests.support.trash_graphs import asking_graph, config, nested_graph, plain_graph

DURABILITIES = ("sync", "async", "exit")


class SweptSaver(PostgresSaver):
    """Before a save, a sweep takes every thread away, or somebody meddles with the bound."""

    meddle = staticmethod(lambda: None)

    def put(self, *args, **kwargs):
        self.meddle()
        return super().put(*args, **kwargs)

    def put_writes(self, *args, **kwargs):
        self.meddle()
        return super().put_writes(*args, **kwargs)


def history(graph):
    return [
        (state.values, state.next, state.metadata.get("step"), state.metadata.get("source"))
        for state in graph.get_state_history(config("t"))
    ]


def step(graph, kind, pick):
    """One thing that an application does; the same choices on each saver."""
    states = list(graph.get_state_history(config("t")))
    what = pick.random()
    durability = pick.choice(DURABILITIES)
    place = pick.randrange(len(states)) if states else 0
    if not states or what < 0.4:
        graph.invoke({kind.channel: []}, config("t"), durability=durability)
    elif what < 0.55:
        graph.update_state(states[place].config, {kind.channel: [7]}, as_node=kind.node)
    elif (
        what < 0.7
        and graph.checkpointer.get_tuple(states[place].config).checkpoint["channel_versions"]
    ):  # a copy of one without any is whole in itself, and brings nothing back
        graph.update_state(states[place].config, None, as_node="__copy__")
    elif what < 0.85:
        try:
            graph.invoke(None, states[place].config, durability=durability)
        except EmptyInputError:  # it has nothing more to do there
            return "nothing to do"
    elif states[0].interrupts:
        graph.invoke(Command(resume="yes"), config("t"), durability=durability)
    else:
        graph.update_state(config("t"), None, as_node="__end__")
    return None


def kind(make, node="work", channel="turns"):
    return SimpleNamespace(make=make, node=node, channel=channel)


KINDS = {
    "plain": kind(plain_graph),
    "nested": kind(nested_graph),
    "persistent": kind(lambda saver: nested_graph(saver, persistent=True)),
    "asking": kind(asking_graph, "ask"),
}
if HAS_DELTA:
    KINDS["delta"] = kind(lambda saver: delta_graph(saver, 0), channel="log")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_is_as_if_nobody_had_swept(trash_dsn, kind, seed, monkeypatch):
    kind, pick = KINDS[kind], random.Random(seed)
    clock = [time.time_ns()]
    tick = random.Random(seed)

    def time_ns():
        # Most ids are farther apart than the bound is coarse, so that many saves do not ask.
        clock[0] += round(tick.choice([0.001, 20, 60, 600]) * 1e9)
        return clock[0]

    monkeypatch.setattr(ids, "time", SimpleNamespace(time_ns=time_ns))
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)
    chance = random.Random(seed)
    with (
        PostgresSaver.from_conn_string(trash_dsn) as other,
        SweptSaver.from_conn_string(trash_dsn) as saver,
    ):
        saver = SweptSaver(saver.conn)
        sweeper = TTLSweeper(
            other,
            TTLPolicy(idle_ttl_seconds=60, interrupted_ttl_seconds=60),
            grace_seconds=10**9,
            orphan_age_seconds=None,
            clock=lambda: time.time() + 10**9,
        )
        sweeper.setup()
        swept = []

        def meddle():
            if chance.random() < 0.5:
                with other.lock:  # another thread may be in a sweep
                    other.conn.execute("DELETE FROM lgec_restored")
                swept.extend(sweeper.sweep().deleted_thread_ids)
            elif chance.random() < 0.05:
                with other.lock:
                    other.conn.execute("ALTER SEQUENCE lgec_trash_bound RESTART")

        graph, oracle = kind.make(saver), kind.make(InMemorySaver())
        for _ in range(12):
            number = pick.random()
            failure = step(oracle, kind, random.Random(number))
            saver.meddle = meddle
            assert step(graph, kind, random.Random(number)) == failure
            saver.meddle = lambda: None
            assert history(graph) == history(oracle)
        assert len(swept) > 5
