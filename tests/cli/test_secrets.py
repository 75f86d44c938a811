"""A password in a connection string is never shown: in no message, no traceback, no repr."""

from __future__ import annotations

import sqlite3
from urllib.parse import quote

import psycopg
import pytest

from langgraph_ephemeral_checkpointer.cli.app import Program
from langgraph_ephemeral_checkpointer.cli.arguments import choose, read
from langgraph_ephemeral_checkpointer.common.secrets import Dsn, redact
from tests.support.program import run

NOBODY = "127.0.0.1:1"
"""An address where no server listens."""


def strings(dsn, *parts):
    return pytest.param(dsn, parts, id=dsn)


DSNS = [
    strings(f"postgresql://app:hunter2-xyz@{NOBODY}/db", "hunter2"),
    strings(f"postgres://app:hunter2-xyz@{NOBODY}/db?sslmode=disable", "hunter2"),
    strings(
        f"postgresql://app:{quote('hun@ter2/xyz', safe='')}@{NOBODY}/db", "hun@", "hun%", "ter2"
    ),
    strings(f"postgresql://app:hun@ter2@{NOBODY}/db", "hun", "ter2"),
    strings(f"postgresql://app:hun/ter2@{NOBODY}/db", "hun", "ter2"),
    strings(f"postgresql://app:hun:ter2@{NOBODY}/db", "hun", "ter2"),
    strings(f"postgresql://app:hun#ter2?zz@{NOBODY}/db", "hun", "ter2"),
    strings(f"postgresql://app:hun ter2@{NOBODY}/db", "hun", "ter2"),
    strings(f"postgresql://app:hunter2%zz@{NOBODY}/db", "hunter2"),
    strings(f"postgresql:/app:hunter2-xyz@{NOBODY}/db", "hunter2"),
    strings(f"app:hunter2-xyz@{NOBODY}/db", "hunter2"),
    strings(f"postgresql://{NOBODY}/db?user=app&password=hunter2-xyz", "hunter2"),
    strings("host=127.0.0.1 port=1 user=app password=hunter2-xyz", "hunter2"),
    strings("host=127.0.0.1 port=1 user=app password = 'hunter2 xyz'", "hunter2", "xyz"),
    strings(r"host=127.0.0.1 port=1 user=app password='hun\'ter2 xyz'", "ter2", "xyz"),
    strings("host=127.0.0.1 port=1 password=hunter2 xyz", "hunter2", "xyz"),
    strings("host=127.0.0.1 port=1 password='hunter2", "hunter2"),
]


@pytest.mark.parametrize(("dsn", "parts"), DSNS)
@pytest.mark.parametrize("backend", ["postgres", "sqlite"])
@pytest.mark.parametrize("debug", [[], ["--debug"]], ids=["", "debug"])
def test_no_failure_to_open_shows_it(call, dsn, parts, backend, debug):
    words = ["sweep", "--backend", backend, "--idle-ttl", "1h", "--dsn", dsn, *debug]
    answer = call(*words)
    assert answer.status in (1, 2)
    assert len(answer.err.splitlines()) == 1 or debug
    for part in parts:
        assert part not in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(("dsn", "parts"), DSNS)
def test_no_wrong_usage_shows_it(call, dsn, parts):
    given = ["status", "--backend", "postgres", "--dsn", dsn]
    for words in (
        [dsn],
        ["sweep", dsn],
        ["sweep", f"--dns={dsn}"],
        ["sweep", "--backend", dsn, "--debug"],
        ["sweep", "--idle-ttl", dsn, "--debug"],
        [*given, "--debug"],
        [*given, "--dsn", dsn],
    ):
        answer = call(*words)
        assert answer.status == 2
        for part in parts:
            if part not in ("xyz",) or words[1:2] == ["--dsn"]:
                assert part not in answer.err


@pytest.mark.parametrize(("dsn", "parts"), DSNS)
def test_no_repr_shows_it(dsn, parts):
    words = ["sweep", "--backend", "postgres", "--dsn", dsn, "--idle-ttl", "1"]
    command = read(choose(Program, words))
    for shown in (repr(command), str(command), repr(vars(command)), str(Dsn(dsn)), f"{Dsn(dsn)}"):
        for part in parts:
            assert part not in shown
    assert command.dsn.reveal() == dsn


def test_it_is_not_shown_by_a_process_of_its_own(tmp_path):
    dsn = f"postgresql://app:hunter2-xyz@{NOBODY}/db"
    answer = run(
        *("status", "--backend", "postgres", "--idle-ttl", "1", "--debug"),
        cwd=tmp_path,
        LGEC_DSN=dsn,
    )
    assert answer.returncode == 1
    assert "Connection refused" in answer.stderr
    assert "hunter2" not in answer.stderr + answer.stdout


def test_it_is_not_shown_when_the_server_refuses_the_role(call, pg_dsn):
    dsn = psycopg.conninfo.make_conninfo(pg_dsn, user="nobody_here", password="hunter2-xyz")
    answer = call("sweep", "--backend", "postgres", "--dsn", dsn, "--idle-ttl", "1", "--debug")
    assert answer.status == 1
    assert "nobody_here" in answer.err
    assert "hunter2" not in answer.err


@pytest.mark.parametrize("debug", [[], ["--debug"]], ids=["", "debug"])
def test_a_password_in_the_environment_is_not_shown(call, monkeypatch, debug):
    monkeypatch.setenv("PGPASSWORD", "127.0.0.1")  # the one part that the message surely has
    words = ["sweep", "--backend", "postgres", "--dsn", "host=127.0.0.1 port=1", "--idle-ttl", "1"]
    answer = call(*words, *debug)
    assert "127.0.0.1" not in answer.err
    assert "Connection refused" in answer.err


def test_errors_of_single_threads_are_redacted_too(call, file, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    connection = sqlite3.connect(file)
    connection.execute(
        "CREATE TRIGGER no BEFORE DELETE ON checkpoints "
        "BEGIN SELECT raise(ABORT, 'postgresql://app:hunter2@h said password=hunter3'); END"
    )
    connection.close()
    for words in ([], ["--json"]):
        answer = call(
            "sweep", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h", *words
        )
        assert answer.status == 1
        assert "said" in answer.out
        assert "hunter" not in answer.out + answer.err


def test_redact_takes_out_what_looks_like_a_password():
    assert redact("to postgresql://me:pw@h/d, password='a b' x") == (
        "to postgresql://me:***@h/d, password=*** x"
    )
    assert redact("nothing to hide: user@host") == "nothing to hide: user@host"
