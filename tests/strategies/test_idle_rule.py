"""Which threads are idle is one rule; each storage says it in its own terms, and all agree."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import (
    first_id_at,
    is_uuid6,
    moment,
    time_of_saved,
)
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, judge
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support.aging import uuid6_at, uuid7_at

DAY = 86400.0
NOW = 1_750_000_000.0
CUT_OFF = NOW - DAY
TICK = Fraction(1, 10_000_000)
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
OLD, YOUNG, UNKNOWN = "2020-01-01T00:00:00+00:00", "2025-06-15T15:06:00+00:00", "no time"

STORAGES = ("memory", "sqlite", "postgres", "tenant")


def spoil(id_, at, character):
    return id_[:at] + character + id_[at + 1 :]


times = st.floats(NOW - 9 * DAY, NOW) | st.floats(CUT_OFF - 1, CUT_OFF + 1)
ties = st.integers(-25, 25).map(lambda ticks: first_id_at(Fraction(CUT_OFF) + ticks * TICK))
timed = times.map(uuid6_at)
odd = st.one_of(
    times.map(uuid7_at),
    st.builds(str.upper, timed | times.map(uuid7_at)),
    # In the place of any digit: a dash, which other places have, and what is no digit at all.
    st.builds(spoil, timed, st.integers(0, 35), st.sampled_from("-gGAé5~")),
    st.builds(lambda id_, at: id_[:at], timed, st.integers(1, 35)),
    st.builds(lambda id_, more: id_ + more, timed, st.sampled_from(["0", "-", " ", "\n"])),
    st.sampled_from(["zzz", "0", "-", "~", "é", first_id_at(-1e12), first_id_at(1e12)]),
)
threads = st.dictionaries(
    st.one_of(timed, timed, ties, odd),
    st.sampled_from([OLD, YOUNG, UNKNOWN]),
    min_size=1,
    max_size=4,
)
between = {uuid6_at(CUT_OFF - seconds): OLD for seconds in (9, 1)}


class Storage:
    """One saver, and the time of a checkpoint as its tables hold it."""

    def __init__(self, name, saver):
        self.name, self.saver = name, saver

    def put(self, thread_id, checkpoint_id, ts):
        where = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self.saver.put(where, empty_checkpoint() | {"id": checkpoint_id, "ts": ts}, {}, {})

    def time(self, checkpoint_id, ts):
        time = time_of_saved(checkpoint_id, ts)
        if self.name != "tenant":
            return time
        at = moment(time)  # a column of microseconds
        return None if at is None else at.timestamp()

    def sweep(self, **options):
        return TTLSweeper(
            self.saver, POLICY, clock=lambda: NOW, orphan_age_seconds=None, **options
        ).sweep()


@pytest.fixture(scope="module")
def storages(postgres_database):
    with ExitStack() as stack:
        enter = stack.enter_context
        sqlite = enter(SqliteSaver.from_conn_string(":memory:"))
        postgres = enter(PostgresSaver.from_conn_string(postgres_database))
        dsn = psycopg.conninfo.make_conninfo(postgres_database)
        tenant = enter(TenantPostgresSaver.from_conn_string(dsn, tenant="a", schema="idle_rule"))
        made = (InMemorySaver(), sqlite, postgres, tenant)
        yield [Storage(name, saver) for name, saver in zip(STORAGES, made, strict=True)]
        with psycopg.connect(postgres_database, autocommit=True) as conn:
            conn.execute("DROP SCHEMA IF EXISTS idle_rule CASCADE")


def verdict(storage, thread):
    found = [storage.time(*one) for one in thread.items()]
    known = None not in found
    newest, born = (max(found), min(found)) if known else (None, None)
    return judge(ThreadFacts("t", newest, born, len(thread), len(thread)), POLICY, NOW)


@pytest.mark.parametrize("read_first", [False, True], ids=["unread", "read"])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(threads, min_size=1, max_size=6))
@example([between | {uuid6_at(CUT_OFF - 5).upper(): UNKNOWN}])
@example([between | {spoil(uuid6_at(CUT_OFF - 5), at, "-"): UNKNOWN} for at in range(12, 36)])
@example([between | {spoil(uuid6_at(CUT_OFF - 5), at, "g"): UNKNOWN} for at in range(12, 36)])
def test_a_sweep_takes_the_threads_that_the_rule_names(storages, read_first, planted):
    """By the greatest id alone, and read before it is judged."""
    named = {f"t{number:02}": thread for number, thread in enumerate(planted)}
    alive = first_id_at(CUT_OFF)
    newest = {one: max(thread) for one, thread in named.items()}
    shown_alive = {one for one, id_ in newest.items() if is_uuid6(id_) and id_ >= alive}
    for storage in storages:
        for thread_id, thread in named.items():
            for one in thread.items():
                storage.put(thread_id, *one)
        try:
            told = {"on_before_delete": lambda *_: True} if read_first else {}
            result = storage.sweep(**told)
            verdicts = {one: verdict(storage, thread) for one, thread in named.items()}
            idle = {one for one, why in verdicts.items() if why.reason == "idle_ttl"}
            unknown = {one for one, why in verdicts.items() if why.kept is not None}
            assert set(result.deleted_thread_ids) == idle, storage.name
            assert set(result.kept.values()) <= {KeepReason.AGE_UNKNOWN}, storage.name
            assert unknown - shown_alive <= result.kept.keys() <= unknown, storage.name
        finally:
            for thread_id in named:
                storage.saver.delete_thread(thread_id)
