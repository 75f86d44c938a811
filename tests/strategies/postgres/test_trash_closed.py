"""The trash shows nobody what the saver's tables hide, whatever a new table grants by default."""

from __future__ import annotations

import time
import uuid

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row

from langgraph_ephemeral_checkpointer import NotSetUpError, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.strategies.postgres import trash_tables
from tests.support.trash_graphs import config, plain_graph

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
TRASH = ("lgec_trash", "lgec_restored", "lgec_trash_checkpoints", "lgec_trash_blobs")
TRASH += ("lgec_trash_writes",)
POLICY = TTLPolicy(idle_ttl_seconds=60)


@pytest.fixture
def role(pg_dsn):
    """A role to which default privileges give every new table of the schema."""
    name = f"api_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name}")
        conn.execute("CREATE SCHEMA closed")
        conn.execute(f"GRANT USAGE ON SCHEMA closed TO {name}")
        for whom in (name, "PUBLIC"):
            for kind in ("TABLES", "SEQUENCES"):
                conn.execute(
                    f"ALTER DEFAULT PRIVILEGES IN SCHEMA closed GRANT ALL ON {kind} TO {whom}"
                )
        yield name
        conn.execute("DROP SCHEMA closed CASCADE")
        conn.execute(f"DROP OWNED BY {name}")
        conn.execute(f"DROP ROLE {name}")


@pytest.fixture
def conn(pg_dsn, role):
    """A session of the owner of copies of the saver's tables, with row security on."""
    options = {"autocommit": True, "row_factory": dict_row}
    with psycopg.connect(pg_dsn, options="-c search_path=closed", **options) as conn:
        for table in TABLES:
            conn.execute(f"CREATE TABLE {table} (LIKE public.{table} INCLUDING ALL)")
            conn.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        yield conn


def sweeper(conn):
    clock = lambda: time.time() + 3600  # noqa: E731
    return TTLSweeper(PostgresSaver(conn), POLICY, clock=clock, grace_seconds=600)


def open_to(conn, role):
    """The tables of the trash that the role may read, and those without row security."""
    rows = conn.execute(
        "SELECT relname, has_table_privilege(%s, oid, 'SELECT, INSERT, UPDATE, DELETE') AS granted,"
        " relrowsecurity AS secured FROM pg_class "
        "WHERE relnamespace = 'closed'::regnamespace AND relname = ANY(%s)",
        (role, list(TRASH)),
    ).fetchall()
    assert len(rows) == len(TRASH)
    return {r["relname"] for r in rows if r["granted"]}, {
        r["relname"] for r in rows if not r["secured"]
    }


def test_default_privileges_open_no_table_of_the_trash(conn, role):
    undo = sweeper(conn)
    undo.setup()
    assert open_to(conn, role) == (set(), set())
    plain_graph(PostgresSaver(conn)).invoke({"turns": []}, config("t"))
    assert undo.sweep().deleted_thread_ids == ["t"]
    conn.execute(f"SET ROLE {role}")
    for table in (*TRASH, "lgec_trash_bound"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(f"SELECT * FROM {table}")
    conn.execute("RESET ROLE")
    undo.restore("t")


def test_the_printed_statements_close_it_too(conn, role):
    for statement in sweeper(conn).ddl():
        conn.execute(statement)
    assert open_to(conn, role) == (set(), set())


def test_what_an_older_version_left_open_is_closed_and_its_threads_stay(conn, role, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(trash_tables, "VERSION", 3)
        older.setattr(trash_tables, "CLOSE", "SELECT 1")
        older.setattr(trash_tables, "CLOSED_SINCE", 4)
        undo = sweeper(conn)
        for table in TABLES:
            conn.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
        undo.setup()
        plain_graph(PostgresSaver(conn)).invoke({"turns": []}, config("t"))
        assert undo.sweep().deleted_thread_ids == ["t"]
    assert open_to(conn, role) == (set(TRASH), set(TRASH))
    for table in TABLES:
        conn.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    with pytest.raises(NotSetUpError):
        undo.sweep()
    undo.setup()
    assert open_to(conn, role) == (set(), set())
    assert undo.restore("t").thread_id == "t"
    assert plain_graph(PostgresSaver(conn)).get_state(config("t")).values["count"] == 1


def test_what_was_granted_on_purpose_stays_when_set_up_is_called_again(conn, role):
    undo = sweeper(conn)
    undo.setup()
    conn.execute(f"GRANT SELECT ON lgec_trash TO {role}")
    conn.execute("ALTER TABLE checkpoints ADD customer text")
    undo.setup()
    assert open_to(conn, role) == ({"lgec_trash"}, set())


def test_row_security_that_is_switched_on_later_asks_for_set_up(conn, role):
    for table in TABLES:
        conn.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    undo = sweeper(conn)
    undo.setup()
    conn.execute("ALTER TABLE checkpoint_writes ENABLE ROW LEVEL SECURITY")
    with pytest.raises(NotSetUpError, match="lgec_trash_writes"):
        undo.sweep()
    undo.setup()
    assert open_to(conn, role)[1] == set(TRASH) - {"lgec_trash_writes"}
    undo.sweep()
