"""Foreign keys that somebody added to the tables: nothing is lost on the way to the trash."""

from __future__ import annotations

import time

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.types import Command
from psycopg.rows import dict_row

from langgraph_ephemeral_checkpointer import StorageUnusableError, TTLPolicy, TTLSweeper
from tests.support.graphs import approval
from tests.support.trash_graphs import config, plain_graph

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
ROW = "(thread_id, checkpoint_ns, checkpoint_id)"
POLICY = TTLPolicy(idle_ttl_seconds=60, interrupted_ttl_seconds=60)
ACTIONS = ("CASCADE", "RESTRICT", "NO ACTION")


@pytest.fixture
def conn(pg_dsn):
    """A session that finds a copy of the saver's tables in a schema of its own."""
    options = {"autocommit": True, "row_factory": dict_row}
    with psycopg.connect(pg_dsn, options="-c search_path=keyed", **options) as conn:
        conn.execute("CREATE SCHEMA keyed")
        for table in TABLES:
            conn.execute(f"CREATE TABLE {table} (LIKE public.{table} INCLUDING ALL)")
        yield conn
        conn.execute("DROP SCHEMA keyed CASCADE")


@pytest.fixture(params=ACTIONS)
def keyed(request, conn):
    """The same, with a key from the writes to the checkpoints."""
    conn.execute(
        f"ALTER TABLE checkpoint_writes ADD CONSTRAINT of_checkpoint FOREIGN KEY {ROW} "
        f"REFERENCES checkpoints {ROW} ON DELETE {request.param}"
    )
    return conn


def sweeper(conn, policy=POLICY, **options):
    return TTLSweeper(PostgresSaver(conn), policy, clock=lambda: time.time() + 3600, **options)


def rows(conn):
    return {
        table: sorted(map(repr, conn.execute(f"SELECT * FROM {table}").fetchall()))
        for table in TABLES
    }


def ask(conn, thread_id, *, answer=False):
    graph = approval(PostgresSaver(conn))
    graph.invoke({"items": ["hello"]}, config(thread_id), durability="sync")
    if answer:
        graph.invoke(Command(resume="yes"), config(thread_id), durability="sync")
    return graph


def test_a_thread_comes_back_out_of_the_trash_with_its_writes_and_its_question(keyed):
    graph = ask(keyed, "t")
    before = rows(keyed)
    assert before["checkpoint_writes"]
    undo = sweeper(keyed, grace_seconds=600)
    undo.setup()
    assert undo.sweep().deleted_thread_ids == ["t"]
    assert rows(keyed) == {key: [] for key in TABLES}
    undo.restore("t")
    assert rows(keyed) == before
    assert graph.get_state(config("t")).interrupts


def test_a_late_save_brings_the_thread_back_with_its_writes(keyed):
    graph = ask(keyed, "t")
    undo = sweeper(keyed, grace_seconds=600)
    undo.setup()
    loaded = graph.get_state(config("t"))
    before = rows(keyed)
    assert undo.sweep().deleted_thread_ids == ["t"]
    PostgresSaver(keyed).put_writes(loaded.config, [("items", ["late"])], "late")
    after = rows(keyed)
    assert all(set(before[table]) <= set(after[table]) for table in TABLES)


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_plain_delete_takes_a_thread_that_ever_asked(keyed, read, waits):
    ask(keyed, "t", answer=not waits)
    told = {"on_before_delete": lambda *_: True} if read else {}
    result = sweeper(keyed, **told).sweep()
    assert (result.deleted_thread_ids, result.errors) == (["t"], {})
    assert rows(keyed) == {key: [] for key in TABLES}


def test_a_trim_takes_the_writes_of_what_it_takes(keyed):
    graph = plain_graph(PostgresSaver(keyed))
    for _ in range(3):
        graph.invoke({"turns": []}, config("t"), durability="sync")
    result = sweeper(keyed, TTLPolicy(max_checkpoints_per_thread=2)).sweep()
    assert result.errors == {}
    assert result.pruned_checkpoint_count
    assert graph.get_state(config("t")).values["count"] == 3


@pytest.mark.parametrize("grace", [None, 600])
@pytest.mark.parametrize("action", ["RESTRICT", "NO ACTION"])
def test_a_thread_that_another_table_refers_to_is_kept_and_the_key_is_named(conn, action, grace):
    for thread_id in ("a", "held", "z"):
        plain_graph(PostgresSaver(conn)).invoke({"turns": []}, config(thread_id), durability="sync")
    conn.execute(
        "CREATE TABLE bookmarks AS SELECT thread_id, checkpoint_ns, checkpoint_id "
        "FROM checkpoints WHERE thread_id = 'held'"
    )
    conn.execute(
        f"ALTER TABLE bookmarks ADD CONSTRAINT bookmarked FOREIGN KEY {ROW} "
        f"REFERENCES checkpoints {ROW} ON DELETE {action}"
    )
    held = sweeper(conn, grace_seconds=grace)
    if grace:
        held.setup()
    before = conn.execute("SELECT * FROM checkpoints WHERE thread_id = 'held'").fetchall()
    result = held.sweep()
    assert sorted(result.deleted_thread_ids) == ["a", "z"]
    assert "'bookmarked'" in str(result.errors["held"])
    assert "bookmarks" in str(result.errors["held"])
    after = conn.execute("SELECT * FROM checkpoints WHERE thread_id = 'held'").fetchall()
    assert after == before


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
def test_a_key_that_would_change_rows_which_the_trash_does_not_keep_is_refused(conn, action):
    plain_graph(PostgresSaver(conn)).invoke({"turns": []}, config("t"), durability="sync")
    undo = sweeper(conn, grace_seconds=600)
    conn.execute("CREATE TABLE bookmarks AS SELECT * FROM checkpoints")
    key = (
        f"ALTER TABLE bookmarks ADD CONSTRAINT bookmarked FOREIGN KEY {ROW} "
        f"REFERENCES checkpoints {ROW} ON DELETE {action}"
    )
    conn.execute(key)
    with pytest.raises(StorageUnusableError, match=r"'bookmarked'.*bookmarks"):
        undo.setup()
    assert conn.execute("SELECT to_regclass('lgec_trash') AS made").fetchone() == {"made": None}
    conn.execute("ALTER TABLE bookmarks DROP CONSTRAINT bookmarked")
    undo.setup()
    assert undo.sweep().deleted_thread_ids == ["t"]
    undo.restore("t")
    conn.execute(key)
    before = rows(conn)
    with pytest.raises(StorageUnusableError, match=r"'bookmarked'.*bookmarks"):
        undo.sweep()
    assert rows(conn) == before
    assert undo.trash() == []
    undo.teardown()
