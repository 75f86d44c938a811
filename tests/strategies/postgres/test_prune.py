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

from langgraph_ephemeral_checkpointer.decisions.survivors import (
    Need,
    Row,
    Survivors,
    may_be_rebuilt,
)
from langgraph_ephemeral_checkpointer.engine.plan import drive
from langgraph_ephemeral_checkpointer.langgraph_names import ONE_STEP_CHANNELS, ONE_STEP_PREFIXES
from langgraph_ephemeral_checkpointer.strategies.base import PruneOutcome
from langgraph_ephemeral_checkpointer.strategies.postgres import (
    prune as postgres,
)
from langgraph_ephemeral_checkpointer.strategies.postgres import (
    prune_statements as postgres_statements,
)
from tests.support.prune_graphs import new_thread

CHANNELS = ("x", "branch", "starting", *ONE_STEP_CHANNELS, *(f"{p}a" for p in ONE_STEP_PREFIXES))
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


def perform_on(conn):
    def perform(statement):
        cur = conn.execute(statement.sql, statement.params or None, prepare=False)
        return cur.fetchall() if statement.fetch else cur.rowcount

    return perform


ODD = (
    {"v": "4"},
    {"v": ""},
    {"v": True},
    {"v": [4]},
    {"channel_versions": None},
    {"channel_versions": ["x"]},
    {"channel_versions": 1},
)


def test_a_row_that_goes_and_cannot_be_made_out_holds_nothing_up(conn):
    for number, odd in enumerate(ODD):
        for id_ in ("1", "2", "3"):
            save(conn, f"odd-{number}", id_, {"x": ("1", None)})
        conn.execute(
            "UPDATE checkpoints SET checkpoint = checkpoint || %s "
            "WHERE thread_id = %s AND checkpoint_id = '2'",
            (json.dumps(odd), f"odd-{number}"),
        )
    threads = [f"odd-{number}" for number in range(len(ODD))]
    outcomes = drive(postgres.prune_postgres(threads, 1), perform_on(conn))
    assert outcomes == dict.fromkeys(threads, PruneOutcome(2))


@pytest.mark.parametrize("counters", [3, True, "y", [["y"]]])
def test_counters_of_no_known_shape_make_every_channel_one_to_be_rebuilt(conn, counters):
    """Without a stored value and its ancestors, the thread could not be loaded."""
    for id_ in ("1", "2", "3"):
        save(conn, "shape", id_, {"x": (None, None)}, counters)
    outcome = drive(postgres.prune_postgres(["shape"], 1), perform_on(conn))["shape"]
    assert outcome.removed_checkpoints == 0 or isinstance(counters, list)
    assert (outcome.left_whole is None) == isinstance(counters, list)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_parent_that_only_writes_are_left_of_is_not_counted_among_what_stays(conn, is_there):
    for id_ in ("1", "2", "2b", "3"):
        save(conn, "sends", id_, {"x": ("1", None)}, None, (3, id_ == "3"))
    mine = "WHERE thread_id = 'sends'"
    conn.execute(
        f"UPDATE checkpoints SET parent_checkpoint_id = '2b' {mine} AND checkpoint_id = '3'"
    )
    conn.execute(f"UPDATE checkpoint_writes SET checkpoint_id = '2b' {mine}")
    if not is_there:
        conn.execute(f"DELETE FROM checkpoints {mine} AND checkpoint_id = '2b'")
    dry = drive(postgres.prune_postgres(["sends"], 1, dry_run=True), perform_on(conn))
    done = drive(postgres.prune_postgres(["sends"], 1), perform_on(conn))
    assert dry == done == {"sends": PruneOutcome(2)}
    marked = conn.execute(
        "SELECT checkpoint_id, type FROM checkpoints WHERE thread_id = 'sends' AND type IS NOT NULL"
    ).fetchone()
    assert marked == ("2b" if is_there else "3", "born:1")
    sent = "SELECT count(*) FROM checkpoint_writes WHERE thread_id = 'sends'"
    assert conn.execute(sent).fetchone() == (1,)


def test_an_ancestor_that_the_database_orders_differently_stays_and_carries_the_birth():
    """As a linguistic collation does: there "a" comes before "B", which Python has first."""
    rows = [Row("", "B2"), Row("", "B3")]  # the newest; further down are "B0", "a1" and "B1"
    found = Survivors({"": frozenset(("a1", "B1", "B2", "B3"))}, frozenset())
    ((namespace, below, rest),) = postgres._decided(rows, found)
    assert (namespace, below, set(json.loads(rest))) == ("", "B2", {"a1", "B1"})

    answers = {
        postgres_statements.OLDEST: [("t", "a1")],
        postgres_statements.FIRST: [("t", "0", "2025-01-01T00:00:00+00:00", None)],
    }
    plan = postgres._births({"t": rows}, {"t": found})
    assert drive(plan, lambda statement: answers[statement.sql]) == [
        ("t", "a1", "2025-01-01T00:00:00+00:00")
    ]


def test_the_oldest_is_told_in_the_order_of_the_database(conn):
    for thread_id in ("one", "other"):
        for id_ in ("1", "2", "3"):
            save(conn, thread_id, id_, {})
    asked = [("one", "3"), ("one", "2"), ("other", "3"), ("other", "1"), ("other", "0")]
    answer = conn.execute(postgres_statements.OLDEST, postgres._columns(asked, 2)).fetchall()
    assert sorted(answer) == [("one", "2"), ("other", "1")]


TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


def make_tables(conn, threads, length):
    """Make tables whose statistics are of the time when no other threads were there."""
    conn.execute("CREATE SCHEMA growing")
    for table in TABLES:
        conn.execute(f"CREATE TABLE growing.{table} (LIKE {table} INCLUDING ALL)")
    conn.execute("SET LOCAL search_path = growing")
    fill(conn, -threads, threads, length)
    conn.execute(f"ANALYZE {', '.join(TABLES)}")


@pytest.fixture
def growing(conn):
    """Tables whose statistics are of the time when all rows were of one thread."""
    make_tables(conn, 1, 300)
    return conn


def fill(conn, first, threads, length, spaces=("",)):
    numbers = (
        "generate_series(%s::int, %s::int) AS t, generate_series(1, %s) AS i, "
        "unnest(%s::text[]) AS space"
    )
    for insert, select in (
        (
            "checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint)",
            """lpad(i::text, 8, '0'),
            jsonb_build_object('v', 4, 'channel_versions', jsonb_build_object('x', i::text))""",
        ),
        (
            "checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type)",
            "'x', i::text, 'msgpack'",
        ),
        (
            (
                "checkpoint_writes "
                "(thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, blob)"
            ),
            "lpad(i::text, 8, '0'), 't', 0, 'x', ''",
        ),
    ):
        conn.execute(
            f"INSERT INTO {insert} SELECT 'thread-' || t, space, {select} FROM {numbers} "
            "ORDER BY i, t",
            (first, first + threads - 1, length, list(spaces)),
        )


FETCHED = (
    "SELECT sum(seq_tup_read), sum(idx_tup_fetch) FROM pg_stat_xact_user_tables "
    "WHERE schemaname = 'growing'"
)


@pytest.mark.parametrize(("threads", "length"), [(1, 1000), (1000, 1), (1, 0)])
@pytest.mark.parametrize("bitmaps", ["on", "off"])
def test_no_row_of_another_namespace_is_read_whatever_the_planner_believes(
    conn, threads, length, bitmaps
):
    """A thread would cost its rows times its namespaces."""
    make_tables(conn, threads, length)
    spaces = ["", *(f"call:{number}" for number in range(50)), *map("always{}".format, range(50))]
    fill(conn, 1, 2, 10, spaces)
    conn.execute(f"SET LOCAL enable_bitmapscan = {bitmaps}")
    before = conn.execute(FETCHED).fetchone()
    outcomes = drive(postgres.prune_postgres(["thread-1", "thread-2"], 2), perform_on(conn))
    after = conn.execute(FETCHED).fetchone()
    # Calls that name no caller stay, and of the others the newest row and those that replays load.
    assert {one.removed_checkpoints for one in outcomes.values()} == {8 + 50 * 7}
    assert after[0] == before[0]
    rows = 2 * 10 * len(spaces) * len(TABLES)
    assert after[1] - before[1] < 4 * rows


@pytest.mark.parametrize("page_cost", [1, 4, 1000])
@pytest.mark.parametrize("indexes", ["on", "off"])
def test_no_row_of_another_thread_is_read_whatever_the_planner_believes(
    growing, page_cost, indexes
):
    fill(growing, 1, 200, 20)
    growing.execute(f"SET LOCAL random_page_cost = {page_cost}")
    growing.execute(f"SET LOCAL enable_indexscan = {indexes}")
    threads = [f"thread-{number}" for number in range(1, 21)]
    before = growing.execute(FETCHED).fetchone()
    outcomes = drive(postgres.prune_postgres(threads, 10), perform_on(growing))
    after = growing.execute(FETCHED).fetchone()
    assert outcomes == dict.fromkeys(threads, PruneOutcome(10))
    assert after[0] == before[0]
    assert after[1] - before[1] < 10 * 20 * 20 * len(TABLES)


@pytest.mark.parametrize("page_cost", [4, 1000])
def test_checkpoints_are_never_compared_with_every_thread(growing, page_cost):
    """The work would grow with the square of the threads."""
    fill(growing, 1, 400, 20)
    growing.execute(f"SET LOCAL random_page_cost = {page_cost}")
    for settings in (postgres_statements.BY_INDEX, postgres_statements.KEYS_ALONE):
        growing.execute(settings)
    spaces = [(f"thread-{number}", "", "00000011", "{}") for number in range(1, 201)]
    explain = f"EXPLAIN (COSTS OFF) {postgres_statements.DELETE_FLAT_CHECKPOINTS}"
    plan = [line for (line,) in growing.execute(explain, postgres._columns(spaces, 4))]
    assert [line for line in plan if "Index Cond" in line and "thread_id = s.thread_id" in line]
    assert not [line for line in plan if "Join Filter" in line and "thread_id" in line], plan


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(("buffers", "bitmaps"), [("8kB", "on"), ("1GB", "off")])
def test_tables_that_outgrow_the_buffers_are_read_ahead_in_parts_too(
    conn, partitioned, buffers, bitmaps
):
    conn.execute("CREATE SCHEMA growing")
    for table in TABLES:
        kind = "PARTITION BY HASH (thread_id)" if partitioned else ""
        conn.execute(f"CREATE TABLE growing.{table} (LIKE {table} INCLUDING ALL) {kind}")
        for part in range(2 if partitioned else 0):
            conn.execute(
                f"CREATE TABLE growing.{table}_{part} PARTITION OF growing.{table} "
                f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
            )
    conn.execute("SET LOCAL search_path = growing")
    fill(conn, 1, 10, 30)
    hashed = postgres_statements.HASHED.replace("current_setting('shared_buffers')", f"'{buffers}'")
    assert hashed != postgres_statements.HASHED
    conn.execute(hashed)
    assert conn.execute("SHOW enable_bitmapscan").fetchone() == (bitmaps,)
