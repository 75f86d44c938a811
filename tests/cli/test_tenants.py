"""The tenant saver on the command line: one tenant, every one in turn, and no other."""

from __future__ import annotations

import io
import json
import sys
import time
import uuid

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.conninfo import make_conninfo

from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from langgraph_ephemeral_checkpointer.testing import save_thread
from tests.support.program import HOUR, graph, run_threads
from tests.support.sidecar import sidecar

RULE = ["--idle-ttl", "1h"]
TABLE = ["--schema", "tenancy", "--table", "agents"]
KIND = ["--backend", "tenant-postgres", *TABLE]
PLACE = {"schema": "tenancy", "table": "agents"}


@pytest.fixture
def roles(pg_dsn):
    """Two roles: one that sees every tenant, and an ordinary one."""
    number = uuid.uuid4().hex[:8]
    names = {"keeper": f"keeper_{number}", "app": f"app_{number}"}
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        for name in names.values():
            conn.execute(f"CREATE ROLE {name} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD 's3cret'")
        yield names
        conn.execute("DROP SCHEMA IF EXISTS tenancy CASCADE")
        for name in names.values():
            conn.execute(f"DROP OWNED BY {name} CASCADE")
            conn.execute(f"DROP ROLE {name}")


@pytest.fixture
def database(pg_dsn, roles, call, monkeypatch):
    """Two tenants with the same thread ids, in tables made of what ``ddl`` writes."""
    written = call("ddl", *TABLE, "--maintenance-role", roles["keeper"])
    assert (written.status, written.err) == (0, "")
    now = time.time()
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        for statement in written.out.split(";\n"):
            if statement.strip():
                conn.execute(statement)
        for name in roles.values():
            conn.execute(f"GRANT USAGE ON SCHEMA tenancy TO {name}")
            conn.execute(
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenancy TO {name}"
            )
    app = make_conninfo(pg_dsn, user=roles["app"], password="s3cret")
    with TenantPostgresSaver.from_conn_string(app, **PLACE) as saver:
        for tenant in ("acme", "bolt"):
            with saver.tenant_scope(tenant):
                save_thread(saver, "idle", [now - 3 * HOUR])
                save_thread(saver, "waits", [now - 2 * HOUR], waiting=True)
                save_thread(saver, "fresh", [now])
    keeper = make_conninfo(pg_dsn, user=roles["keeper"], password="s3cret")
    monkeypatch.setenv("LGEC_DSN", keeper)
    return {"app": app, "keeper": keeper, "admin": pg_dsn}


@pytest.fixture
def threads(database):
    """Give the threads of a tenant that are stored."""

    def threads(tenant):
        with psycopg.connect(database["admin"]) as conn:
            sql = "SELECT DISTINCT thread_id FROM tenancy.agents WHERE tenant = %s"
            return {row[0] for row in conn.execute(sql, [tenant])}

    return threads


@pytest.fixture
def ok(call, database, monkeypatch):
    """Call a command that has to succeed and to have nothing to say on stderr but its rules."""

    def ok(*words, dsn="keeper", err=""):
        monkeypatch.setenv("LGEC_DSN", database[dsn])
        answer = call(*words)
        said = [line for line in answer.err.splitlines(True) if not line.startswith("rules: ")]
        assert (answer.status, "".join(said)) == (0, err)
        return answer.out

    return ok


ALL = {"idle", "waits", "fresh"}


@pytest.mark.parametrize("dsn", ["app", "keeper"])
def test_one_tenant_is_swept_by_an_ordinary_role_too(ok, threads, dsn):
    dry = json.loads(ok("sweep", *KIND, "--tenant", "acme", *RULE, "--dry-run", "--json", dsn=dsn))
    assert (dry["deleted_thread_ids"], dry["by_tenant"]) == (["idle"], {})
    assert threads("acme") == ALL
    swept = ok("sweep", *KIND, "--tenant", "acme", *RULE, "--coordinate", dsn=dsn)
    assert "deleted       idle_ttl         idle\n" in swept
    assert threads("acme") == {"waits", "fresh"}
    assert threads("bolt") == ALL


def test_every_tenant_is_swept_and_told_by_name(ok, threads):
    out = ok("sweep", *KIND, "--all-tenants", *RULE)
    lines = out.splitlines()
    assert lines[0].split() == ["ACTION", "WHY", "TENANT", "THREAD"]
    assert [line.split() for line in lines[1:5]] == [
        ["deleted", "idle_ttl", "acme", "idle"],
        ["kept", "interrupted", "acme", "waits"],
        ["deleted", "idle_ttl", "bolt", "idle"],
        ["kept", "interrupted", "bolt", "waits"],
    ]
    assert "deleted 2 threads, kept 2 that a rule matched" in lines[5]
    for tenant in ("acme", "bolt"):
        assert threads(tenant) == {"waits", "fresh"}


def test_a_dry_run_over_every_tenant_writes_nothing(ok, threads):
    told = json.loads(ok("sweep", *KIND, "--all-tenants", *RULE, "--json", "--dry-run"))
    assert told["by_tenant"]["bolt"]["deleted_thread_ids"] == ["idle"]
    assert threads("acme") == threads("bolt") == ALL


def test_status_of_one_tenant_and_of_every_one(ok):
    one = ok("status", *KIND, "--tenant", "acme", *RULE, "--json", dsn="app")
    assert {json.loads(line)["thread_id"] for line in one.splitlines()} == ALL
    assert "tenant" not in json.loads(one.splitlines()[0])
    every = [
        json.loads(line)
        for line in ok("status", *KIND, "--all-tenants", *RULE, "--json", "--expired").splitlines()
    ]
    assert [(line["tenant"], line["thread_id"]) for line in every] == [
        ("acme", "idle"),
        ("bolt", "idle"),
    ]
    said = "6 threads: 2 expired, 2 interrupted, 0 of unknown age\n"
    table = ok("status", *KIND, "--all-tenants", *RULE, err=said).splitlines()
    assert table[0].split()[-2:] == ["TENANT", "THREAD"]
    assert [line.split()[-2:] for line in table[1:]][:2] == [["acme", "fresh"], ["acme", "idle"]]
    said = (
        "stopped at --limit 4; there are more threads\n"
        "4 threads: 1 expired, 1 interrupted, 0 of unknown age\n"
    )
    few = ok("status", *KIND, "--all-tenants", *RULE, "--limit", "4", err=said)
    assert len(few.splitlines()) == 5


RULES = """
[policy]
idle_ttl = "1h"

[database]
backend = "tenant-postgres"
schema = "tenancy"
table = "agents"

[[rules]]
tenant = "b*"
exempt = true
"""


@pytest.mark.parametrize("words", [["sweep"], ["run", "--once"]], ids=" ".join)
def test_a_rules_file_names_tables_and_tenants(ok, call, threads, tmp_path, words):
    rules = tmp_path / "ephemeral.toml"
    rules.write_text(RULES)
    told = call(*words, "--config", str(rules), "--all-tenants", "--json")
    assert told.status == 0
    by_tenant = json.loads(told.out)["by_tenant"]
    assert {name: part["deleted_thread_ids"] for name, part in by_tenant.items()} == {
        "acme": ["idle"],
        "bolt": [],
    }
    assert (threads("acme"), threads("bolt")) == ({"waits", "fresh"}, ALL)


def test_the_audit_log_tells_the_tenant_and_the_rows(ok, tmp_path):
    log = tmp_path / "audit.jsonl"
    ok("sweep", *KIND, "--all-tenants", *RULE, "--audit-log", str(log))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    rows = {"agents": 1, "agents_blobs": 1, "agents_writes": 0}
    assert [(one["event"], one["tenant"], one["thread"], one["rows"]) for one in lines] == [
        ("intent", "acme", "idle", rows),
        ("deleted", "acme", "idle", rows),
        ("intent", "bolt", "idle", rows),
        ("deleted", "bolt", "idle", rows),
    ]


def test_a_forecast_is_of_one_tenant(ok, call):
    out = ok("status", *KIND, "--tenant", "acme", "--forecast", "--at", "1h", "--json", dsn="app")
    told = json.loads(out)
    assert (told["threads"], told["takes"][0]["threads"]) == (3, 1)
    assert told["takes"][0]["bytes"] > 0
    refused = call("status", *KIND, "--all-tenants", "--forecast")
    assert (refused.status, refused.out) == (2, "")


def test_the_brake_judges_each_tenant_by_itself(ok, call, threads):
    ok("forget-tenant", "bolt", *TABLE, "--yes")
    with_few = ["sweep", *KIND, "--all-tenants", *RULE, "--interrupted-ttl", "1h", "--json"]
    answer = call(*with_few, "--max-delete-percent", "50")
    told = json.loads(answer.out)
    assert (answer.status, told["refused"], told["deleted_thread_ids"]) == (1, True, [])
    assert told["by_tenant"]["acme"]["refused"]
    assert threads("acme") == ALL
    assert json.loads(ok(*with_few, "--max-delete-percent", "70"))["refused"] is False
    assert threads("acme") == {"fresh"}


def test_the_tenants_are_listed_for_who_sees_them_all(ok, call, database, monkeypatch):
    assert ok("tenants", *TABLE, err="2 tenants\n") == "acme\nbolt\n"
    out = ok("tenants", *TABLE, "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"tenant": "acme"},
        {"tenant": "bolt"},
    ]
    monkeypatch.setenv("LGEC_DSN", database["app"])
    for words in (
        ["tenants", *TABLE],
        ["sweep", *KIND, "--all-tenants", *RULE],
        ["status", *KIND, "--all-tenants", *RULE, "--json"],
        ["vacuum", *TABLE, "--all-tenants", "--older-than", "1h"],
        ["orphans", *KIND, "--all-tenants"],
    ):
        answer = call(*words)
        assert (answer.status, answer.out) == (1, "")
        assert "does not see every tenant" in answer.err
        assert answer.err.count("\n") == 1


def test_forgetting_a_tenant_needs_a_yes_and_takes_no_other(ok, call, threads, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))  # no terminal
    refused = call("forget-tenant", "acme", *TABLE)
    assert refused.status == 2
    assert "--yes" in refused.err
    assert threads("acme") == ALL
    assert ok("forget-tenant", *TABLE, "acme", "--yes") == "erased 3 threads of acme\n"
    assert threads("acme") == set()
    assert threads("bolt") == ALL
    again = json.loads(ok("forget-tenant", *TABLE, "--tenant=bolt", "--yes", "--json", dsn="app"))
    assert again == {"tenant": "bolt", "erased": 3}


@pytest.mark.parametrize("words", [[], ["--yes"], ["--yes", "--json"]])
@pytest.mark.parametrize(
    ("dsn", "hint"),
    [("keeper", "; did you mean acme?"), ("admin", "; did you mean acme?"), ("app", "")],
)
def test_forgetting_a_tenant_that_is_not_there_is_no_success(
    call, database, threads, monkeypatch, words, dsn, hint
):
    """Nor is it asked about; and who may not list the tenants is told of none."""
    stdin = io.StringIO("yes\n")
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setenv("LGEC_DSN", database[dsn])
    answer = call("forget-tenant", "acmee", *TABLE, *words)
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.splitlines()[-1].endswith(f"no such tenant: acmee{hint}")
    assert "for good" not in answer.err
    assert threads("acme") == ALL
    assert stdin.read() == "yes\n"


def test_what_is_left_of_a_tenant_counts_as_the_tenant(call, database):
    """Writes without a checkpoint, say."""
    place = {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}
    with TenantPostgresSaver.from_conn_string(database["app"], tenant="odd", **PLACE) as saver:
        saver.put_writes({"configurable": place}, [("log", 1)], "task")
    assert call("forget-tenant", "odd", "--yes", *TABLE).out == "erased 1 thread of odd\n"
    assert call("forget-tenant", "odd", "--yes", *TABLE).status == 1


@pytest.mark.parametrize(("typed", "status"), [("yes\n", 0), ("no\n", 1), ("", 1)])
def test_on_a_terminal_it_asks(call, database, threads, monkeypatch, typed, status):
    stdin = io.StringIO(typed)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    answer = call("forget-tenant", "acme", *TABLE)
    assert answer.status == status
    assert "erase every thread of the tenant acme for good? Type yes" in answer.err
    assert (threads("acme") == ALL) is (status == 1)


def test_vacuum_of_one_tenant_and_of_every_one(ok, threads):
    assert (
        ok("vacuum", *TABLE, "--tenant", "acme", "--older-than", "90m", dsn="app")
        == "deleted 2 threads of acme\n"
    )
    assert (threads("acme"), threads("bolt")) == ({"fresh"}, ALL)
    out = ok("vacuum", *TABLE, "--all-tenants", "--older-than", "90m", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"tenant": "acme", "deleted": 0},
        {"tenant": "bolt", "deleted": 2},
    ]
    assert threads("bolt") == {"fresh"}


def test_orphans_of_one_tenant_and_of_every_one(ok, database):
    """What a run leaves that saves writes after its thread is gone."""
    old = time.time() - 3 * HOUR
    with TenantPostgresSaver.from_conn_string(database["app"], **PLACE, clock=lambda: old) as saver:
        for tenant in ("acme", "bolt"):
            with saver.tenant_scope(tenant):
                head = saver.get_tuple({"configurable": {"thread_id": "idle"}}).config
                saver.delete_thread("idle")
                saver.put_writes(head, [("log", 1), ("log", 2)], "task")
    assert ok("orphans", *KIND, "--tenant", "acme", "--json") == ""
    words = ["orphans", *KIND, "--older-than", "1h"]
    mine = ok(*words, "--tenant", "acme", "--json", dsn="app")
    (found,) = [json.loads(line) for line in mine.splitlines()]
    assert (found["thread_id"], found["tenant"], found["rows"]) == ("idle", "acme", 2)
    table = ok(*words, "--all-tenants", err="4 rows without checkpoint\n").splitlines()
    assert [line.split()[-3:] for line in table[1:]] == [
        ["idle", "of", "acme"],
        ["idle", "of", "bolt"],
    ]
    assert ok(*words, "--tenant", "acme", "--delete", dsn="app") == "deleted 2 rows\n"
    assert ok(*words, "--all-tenants", "--delete", "--json") == '{"deleted": 2}\n'
    assert ok(*words, "--all-tenants", "--json") == ""


def test_grace_in_the_rules_file_is_refused_and_nothing_is_deleted(
    call, database, threads, tmp_path
):
    """There is no trash: the message says so, and what to do instead."""
    rules = tmp_path / "ephemeral.toml"
    rules.write_text(RULES + '[sweep]\ngrace = "1h"\n')
    for words in (["sweep"], ["run", "--once"]):
        answer = call(*words, "--config", str(rules), "--all-tenants")
        assert (answer.status, answer.out) == (2, "")
        assert "what it deletes is gone" in answer.err
        assert "leave it out" in answer.err
    assert threads("acme") == threads("bolt") == ALL


def test_a_limit_is_one_for_all_tenants_and_goes_by_age_in_every_process(ok, threads, database):
    old = time.time() - 9 * HOUR
    with TenantPostgresSaver.from_conn_string(database["app"], **PLACE, tenant="bolt") as saver:
        save_thread(saver, "older", [old])
    words = ["sweep", *KIND, "--all-tenants", *RULE, "--max-deletes", "1", "--json"]
    told = json.loads(ok(*words))
    assert (told["deleted_thread_ids"], told["deferred_count"]) == (["older"], 2)
    assert threads("acme") == threads("bolt") == ALL
    assert json.loads(ok(*words))["deferred_count"] == 1
    assert json.loads(ok(*words))["deferred_count"] == 0
    assert threads("acme") == threads("bolt") == {"waits", "fresh"}


def test_a_sidecar_keeps_to_the_lock_in_every_sweep(database):
    """Not only in the first: another instance takes the lock after it."""
    words = [*KIND, "--all-tenants", *RULE, "--interval", "0.2s", "--coordinate"]
    lock = "SELECT {}(1279739203::bigint << 32 | 'tenancy.agents'::regclass::oid::bigint)"
    with (
        sidecar(*words, LGEC_DSN=database["keeper"]) as process,
        psycopg.connect(database["admin"], autocommit=True) as rival,
    ):
        assert process.wait_for(event="sweep", outcome="done")["deleted"] == 2
        rival.execute(lock.format("pg_advisory_lock"))
        process.wait_for(event="sweep", outcome="skipped")
        rival.execute(lock.format("pg_advisory_unlock"))
        process.wait_for(event="sweep", outcome="done")
        assert process.stop() == 0


def test_moving_in_from_the_saver_of_langgraph(ok, call, database, monkeypatch):
    with PostgresSaver.from_conn_string(database["admin"]) as source:
        run_threads(source, "x", "y")
        run_threads(source, "asks", text="ask")
    monkeypatch.setenv("LGEC_DSN", database["admin"])
    words = ["migrate-from-postgres", *TABLE, "--tenant", "moved", "--target-dsn", database["app"]]
    assert ok(*words, dsn="admin") == "copied 3 threads, 0 were there already, 0 failed\n"
    again = json.loads(ok(*words, "--json", dsn="admin"))
    assert (again["copied"], sorted(again["skipped"]), again["errors"]) == (
        [],
        ["asks", "x", "y"],
        {},
    )
    with TenantPostgresSaver.from_conn_string(database["app"], **PLACE, tenant="moved") as saver:
        assert graph(saver).get_state({"configurable": {"thread_id": "asks"}}).interrupts
        assert (
            graph(saver).get_state({"configurable": {"thread_id": "x"}}).values["text"] == "hello"
        )


def test_a_thread_that_cannot_be_copied_fails_the_migration_and_stops_no_other(
    call, database, monkeypatch
):
    with PostgresSaver.from_conn_string(database["admin"]) as source:
        run_threads(source, "bad", "good")
        source.conn.execute("UPDATE checkpoints SET checkpoint = '[]' WHERE thread_id = 'bad'")
    monkeypatch.setenv("LGEC_DSN", database["admin"])
    answer = call(
        "migrate-from-postgres", *TABLE, "--tenant", "moved", "--target-dsn", database["app"]
    )
    assert answer.status == 1
    assert "not copied    bad" in answer.out
    assert "copied 1 thread, 0 were there already, 1 failed" in answer.out
    assert "not for 1 thread" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", *KIND, *RULE], "--tenant NAME or --all-tenants is required"),
        (["status", *KIND, *RULE], "--tenant NAME or --all-tenants is required"),
        (["vacuum", *TABLE, "--older-than", "1d"], "--tenant NAME or --all-tenants is required"),
        (["vacuum", *TABLE, "--tenant", "a"], "--older-than is required"),
        (["sweep", *KIND, *RULE, "--tenant", "a", "--all-tenants"], "exclude each other"),
        (["sweep", *KIND, *RULE, "--tenant="], "--tenant: it is empty"),
        (["sweep", *KIND, *RULE, "--tenant", "a", "--tenant", "b"], "--tenant is given twice"),
        (["sweep", *KIND, *RULE, "--all-tenants=no"], "--all-tenants takes no value"),
        (["sweep", *KIND, *RULE, "--tenant", "a", "--grace", "1h"], "has no trash"),
        (["sweep", "--backend", "memory", *RULE, "--tenant", "a"], "only for --backend tenant"),
        (["status", "--backend", "memory", *RULE, "--table", "t"], "--table is only for"),
        (["sweep", "--backend", "memory", *RULE, "--all-tenants"], "--all-tenants is only for"),
        (["run", *KIND, *RULE, "--all-tenants", "--once", "--grace", "1h"], "has no trash"),
        (["setup", "--backend", "tenant-postgres"], "has no trash"),
        (["setup", "--backend", "tenant-postgres", "--print"], "has no trash"),
        (["trash", "--backend", "tenant-postgres", "--empty", "--yes"], "has no trash"),
        (["restore", "--backend", "tenant-postgres", "idle"], "has no trash"),
        (["orphans", *KIND], "--tenant NAME or --all-tenants is required"),
        (["orphans", "--backend", "memory", "--tenant", "a"], "only for --backend tenant"),
        (["forget-tenant", *TABLE], "--tenant is required"),
        (["forget-tenant", "a", "b", *TABLE], "--tenant is given twice"),
        (["tenants", "--all-tenants"], "no such option"),
        (["ddl", "--maintenance-role", "public"], "must be one role"),
        (["ddl", "--table", "t" * 60], "bytes long"),
        (["tenants", "--table", "t" * 60], "bytes long"),
        (["migrate-from-postgres", *TABLE], "--tenant is required"),
    ],
    ids=lambda part: " ".join(part)[:50] if isinstance(part, list) else None,
)
def test_wrong_usage_is_one_line_and_status_2(call, database, threads, words, said):
    answer = call(*words)
    assert (answer.status, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert threads("acme") == ALL


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--backend", "tenant-postgres", "--tenant", "a", *RULE],
        ["sweep", "--backend", "tenant-postgres", "--tenant", "a", *RULE],
        ["tenants"],
        ["forget-tenant", "a", "--yes"],
        ["vacuum", "--tenant", "a", "--older-than", "1d"],
    ],
    ids=lambda words: words[0],
)
def test_a_database_without_the_tables_stays_without_them(call, database, monkeypatch, words):
    monkeypatch.setenv("LGEC_DSN", database["app"])
    answer = call(*words, "--table", "nowhere")
    assert (answer.status, answer.out) == (1, "")
    assert "named 'nowhere'" in answer.err
    assert answer.err.count("\n") == 1
    with psycopg.connect(database["admin"]) as conn:
        assert conn.execute("SELECT to_regclass('public.nowhere')").fetchone() == (None,)


def test_no_password_is_shown(call, database, monkeypatch):
    broken = make_conninfo(database["app"], dbname="no_such_database")
    monkeypatch.setenv("LGEC_DSN", broken)
    for words in (["tenants"], ["sweep", *KIND, "--all-tenants", *RULE]):
        answer = call(*words)
        assert answer.status == 1
        assert "s3cret" not in answer.err + answer.out


def test_old_messages_go_tenant_by_tenant_and_only_where_they_are_meant(ok, database):
    from langchain_core.messages import HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph

    month_ago = time.time() - 40 * 24 * HOUR
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [("ai", "re")]})
    builder.add_edge(START, "answer")
    with TenantPostgresSaver.from_conn_string(
        database["app"], **PLACE, clock=lambda: month_ago
    ) as saver:
        talk = builder.compile(checkpointer=saver)
        for tenant in ("acme", "bolt"):
            with saver.tenant_scope(tenant):
                config = {"configurable": {"thread_id": "talk"}}
                talk.invoke({"messages": [HumanMessage(f"OLD {tenant}")]}, config)

    def left():
        with psycopg.connect(database["admin"]) as conn:
            blobs = conn.execute("SELECT blob FROM tenancy.agents_blobs").fetchall()
            blobs += conn.execute("SELECT blob FROM tenancy.agents_writes").fetchall()
        return {
            word
            for word in (b"OLD acme", b"OLD bolt")
            if word in b"".join(blob for (blob,) in blobs if blob)
        }

    words = ["purge-messages", *KIND, "--older-than", "30d", "--json"]
    assert json.loads(ok(*words, "--tenant", "acme", "--dry-run"))["purged_thread_ids"] == ["talk"]
    assert left() == {b"OLD acme", b"OLD bolt"}
    assert json.loads(ok(*words, "--tenant", "acme"))["purged_thread_ids"] == ["talk"]
    assert left() == {b"OLD bolt"}
    every = [json.loads(line) for line in ok(*words, "--all-tenants").splitlines()]
    assert [(one["tenant"], one["purged_thread_ids"]) for one in every] == [
        ("acme", []),
        ("bolt", ["talk"]),
    ]
    assert left() == set()


def test_an_ordinary_role_is_told_that_it_cannot_purge_every_tenant(call, database, monkeypatch):
    monkeypatch.setenv("LGEC_DSN", database["app"])
    answer = call("purge-messages", *KIND, "--older-than", "30d", "--all-tenants")
    assert answer.status == 1
    assert "does not see every tenant" in answer.err
