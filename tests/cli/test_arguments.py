"""What the words of a command line mean; above all, that --dry-run is never lost."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer.cli.app import Program, Sweep
from langgraph_ephemeral_checkpointer.cli.main import main
from tests.support.program import run, threads_in

ALL = {"idle", "fresh", "waiting", "ageless"}
TAILS = [
    ["--", "help"],
    ["help"],
    ["--"],
    ["--", "--max-deletes", "1"],
    ["-h"],
    ["--dry-run"],
    ["--dry-run=no"],
    ["--no-dry-run"],
    ["--json", "--json"],
    ["--idle-ttl", "2"],
    ["--limit", "1"],
    ["--max-deletes", "help"],
    ["--max-deletes=help"],
    ["--batch-size", "sweep"],
    ["--batch-size", "--"],
    ["--batch-size=--"],
    ["--install-autocomplete"],
    ["--compact"],
    ["--force"],
    ["--max-delete-percent", "help"],
    ["--audit-log", "--force"],
    ["--config", "--"],
    ["--log-format", "json", "--", "help"],
    ["sweep"],
    [""],
]


def sweep(file, *words):
    return ["sweep", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h", *words]


@pytest.mark.parametrize("tail", TAILS, ids=" ".join)
def test_a_dry_run_stays_dry_whatever_follows_it(call, file, tail):
    call(*sweep(file, "--dry-run", *tail))
    assert threads_in(file) == ALL


@pytest.mark.parametrize("tail", [["--", "help"], ["--max-deletes", "help"]], ids=" ".join)
def test_a_dry_run_stays_dry_in_a_process_of_its_own(file, tmp_path, tail):
    assert run(*sweep(file, "--dry-run", *tail), cwd=tmp_path).returncode == 2
    assert threads_in(file) == ALL


_WORD = st.one_of(
    st.sampled_from(
        [
            "--",
            "-h",
            "help",
            "--help",
            "-",
            "",
            "sweep",
            "status",
            "--dry_run",
            "--dry-run",
            "--json",
        ]
    ),
    st.sampled_from(
        ["--max-deletes", "--max-deletes=1", "--batch-size", "--coordinate", "--debug", "1", "help"]
    ),
    st.sampled_from([option.display_name for option in Sweep.options().values()]),
    st.text(max_size=4),
)


@settings(
    derandomize=True,
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(before=st.lists(_WORD, max_size=2), after=st.lists(_WORD, max_size=3))
def test_no_words_around_it_make_a_dry_run_live(file, before, after):
    main([*sweep(file, *before), "--dry-run", *after])
    assert threads_in(file) == ALL


def test_the_arguments_of_the_process_are_not_looked_at(call, file, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["anything", "help"])
    answer = call(*sweep(file, "--dry-run"))
    assert answer.status == 0
    assert "would delete" in answer.out
    assert threads_in(file) == ALL


def test_the_environment_cannot_replace_the_arguments(call, file, monkeypatch):
    monkeypatch.setenv("_CLYPI_CURRENT_ARGS", "lgec " + " ".join(sweep(file)))
    monkeypatch.setenv("SHELL", "/bin/bash")
    answer = call(*sweep(file, "--dry-run"))
    assert "would delete 1 thread" in answer.out
    assert threads_in(file) == ALL


@pytest.mark.parametrize("name", ["help", "status", "sweep", "-h"])
@pytest.mark.parametrize("form", ["two words", "one word"])
def test_a_value_may_be_the_name_of_a_command(call, file, monkeypatch, name, form):
    monkeypatch.chdir(file.parent)
    file.rename(file.parent / name)
    words = ["--dsn", name] if form == "two words" else [f"--dsn={name}"]
    answer = call("sweep", "--backend", "sqlite", "--idle-ttl", "1h", *words)
    if form == "two words" and name == "-h":
        assert answer.status == 2
        assert "--dsn=VALUE" in answer.err
    else:
        assert answer.status == 0
        assert "deleted 1 thread" in answer.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a command is missing"),
        (["swep"], "did you mean sweep?"),
        (["--json", "sweep"], "the command comes first"),
        (["help", "sweep"], "no such command"),
        (["sweep"], "--backend is required"),
        (["sweep", "--backend", "memory"], "at least one rule is required"),
        (["status", "--backend", "memory"], "at least one rule is required"),
        (["sweep", "--backend"], "--backend needs a value"),
        (["sweep", "--backend", "--json"], "--backend needs a value"),
        (["sweep", "--backend", "redis"], "none of memory, sqlite, postgres"),
        (["sweep", "--backend", "MEMORY"], "none of memory, sqlite, postgres"),
        (["sweep", "--backend", "memory", "--backend", "memory"], "--backend is given twice"),
        (["sweep", "--json", "--json"], "--json is given twice"),
        (["sweep", "--dry-run=yes"], "--dry-run takes no value"),
        (["sweep", "--dry_run"], "did you mean --dry-run?"),
        (["sweep", "--dry"], "no such option"),
        (["sweep", "-n"], "no such option"),
        (["sweep", "--"], "'--' has no meaning here"),
        (["sweep", "—dry-run"], "belongs to no option"),
        (["sweep", "memory"], "belongs to no option"),
        (["status", "--dry-run"], "no such option"),
        (["sweep", "--idle-ttl", "soon"], "--idle-ttl: 'soon' is no duration"),
        (["sweep", "--idle-ttl", "-5"], "--idle-ttl needs a value"),
        (["sweep", "--idle-ttl=-5"], "is no duration"),
        (["sweep", "--max-checkpoints", "0"], "is no whole number >= 1"),
        (["sweep", "--max-deletes", "1.5"], "is no whole number >= 1"),
        (["sweep", "--batch-size", "9" * 5000], "is no whole number >= 1"),
        (["sweep", "--dsn="], "--dsn: it is empty"),
        (["sweep", "--backend", "sqlite", "--idle-ttl", "1"], "--dsn is required"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_status_2(call, words, said):
    answer = call(*words)
    assert answer.status == 2
    assert answer.out == ""
    assert said in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(call, words):
    answer = call(*words)
    assert (answer.status, answer.err) == (0, "")
    for name in Program.subcommands():
        assert f"  {name}" in answer.out


COMMANDS = Program.subcommands()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_the_help_of_a_command_lists_every_option(call, name, word):
    answer = call(name, word)
    assert (answer.status, answer.err) == (0, "")
    for option in COMMANDS[name].options().values():
        assert option.display_name in answer.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help_text(name):
    assert len(COMMANDS[name].__dict__["__doc__"]) > 20
    for option in COMMANDS[name].options().values():
        assert option.help, option.display_name
        assert option.help.endswith("."), option.display_name


def test_help_is_ascii_and_fits_the_terminal(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], *([name, "--help"] for name in COMMANDS)):
        answer = call(*words)
        assert answer.out.isascii()
        assert max(map(len, answer.out.splitlines())) <= 80


def test_the_version_is_told(call):
    answer = call("--version")
    assert answer.status == 0
    assert answer.out.startswith("langgraph-ephemeral-checkpointer ")
