"""Postgres: a save of what is newer than everything in the trash does not ask the trash."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver

from langgraph_ephemeral_checkpointer import NotSetUpError, TTLPolicy, TTLSweeper
from tests.support.storages import PostgresStorage
from tests.support.trash_graphs import config, plain_graph

SAVE = (
    "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, "
    "checkpoint, metadata) VALUES (%s, '', %s, %s, '{}', '{\"parents\": {}}')"
)
WRITE = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_id, task_id, idx, channel, blob) "
    "VALUES (%s, %s, 'task', 0, 'turns', '')"
)
IDS = {
    "UUID 6": "1f0d1234-5678-6000-8000-000000000001",
    "UUID 7": "01980000-0000-7000-8000-000000000002",
    "UUID 4": "ee000000-0000-4000-8000-000000000003",
    "near the end": "efffffff-ffff-6fff-8fff-ffffffffffff",
    "the last": "ffffffff-ffff-6fff-8fff-ffffffffffff",
    "nothing but zeros": "00000000-0000-0000-0000-000000000000",
    "upper case": "1F0D1234-5678-6000-8000-000000000004",
    "no UUID": "zebra",
    "short": "1e",
    "not ASCII": "\N{LATIN SMALL LETTER E WITH ACUTE}t\N{LATIN SMALL LETTER E WITH ACUTE}",
}


@pytest.fixture
def backend(trash_dsn):
    return PostgresStorage(trash_dsn)


@pytest.fixture
def saver(backend):
    with backend.open() as saver:
        yield saver


@pytest.fixture
def sweeper(saver):
    policy = TTLPolicy(idle_ttl_seconds=60)
    sweeper = TTLSweeper(saver, policy, grace_seconds=10**6, clock=lambda: time.time() + 3600)
    sweeper.setup()
    return sweeper


def asks(backend, statement, *params):
    """Say whether a save reads the list of the trash."""
    with backend.connect() as conn, conn.transaction(force_rollback=True):
        conn.execute(statement, params)
        return conn.execute(
            "SELECT sum(pg_stat_get_xact_numscans(oid)) > 0 FROM pg_class "
            "WHERE relname IN ('lgec_trash', 'lgec_trash_thread_id_idx')"
        ).fetchone()[0]


def throw_away(backend, thread_id, checkpoint_id):
    """Put a thread of one checkpoint into the trash, whatever its age."""
    generation = backend.sql(
        "INSERT INTO lgec_trash (thread_id, reason, deleted_at, keep_until) "
        "VALUES (?, 'idle_ttl', 0, 1e12) RETURNING generation",
        thread_id,
    )[0][0]
    backend.sql(
        "INSERT INTO lgec_trash_checkpoints (generation, thread_id, checkpoint_ns, checkpoint_id, "
        "checkpoint, metadata) VALUES (?, ?, '', ?, '{}', '{}')",
        generation,
        thread_id,
        checkpoint_id,
    )
    return generation


def grew(backend, *generations):
    backend.sql("SELECT lgec_trash_grew(?::bigint[])", list(generations))


def later(seconds):
    """An id of LangGraph's that is this much younger than now."""
    from benchmarks.data import checkpoint_id

    return checkpoint_id(time.time() + seconds, 7)


def test_a_save_on_what_is_newer_than_the_trash_does_not_ask_and_others_do(backend, saver, sweeper):
    plain_graph(saver).invoke({"turns": []}, config("t"))
    head = saver.get_tuple(config("t")).config["configurable"]["checkpoint_id"]
    assert asks(backend, SAVE, "t", later(200), later(100))  # nobody knows what is there yet
    assert sweeper.sweep().deleted_thread_ids == ["t"]
    assert not asks(backend, SAVE, "t", later(200), later(100))
    assert not asks(backend, WRITE, "t", later(100))
    assert asks(backend, SAVE, "t", later(200), head)
    assert asks(backend, SAVE, "t", head, later(100))  # saved again, on a clock that was ahead
    assert asks(backend, SAVE, "t", later(200), None)
    assert asks(backend, SAVE.replace("''", "'inner'"), "t", later(200), later(100))
    assert asks(backend, WRITE, "t", head)


@pytest.mark.parametrize("ids", [*([name] for name in IDS), list(IDS), list(reversed(IDS))])
@pytest.mark.parametrize("statement", [SAVE, WRITE], ids=["checkpoint", "write"])
def test_ids_of_any_form_are_found_in_the_trash(backend, sweeper, ids, statement):
    for name in ids:
        grew(backend, throw_away(backend, name, IDS[name]))
    for name in ids:
        child = [IDS[name] + "0"] if statement == SAVE else []
        backend.sql(statement.replace("%s", "?"), name, *child, IDS[name])
        assert name not in {entry.thread_id for entry in sweeper.trash()}
    assert sweeper.trash() == []


def test_a_trash_that_gets_something_older_keeps_its_bound(backend, sweeper):
    for thread_id in ("UUID 4", "UUID 6"):
        grew(backend, throw_away(backend, thread_id, IDS[thread_id]))
    backend.sql(WRITE.replace("%s", "?"), "UUID 4", IDS["UUID 4"])
    assert [entry.thread_id for entry in sweeper.trash()] == ["UUID 6"]


def test_where_the_bound_is_lost_saves_ask_and_the_next_move_looks_through_the_whole_trash(
    backend, sweeper
):
    grew(backend, throw_away(backend, "UUID 4", IDS["UUID 4"]))
    backend.sql("ALTER SEQUENCE lgec_trash_bound RESTART")
    assert asks(backend, WRITE, "UUID 4", IDS["UUID 4"])
    grew(backend, throw_away(backend, "UUID 6", IDS["UUID 6"]))
    assert asks(backend, WRITE, "UUID 4", IDS["UUID 4"])
    assert not asks(backend, WRITE, "UUID 4", "ee000001-0000-4000-8000-000000000003")


def test_two_sweeps_raise_the_bound_one_after_the_other(backend, sweeper):
    first, second = (throw_away(backend, name, IDS[name]) for name in ("UUID 4", "UUID 6"))
    call = "SELECT lgec_trash_grew(ARRAY[%s::bigint])"
    with psycopg.connect(backend.where) as one, psycopg.connect(backend.where) as two:
        two.execute("SET lock_timeout = '20s'")
        one.execute(call, (first,))
        waiting = threading.Thread(target=lambda: two.execute(call, (second,)))
        waiting.start()
        until = time.monotonic() + 20
        while not backend.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            assert time.monotonic() < until
            time.sleep(0.005)
        one.commit()
        waiting.join()
        two.commit()
    assert asks(backend, WRITE, "UUID 4", IDS["UUID 4"])


def test_a_bound_that_is_gone_is_noticed_and_set_up_makes_it_again(backend, saver, sweeper):
    plain_graph(saver).invoke({"turns": []}, config("t"))
    head = saver.get_tuple(config("t"))
    sweeper.sweep()
    backend.sql("DROP SEQUENCE lgec_trash_bound")
    with pytest.raises(NotSetUpError, match="lgec_trash_bound"):
        sweeper.sweep()
    sweeper.setup()
    saver.put_writes(head.config, [("turns", [9])], "task")
    assert sweeper.trash() == []


def test_a_session_that_saved_before_a_removal_asks_the_trash_that_was_set_up_since(
    backend, saver, sweeper
):
    graph = plain_graph(saver)
    for _ in range(8):  # its plans are cached, and generic
        graph.invoke({"turns": []}, config("t"))
    with PostgresSaver.from_conn_string(backend.where) as other:
        policy = TTLPolicy(idle_ttl_seconds=60)
        its = TTLSweeper(other, policy, grace_seconds=10**6, clock=lambda: time.time() + 3600)
        its.sweep()
        its.teardown(force=True)
        its.setup()
        for _ in range(3):
            graph.invoke({"turns": []}, config("t"))
            head = saver.get_tuple(config("t"))
            backend.sql("DELETE FROM lgec_restored")
            assert its.sweep().deleted_thread_ids == ["t"]
            saver.put_writes(head.config, [("turns", [9])], "task")
            assert its.trash() == []
