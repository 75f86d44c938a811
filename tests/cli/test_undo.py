"""setup, trash, restore and orphans on the command line."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from tests.support.program import HOUR, age, run_threads, threads_in


@pytest.fixture
def path(tmp_path):
    """A file of two idle threads."""
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        run_threads(saver, "a", "-b")
        for thread_id in ("a", "-b"):
            age(saver.conn, thread_id, 2 * HOUR)
        saver.conn.commit()
    return path


@pytest.fixture
def on(call, path):
    def on(command, *words):
        return call(command, "--backend", "sqlite", "--dsn", str(path), *words)

    return on


def rows(path):
    with closing(sqlite3.connect(path)) as conn, conn:
        return {
            table: sorted(map(repr, conn.execute(f"SELECT * FROM {table}")))
            for table in ("checkpoints", "writes")
        }


def test_a_thread_goes_to_the_trash_and_comes_back(on, path):
    before = rows(path)
    assert on("setup").status == 0
    swept = on("sweep", "--idle-ttl", "1h", "--grace", "1h")
    assert (swept.status, threads_in(path)) == (0, set())
    listed = on("trash", "--json")
    assert [json.loads(line)["thread_id"] for line in listed.out.splitlines()] == ["-b", "a"]
    table = on("trash")
    assert "idle_ttl" in table.out
    assert "2 threads in the trash" in table.err
    assert on("restore", "a").out.startswith("restored a, ")
    assert on("restore", "--thread=-b").status == 0
    assert rows(path) == before
    again = on("restore", "a")
    assert (again.status, again.out) == (1, "")
    assert "not in the trash" in again.err
    kept = on("sweep", "--idle-ttl", "1h", "--grace", "1h", "--json")
    assert json.loads(kept.out)["kept"] == {"a": "restored", "-b": "restored"}


def test_grace_without_setup_is_one_line_that_names_it(on, path):
    before = rows(path)
    answer = on("sweep", "--idle-ttl", "1h", "--grace", "1h")
    assert answer.status == 1
    assert "setup" in answer.err
    assert rows(path) == before


def test_no_trash_erases_whatever_the_grace(on, path):
    on("setup")
    assert on("sweep", "--idle-ttl", "1h", "--grace", "1h", "--no-trash").status == 0
    assert threads_in(path) == set()
    assert on("trash", "--json").out == ""


def test_emptying_needs_yes_where_nobody_can_be_asked(on, monkeypatch):
    on("setup")
    on("sweep", "--idle-ttl", "1h", "--grace", "1h")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    refused = on("trash", "--empty")
    assert refused.status == 2
    assert "--yes" in refused.err
    assert len(on("trash", "--json").out.splitlines()) == 2
    assert on("trash", "--empty", "--yes").out == "erased 2 threads\n"
    assert on("trash", "--json").out == ""
    assert on("trash", "--empty").status == 0  # nothing to ask about


@pytest.mark.parametrize(("answer", "left"), [("yes\n", 0), ("y\n", 0), ("no\n", 2), ("", 2)])
def test_emptying_asks_on_a_terminal(on, monkeypatch, answer, left):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    on("setup")
    on("sweep", "--idle-ttl", "1h", "--grace", "1h")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    asked = on("trash", "--empty")
    assert "erase 2 threads in the trash for good?" in asked.err
    assert asked.status == (0 if left == 0 else 1)
    assert len(on("trash", "--json").out.splitlines()) == left


def test_removing_a_set_up_with_threads_in_the_trash_needs_yes(on, path, monkeypatch):
    on("setup")
    on("sweep", "--idle-ttl", "1h", "--grace", "1h")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert on("setup", "--remove").status == 2
    assert len(on("trash", "--json").out.splitlines()) == 2
    assert on("setup", "--remove", "--yes").status == 0
    assert on("trash").status == 1
    assert on("setup", "--remove").status == 0


def test_print_writes_the_statements_and_changes_nothing(on, path):
    printed = on("setup", "--print")
    assert printed.status == 0
    assert on("trash").status == 1
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.executescript(printed.out)
    assert on("trash", "--json").status == 0


def test_orphans_are_shown_and_deleted(on, path):
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("DELETE FROM checkpoints WHERE thread_id = 'a'")
        loose = conn.execute("SELECT count(*) FROM writes WHERE thread_id = 'a'").fetchone()[0]
    assert on("orphans", "--json").out == ""
    shown = on("orphans", "--older-than", "1h", "--json")
    found = [json.loads(line) for line in shown.out.splitlines()]
    assert {orphan["thread_id"] for orphan in found} == {"a"}
    assert sum(orphan["rows"] for orphan in found) == loose
    assert f"{loose} rows without checkpoint" in on("orphans", "--older-than", "1h").err
    deleted = on("orphans", "--older-than", "1h", "--delete")
    assert deleted.out == f"deleted {loose} rows\n"
    assert on("orphans", "--older-than", "1h", "--json").out == ""


@pytest.mark.parametrize("command", ["setup", "trash", "orphans"])
def test_a_word_that_belongs_to_no_option_is_refused(on, command):
    answer = on(command, "a")
    assert answer.status == 2
    assert "belongs to no option" in answer.err


@pytest.mark.parametrize("words", [("a", "b"), ("a", "--thread", "b"), ()])
def test_restore_takes_exactly_one_thread(on, words):
    on("setup")
    assert on("restore", *words).status == 2


def test_savers_without_a_trash_say_so(call):
    for words in (("setup",), ("trash",), ("restore", "t")):
        answer = call(words[0], "--backend", "memory", *words[1:])
        assert answer.status == 1
        assert "has no trash" in answer.err
    refused = call("sweep", "--backend", "memory", "--idle-ttl", "1h", "--grace", "1h")
    assert refused.status == 2
