"""SQLite files on the command line: what is no checkpoint database is told in one line."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.strategies.sqlite import open as opening
from tests.support.program import put, run, run_threads, sqlite_file, threads_in


@pytest.fixture(params=["status", "sweep"])
def on(request, call):
    """Call one of the commands on a path, and hold it to one line on stderr and status 1."""

    def on(dsn) -> str:
        words = [request.param, "--backend", "sqlite", "--dsn", str(dsn), "--idle-ttl", "1h"]
        answer = call(*words)
        assert answer.status == 1
        assert answer.out == ""
        assert answer.err.count("\n") == 1
        return answer.err

    return on


def test_a_file_that_does_not_exist_is_not_created(on, tmp_path):
    assert "no such file" in on(tmp_path / "typo.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_does_not_exist_is_not_created_by_a_process_either(tmp_path):
    answer = run(
        *("sweep", "--backend", "sqlite", "--dsn", "typo.db", "--idle-ttl", "1h"), cwd=tmp_path
    )
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "error: 'typo.db': no such file; nothing was created\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_vanishes_before_it_is_opened_is_not_created(on, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    assert "cannot be opened" in on(tmp_path / "gone.db")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dsn", [":memory:", "file::memory:?cache=shared", "nul\0byte"])
def test_names_that_sqlite_takes_for_something_else_are_files_here(on, tmp_path, monkeypatch, dsn):
    monkeypatch.chdir(tmp_path)
    on(dsn)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_refused(on, tmp_path):
    assert "is no file" in on(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello\n" * 999, b"SQLite format 3\0"], ids=len)
def test_a_file_that_is_no_checkpoint_database_is_left_alone(on, tmp_path, content):
    path = tmp_path / "other.db"
    path.write_bytes(content)
    assert "database" in on(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE recipes (name TEXT)",
        "CREATE TABLE checkpoints (thread_id TEXT, saved_at TEXT); CREATE TABLE writes (x)",
        "CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint)",
    ],
)
def test_a_database_of_something_else_is_left_alone(on, tmp_path, ddl):
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.executescript(ddl)
    connection.close()
    before = path.read_bytes()
    assert "no checkpoint database" in on(path)
    assert path.read_bytes() == before


def test_a_file_locked_by_another_process_is_reported_as_busy(on, file, monkeypatch):
    monkeypatch.setattr(opening, "BUSY_TIMEOUT_SECONDS", 0.05)
    rival = sqlite3.connect(file)
    rival.execute("PRAGMA journal_mode = DELETE")
    rival.execute("BEGIN EXCLUSIVE")
    try:
        assert "locked" in on(file)
    finally:
        rival.rollback()
        rival.close()


def test_a_sweep_beside_a_writer_fails_whole_and_the_next_one_succeeds(call, file, monkeypatch):
    monkeypatch.setattr(opening, "BUSY_TIMEOUT_SECONDS", 0.05)
    words = ["sweep", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h"]
    rival = sqlite3.connect(file)
    rival.execute("BEGIN IMMEDIATE")
    answer = call(*words)
    assert answer.status == 1
    assert "locked" in answer.err
    assert "idle" in threads_in(file)
    rival.rollback()
    rival.close()
    assert call(*words).status == 0
    assert "idle" not in threads_in(file)


def test_status_beside_a_writer_works(call, file):
    rival = sqlite3.connect(file)
    rival.execute("BEGIN IMMEDIATE")
    answer = call("status", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h")
    assert answer.status == 0
    rival.rollback()
    rival.close()


@pytest.mark.parametrize("name", ["a?b.db", "a#b.db", "100%41.db", "a b.db", "ü.db", "a'b.db"])
def test_any_file_name_works(call, tmp_path, name):
    path = tmp_path / name
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, ["old"], age_seconds=7200)
    answer = call("sweep", "--backend", "sqlite", "--dsn", str(path), "--idle-ttl", "1h")
    assert answer.status == 0, answer.err
    assert threads_in(path) == set()


def test_the_file_may_be_named_by_the_environment_and_an_empty_variable_is_not_set(
    call, file, monkeypatch
):
    words = ["status", "--backend", "sqlite", "--idle-ttl", "1h"]
    monkeypatch.setenv("LGEC_DSN", "")
    answer = call(*words)
    assert answer.status == 2
    assert "LGEC_DSN" in answer.err
    monkeypatch.setenv("LGEC_DSN", str(file))
    assert "idle" in call(*words).out
    other = sqlite_file(file.parent / "other.db")
    with SqliteSaver.from_conn_string(str(other)) as saver:
        put(saver, ["other"])
    assert "other" in call(*words, "--dsn", str(other)).out


def test_a_read_only_file_can_be_looked_at(call, tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        run_threads(saver, "one")
        saver.conn.execute("PRAGMA journal_mode = DELETE")
    Path(path).chmod(0o444)
    answer = call("status", "--backend", "sqlite", "--dsn", str(path), "--idle-ttl", "1h")
    assert answer.status == 0
    assert "one" in answer.out


def test_a_missing_driver_is_named_with_the_remedy(call, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.sqlite", None)
    monkeypatch.delitem(sys.modules, opening.__name__)
    answer = call("status", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h")
    assert answer.status == 1
    assert "pip install 'langgraph-ephemeral-checkpointer[sqlite]'" in answer.err
    assert answer.err.count("\n") == 1


def test_the_memory_backend_is_empty_and_opens_nothing(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = call("sweep", "--backend", "memory", "--idle-ttl", "1h", "--dsn", "typo.db")
    assert answer.status == 0
    assert "deleted 0 threads" in answer.out
    assert "--dsn has no meaning" in answer.err
    assert list(tmp_path.iterdir()) == []
