"""What is not read of checkpoints on Postgres, and what is not deleted with them."""

from __future__ import annotations

import itertools
import json
import operator
from typing import Annotated

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, StateGraph
from psycopg.rows import dict_row, tuple_row
from typing_extensions import TypedDict

from langgraph_ephemeral_checkpointer.plan import drive
from langgraph_ephemeral_checkpointer.pruning import postgres, postgres_statements
from langgraph_ephemeral_checkpointer.survivors import (
    NOTHING,
    STEP_CHANNEL_PREFIXES,
    STEP_CHANNELS,
    Need,
    may_be_rebuilt,
)
from tests.prune.graphs import new_thread

CHANNELS = ("x", "branch", "starting", *STEP_CHANNELS, *(f"{p}a" for p in STEP_CHANNEL_PREFIXES))
INLINE = (None, "null", "true", "1", '"text"')
BLOBS = (None, "empty", "msgpack")
COUNTERS = (None, {}, {"x": [1, 1]}, {"branch:a": [1, 1]}, ["__start__"])
FORMATS = ((4, False), (5, True), (3, False), (3, True), (None, False))


@pytest.fixture
def conn(postgres_pair):
    with psycopg.connect(postgres_pair[0], row_factory=tuple_row) as conn:
        yield conn
        conn.rollback()


def save(conn, thread_id, id_, channels, counters=None, form=(4, False)):
    """Save a checkpoint; `channels` gives each its inline value (JSON) and the kind of its blob."""
    version, sends = form
    document = {
        "channel_versions": dict.fromkeys(channels, "1"),
        "channel_values": {
            name: json.loads(inline) for name, (inline, _) in channels.items() if inline is not None
        },
    }
    if version is not None:
        document["v"] = version
    metadata = {} if counters is None else {"counters_since_delta_snapshot": counters}
    conn.execute(
        "INSERT INTO checkpoints (thread_id, checkpoint_id, parent_checkpoint_id, checkpoint, "
        "metadata) VALUES (%s, %s, %s, %s, %s)",
        (thread_id, id_, f"{id_}-parent", json.dumps(document), json.dumps(metadata)),
    )
    for name, (_, kind) in channels.items():
        if kind is not None:
            conn.execute(
                "INSERT INTO checkpoint_blobs (thread_id, channel, version, type, blob) "
                "VALUES (%s, %s, '1', %s, '') ON CONFLICT DO NOTHING",
                (thread_id, name, kind),
            )
    if sends:
        conn.execute(
            "INSERT INTO checkpoint_writes (thread_id, checkpoint_id, task_id, idx, channel, blob) "
            "VALUES (%s, %s, 't', 0, '__pregel_tasks', '')",
            (thread_id, f"{id_}-parent"),
        )


def ask(conn, plan):
    def perform(statement):
        cur = conn.execute(statement.sql, statement.params or None, prepare=False)
        return cur.fetchall()

    return drive(plan, perform)


def test_a_checkpoint_is_said_to_need_no_ancestor_only_where_the_rule_agrees(conn):
    wanted = {}
    kinds = itertools.product(CHANNELS, INLINE, BLOBS, COUNTERS)
    for number, (name, inline, blob, counters) in enumerate(kinds):
        thread_id = f"one-{number}"
        save(conn, thread_id, "1", {name: (inline, blob), "y": ("1", None)}, counters)
        wanted[thread_id] = 1
    for number, form in enumerate(FORMATS):
        save(conn, f"form-{number}", "1", {"x": ("1", None)}, None, form)
        wanted[f"form-{number}"] = 1
    for number, rows in enumerate(itertools.product((None, "1"), repeat=3)):
        for id_, inline in enumerate(rows):
            save(conn, f"many-{number}", str(id_), {f"x{id_}": (inline, None)})
        wanted[f"many-{number}"] = 3
    save(conn, "bare", "1", {})
    wanted["bare"] = 1

    said = conn.execute(postgres_statements.NEWEST, (list(wanted), 3)).fetchall()
    assert {thread_id: len(ids) for thread_id, ids, _ in said} == wanted
    contents = ask(
        conn,
        postgres._read(
            {thread_id: Need(frozenset(("", id_) for id_ in ids)) for thread_id, ids, _ in said}
        ),
    )
    answers = set()
    for thread_id, ids, alone in said:
        inside = [contents[thread_id]["", id_] for id_ in ids]
        rebuilt = any(may_be_rebuilt(one) for one in inside)
        sends = any(one.sends_parent is not None for one in inside)
        assert not (alone and (rebuilt or sends)), thread_id
        if not thread_id.startswith("form-"):  # what an old format needs is read
            assert alone == (not rebuilt), thread_id
        answers.add(alone)
    assert answers == {True, False}
    assert not may_be_rebuilt(NOTHING)
    assert NOTHING.sends_parent is None


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def test_what_the_checkpoints_of_a_plain_graph_hold_is_not_read(conn):
    conn.commit()
    conn.autocommit = True
    graph = (
        StateGraph(State)
        .add_node("answer", lambda state: {"log": [f"answer {len(state['log'])}"]})
        .add_edge(START, "answer")
        .compile(checkpointer=PostgresSaver(conn))
    )
    thread_id = new_thread()
    config = {"configurable": {"thread_id": thread_id}}
    conn.row_factory = dict_row
    for turn in range(3):
        graph.invoke({"log": [f"question {turn}"]}, config)
    history = list(graph.get_state_history(config))
    conn.row_factory = tuple_row
    asked = []

    def perform(statement):
        asked.append(statement.sql)
        cur = conn.execute(statement.sql, statement.params or None, prepare=False)
        return cur.fetchall() if statement.fetch else cur.rowcount

    with conn.transaction():
        outcome = drive(postgres.prune_postgres([thread_id], 4), perform)[thread_id]
    assert outcome.removed_checkpoints == len(history) - 4
    assert postgres_statements.NEWEST in asked
    assert postgres_statements.CONTENTS_OF_ROWS not in asked
    conn.row_factory = dict_row
    left = list(graph.get_state_history(config))
    assert [state.values for state in left] == [state.values for state in history[:4]]


def test_writes_that_were_saved_before_their_checkpoint_stay(conn):
    """They are among those of rows that go, in the order of ids."""
    ids = [f"{number}0" for number in range(1, 7)]
    for id_ in ids:
        save(conn, "early", id_, {"x": ("1", None)})
    for id_ in (*ids, "15", "35"):
        for task in ("a", "b"):
            conn.execute(
                "INSERT INTO checkpoint_writes (thread_id, checkpoint_id, task_id, idx, channel, "
                "blob) VALUES ('early', %s, %s, 0, 'x', '')",
                (id_, task),
            )

    def perform(statement):
        cur = conn.execute(statement.sql, statement.params or None, prepare=False)
        return cur.fetchall() if statement.fetch else cur.rowcount

    outcome = drive(postgres.prune_postgres(["early"], 2), perform)["early"]
    assert outcome.removed_checkpoints == 4
    left = conn.execute(
        "SELECT checkpoint_id, count(*) FROM checkpoint_writes WHERE thread_id = 'early' "
        "GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert left == [("15", 2), ("35", 2), ("50", 2), ("60", 2)]
