"""A page of a scan on Postgres hands over each thread whose greatest id does not show it alive.

The ids of a page are looked at together, so one that is odd must not hide among the others.
"""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at, is_uuid6
from langgraph_ephemeral_checkpointer.decisions.expiry import Wanted
from langgraph_ephemeral_checkpointer.engine.plan import drive
from langgraph_ephemeral_checkpointer.strategies.postgres.find import scan
from tests.support.aging import uuid6_at

NOW = 1_750_000_000.0
DAY = 86400.0
CUT_OFF = NOW - DAY
WANTED = Wanted(newest_before=CUT_OFF, unread_before=CUT_OFF)

timed = st.builds(uuid6_at, st.floats(NOW - 9 * DAY, NOW))


def spoil(id_, at, character):
    return id_[:at] + character + id_[at + 1 :]


odd = st.one_of(
    st.builds(spoil, timed, st.integers(0, 35), st.sampled_from(",-gAé \n{}\"'\\5")),
    st.builds(lambda ids: ",".join(ids), st.lists(timed, min_size=2, max_size=3)),
    st.builds(lambda id_, at: id_[:at], timed, st.integers(0, 35)),
    st.builds(lambda id_, more: id_ + more, timed, st.sampled_from([",", "0", "\n", " ", "$"])),
    st.sampled_from(["", ",", "zzz", "~", "é"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80),
)


@pytest.fixture(scope="module")
def conn(postgres_database):
    """A connection whose ``checkpoints`` is a table of its own."""
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        conn.execute(
            "CREATE TEMP TABLE checkpoints (thread_id text, checkpoint_ns text, "
            "checkpoint_id text, type text, checkpoint jsonb, metadata jsonb)"
        )
        conn.execute(
            "CREATE TEMP TABLE checkpoint_writes (thread_id text, checkpoint_ns text, "
            "checkpoint_id text, task_id text, idx int, channel text)"
        )
        yield conn


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.one_of(timed, odd), max_size=12) | st.lists(timed, max_size=12),
    limit=st.integers(1, 13),
)
def test_each_thread_is_reported_as_its_greatest_id_tells(conn, ids, limit):
    conn.execute("TRUNCATE checkpoints")
    threads = {f"t{number:02}": id_ for number, id_ in enumerate(ids)}
    with conn.cursor() as cur:
        cur.executemany("INSERT INTO checkpoints VALUES (%s, '', %s)", list(threads.items()))
    perform = lambda one: conn.execute(one.sql, one.params).fetchall()  # noqa: E731
    read, unread, seen, after = set(), {}, 0, None
    while True:
        page = drive(scan(WANTED, after, limit), perform)
        read |= {facts.thread_id for facts in page.threads}
        unread |= dict(page.unread)
        seen += page.seen
        if (after := page.next) is None:
            break
    old = first_id_at(CUT_OFF)
    assert seen == len(threads)
    assert not read & unread.keys()
    assert {one for one, id_ in threads.items() if not is_uuid6(id_)} <= read
    assert {one: threads[one] for one in unread} == unread
    assert all(is_uuid6(id_) and id_ < old for id_ in unread.values())
    for thread_id in threads.keys() - read - unread.keys():
        assert threads[thread_id] >= old
    for thread_id, id_ in threads.items():
        assert not (is_uuid6(id_) and id_ < old) or thread_id in read | unread.keys()


def test_an_id_with_another_character_for_any_of_its_own_is_odd(conn):
    """Also a dash, which other places have: each of a page that has an odd id is told by itself."""
    conn.execute("TRUNCATE checkpoints")
    young = uuid6_at(NOW)
    ids = {
        f"{character}{at:02}": spoil(young, at, character)
        for character in ("-", ",", "A", "é")
        for at in range(36)
        if spoil(young, at, character) != young
    }
    with conn.cursor() as cur:
        cur.executemany(
            "INSERT INTO checkpoints VALUES (%s, '', %s)", [*ids.items(), ("young", young)]
        )
    page = drive(scan(WANTED, None, 500), lambda one: conn.execute(one.sql, one.params).fetchall())
    assert {facts.thread_id for facts in page.threads} == ids.keys()
    assert (page.seen, list(page.unread)) == (len(ids) + 1, [])
