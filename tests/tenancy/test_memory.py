"""Deciding on what goes before it is known what is there: in one round trip, and never wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

from langgraph_ephemeral_checkpointer.decisions.survivors import Row
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy.memory import Memory
from langgraph_ephemeral_checkpointer.tenancy.survival import Contents, Stored, newest_roots
from tests.support.relay import Calls, Relay, relay
from tests.support.tenant_graphs import HAS_DELTA, META, at, checkpoint, config, delta_graph, put


@pytest.fixture
def wire(app_dsn: str) -> Iterator[Relay]:
    with relay(app_dsn) as made:
        yield made


def _extend(left: list[str], right: list[str]) -> list[str]:
    return [*(left or []), *right]


class Log(TypedDict, total=False):
    log: Annotated[list[str], _extend]


def _subgraph_graph(saver: Any) -> Any:
    inner = StateGraph(Log)
    inner.add_node("one", lambda state: {"log": ["one"]})
    inner.add_node("two", lambda state: {"log": ["two"]})
    inner.add_edge(START, "one")
    inner.add_edge("one", "two")
    inner.add_edge("two", END)
    graph = StateGraph(Log)
    graph.add_node("before", lambda state: {"log": ["before"]})
    graph.add_node("sub", inner.compile(checkpointer=True))
    graph.add_edge(START, "before")
    graph.add_edge("before", "sub")
    graph.add_edge("sub", END)
    return graph.compile(checkpointer=saver)


def _superfluous(superuser: Any, schema: str, keep: int) -> tuple[set[Any], int]:
    """What the rule of pruning would take of the thread now, and blobs that nothing names."""
    rows = superuser.execute(
        "SELECT checkpoint_ns, checkpoint_id, parent_id, callers, source, run_id, channels, "
        f"versions, held, delta FROM {schema}.agent_threads WHERE thread_id = 't'"
    ).fetchall()
    thread = [Stored.read(row) for row in rows]
    (unnamed,) = superuser.execute(
        f"SELECT count(*) FROM {schema}.agent_threads_blobs b WHERE NOT EXISTS ("
        f"SELECT FROM {schema}.agent_threads c, unnest(c.channels, c.versions) u (n, v) "
        "WHERE c.checkpoint_ns = b.checkpoint_ns AND u.n = b.channel AND u.v = b.version)"
    ).fetchone()
    return {one.key for one in thread} - newest_roots(thread, keep), unnamed


KINDS = ["subgraph", "delta"] if HAS_DELTA else ["subgraph"]


def _graph(kind: str, saver: Any) -> Any:
    return delta_graph(saver, every=3) if kind == "delta" else _subgraph_graph(saver)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_that_takes_the_rule_is_saved_in_one_round_trip_each(
    wire: Relay, schema: str, superuser: Any, kind: str
) -> None:
    with TenantPostgresSaver.from_conn_string(wire.dsn, schema=schema, keep_checkpoints=2) as saver:
        saver.setup()
        graph = _graph(kind, saver)
        graph.invoke({"log": ["0"]}, config("t"), durability="sync")
        calls = Calls(saver, wire)
        for turn in range(1, 5):
            graph.invoke({"log": [str(turn)]}, config("t"), durability="sync")
            assert _superfluous(superuser, schema, 2) == (set(), 0)
        assert calls.puts >= 16
        assert calls.trips_of_puts == calls.puts
        assert len(graph.get_state(config("t")).values["log"]) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_in_turn_prune_as_one_does(
    wire: Relay, schema: str, superuser: Any, make_saver: Any, kind: str
) -> None:
    """Each finds that the thread is not as it left it, and goes by what is there."""
    with (
        TenantPostgresSaver.from_conn_string(wire.dsn, schema=schema, keep_checkpoints=2) as one,
        make_saver(keep_checkpoints=2) as other,
        make_saver(keep_checkpoints=None, table="whole") as whole,
    ):
        one.setup()
        graphs = [_graph(kind, one), _graph(kind, other)]
        reference = _graph(kind, whole)
        calls = Calls(one, wire)
        for turn in range(8):
            graph = graphs[turn % 2]
            graph.invoke({"log": [str(turn)]}, config("t"), durability="sync")
            reference.invoke({"log": [str(turn)]}, config("t"), durability="sync")
            assert _superfluous(superuser, schema, 2) == (set(), 0)
            found = graphs[1].get_state(config("t"))
            assert found.values == reference.get_state(config("t")).values
        assert calls.puts < calls.trips_of_puts <= 1.5 * calls.puts


def test_two_processes_save_for_save(make_saver: Any, superuser: Any, schema: str) -> None:
    """A subgraph row each, root rows in turn: whoever saves, nothing too many is there after it."""
    with make_saver(keep_checkpoints=2) as one, make_saver(keep_checkpoints=2) as other:
        place = at("t")
        for n in range(20):
            saver = (one, other, other)[n % 3]
            place = put(saver, "t", 2 * n, config=place)
            caller = {**META, "parents": {"": place["configurable"]["checkpoint_id"]}}
            made = checkpoint(2 * n + 1)
            versions = made["channel_versions"]
            (other, one)[n % 2].put(at("t", "sub:1"), made, caller, versions)
            assert _superfluous(superuser, schema, 2) == (set(), 0)
        assert [row.checkpoint["channel_values"]["log"] for row in one.list(at("t"))] == [
            [38],
            [36],
        ]


def test_what_is_decided_beforehand_does_not_hold_for_a_row_that_was_rewritten(
    make_saver: Any,
) -> None:
    """Same ids, other contents: a row that names an older value again keeps it."""
    with make_saver(keep_checkpoints=2) as saver, make_saver() as other:
        first = put(other, "t", 1, {"log": ["value"]})
        put(other, "t", 1, config=at("t", "sub"))
        second = put(saver, "t", 2, config=first)
        third = put(saver, "t", 3, config=second)
        assert len([*saver.list(at("t", ""))]) == 2
        # What goes with the next save is 2; the other process has 3 name its value as well.
        again = checkpoint(
            3, {"log": [2]}, versions={"log": checkpoint(2)["channel_versions"]["log"]}
        )
        other.put(second, again, META, {})
        put(saver, "t", 4, config=third)
        found = other.get_tuple(at("t", "", again["id"]))
        assert found.checkpoint["channel_values"] == {"log": [2]}


def test_a_plain_thread_that_somebody_else_gives_a_subgraph_is_pruned_by_the_rule(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    with make_saver(keep_checkpoints=2) as saver, make_saver() as other:
        place = at("t")
        for n in range(3):
            place = put(saver, "t", n, config=place)
        bound = put(other, "t", 3, config=at("t", "sub"))["configurable"]["checkpoint_id"]
        for n in range(4, 8):
            place = put(saver, "t", n, config=place)
            assert _superfluous(superuser, schema, 2) == (set(), 0)
        assert [one.checkpoint["id"] for one in other.list(at("t", "sub"))] == [bound]


def test_a_late_save_never_makes_too_many(make_saver: Any, superuser: Any, schema: str) -> None:
    """It is older than all that is kept: it is not stored, and what is kept stays whole."""
    with make_saver(keep_checkpoints=2) as saver:
        for n in (5, 6, 7):
            put(saver, "t", n)
        for n in (1, 2, 3):
            put(saver, "t", n)
            assert _superfluous(superuser, schema, 2) == (set(), 0)
        kept = [one.checkpoint["channel_values"]["log"] for one in saver.list(at("t"))]
        assert kept == [[7], [6]]


def test_a_save_repeated_takes_the_place_of_the_first(make_saver: Any) -> None:
    with make_saver(keep_checkpoints=2) as saver:
        for n in (1, 2, 3):
            put(saver, "t", n)
        put(saver, "t", 3, {"log": ["again"]})
        put(saver, "t", 2, {"other": ["again"]})
        found = {one.checkpoint["id"]: one.checkpoint["channel_values"] for one in saver.list(None)}
        assert found == {
            checkpoint(3)["id"]: {"log": [3]},  # the value of a version does not change
            checkpoint(2)["id"]: {"other": ["again"]},
        }


def _special(other: Any, saver: Any) -> Any:
    """A thread with a subgraph's row that ``saver`` knows; gives where its root 2 is."""
    first = put(other, "t", 1)
    put(other, "t", 1, config=at("t", "sub"))
    return put(saver, "t", 2, config=first)


def test_nothing_makes_room_for_a_save_that_is_not_stored(make_saver: Any) -> None:
    """It goes on from a checkpoint that was pruned, and is to be sent again, whole."""
    with make_saver(keep_checkpoints=1) as saver, make_saver() as other:
        second = _special(other, saver)
        third = put(saver, "t", 3, config=second)
        made = checkpoint(4, {"log": [2], "more": 4})
        made["channel_versions"]["log"] = checkpoint(2)["channel_versions"]["log"]
        changed = {"more": made["channel_versions"]["more"]}
        _, plan = saver._save(second, made, META, changed)
        whole = plan.send(saver._perform(next(plan)))
        assert other.get_tuple(third).checkpoint["channel_values"] == {"log": [3]}
        with pytest.raises(StopIteration):
            plan.send(saver._perform(whole))
        found = [one.checkpoint["channel_values"] for one in other.list(at("t", ""))]
        assert found == [made["channel_values"]]


def test_what_a_transaction_of_the_callers_took_back_is_not_gone_by(make_saver: Any) -> None:
    """The row is what it was, and written by whom it was written; what was between is not."""
    with make_saver(keep_checkpoints=2) as saver, make_saver() as other:
        second = _special(other, saver)
        with saver.conn.transaction():
            relied_on = checkpoint(2)["channel_versions"]
            made = checkpoint(3, {"log": [2]}, versions=relied_on)
            third = saver.put(second, made, META, {})
            with saver.conn.transaction(force_rollback=True):
                put(saver, "t", 3, config=second)
        put(saver, "t", 4, config=third)
        assert other.get_tuple(third).checkpoint["channel_values"] == {"log": [2]}


def _row(n: int) -> Stored:
    return Stored(Row("", str(n)), None, {}, Contents())


def test_what_is_remembered_is_bounded() -> None:
    memory = Memory(limit=10)
    for n in range(100):
        memory.learn(n, [_row(1), _row(2)]) if n % 2 else memory.learn_plain(n, alone=True)
        assert len(memory) <= 10
    assert [len(memory.rows(n)) for n in range(93, 100)] == [0, 0, 2, 0, 2, 0, 2]
    assert [memory.plain(n) for n in (98, 97, 0)] == [True, None, None]
    memory.learn("large", map(_row, range(11)))
    assert len(memory) == 0


def test_what_is_remembered_follows_the_saves() -> None:
    memory = Memory()
    memory.saved("t", _row(1))
    assert memory.rows("t") == []
    memory.learn("t", [_row(1), _row(2)])
    memory.saved("t", _row(3), gone=[("", "1")])
    assert {row.row.id for row in memory.rows("t")} == {"2", "3"}
    memory.gone("t", [("", "2"), ("", "unknown")])
    assert {row.row.id for row in memory.rows("t")} == {"3"}
    memory.learn_plain("t", alone=False)
    assert memory.plain("t") is False
    memory.saved("t", _row(1))
    assert memory.plain("t") is None
    memory.learn("t", [_row(1)])
    memory.forget("t")
    assert (memory.rows("t"), len(memory)) == ([], 0)
