"""Every code block of the README runs, and shows what the README says it shows."""

from __future__ import annotations

import contextlib
import re
import runpy
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple
from unittest import SkipTest

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.strategies.registry import _registered
from langgraph_ephemeral_checkpointer.testing import CONTRACT, StrategyContract, save_thread

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPT = "langgraph-ephemeral-checkpointer"
DAY = 24 * 3600


class Block(NamedTuple):
    tag: str
    text: str


def _sections() -> dict[str, list[Block]]:
    sections: dict[str, list[Block]] = {}
    for part in re.split(r"^## ", README, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
        sections[title] = [Block(*block) for block in blocks]
    return sections


SECTIONS = _sections()


def _titles(*tags: str) -> list[str]:
    return [title for title, blocks in SECTIONS.items() if any(one.tag in tags for one in blocks)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the file that the examples speak of, and the script on the PATH."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "sample_threads.py"))
    script = tmp_path / "bin" / SCRIPT
    script.parent.mkdir()
    command = f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m langgraph_ephemeral_checkpointer'
    script.write_text(f'#!/bin/sh\n{command} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/local/bin:/usr/bin:/bin")
    monkeypatch.delenv("LGEC_DSN", raising=False)
    return tmp_path


def test_the_file_of_the_examples_is_made_anew_each_time(folder):
    runpy.run_path(str(ROOT / "examples" / "sample_threads.py"))
    with SqliteSaver.from_conn_string("support.sqlite") as saver:
        assert len(list(saver.list(None))) == 5


def _label(title: str) -> str:
    """The title, and what the section needs."""
    return f"{title} (Postgres)" if "DATABASE_URL" in str(SECTIONS[title]) else title


@pytest.mark.parametrize("title", _titles("python"), ids=_label)
def test_the_python_blocks_of_a_section_run_and_print_what_is_said(
    title, folder, capsys, monkeypatch, request
):
    blocks = SECTIONS[title]
    code = "\n".join(block.text for block in blocks if block.tag == "python")
    if "DATABASE_URL" in code:
        dsn = request.getfixturevalue("pg_dsn")
        monkeypatch.setenv("DATABASE_URL", dsn)
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(dsn) as saver:
            for thread_id, age in {"anna": 40, "ben": 9, "emil": 0}.items():
                save_thread(saver, thread_id, [time.time() - age * DAY - 2])
    before = dict(_registered)
    names: dict[str, object] = {"__name__": "readme"}
    try:
        exec(compile(code, f"README.md: {title}", "exec", dont_inherit=True), names)
        said = re.findall(r"^ *print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
        said += [line for one in blocks if one.tag == "text" for line in one.text.splitlines()]
        assert capsys.readouterr().out.splitlines() == said
        for contract in _contracts(names):
            for rule in CONTRACT:
                with contextlib.suppress(SkipTest):  # of a capability that is not there
                    getattr(contract(), f"test_{rule.name}")()
    finally:
        _registered.clear()
        _registered.update(before)


def _contracts(names):
    return [
        one
        for one in names.values()
        if isinstance(one, type)
        and issubclass(one, StrategyContract)
        and one is not StrategyContract
    ]


def _commands(text: str) -> list[tuple[str, list[str]]]:
    commands: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def _loosely(line: str) -> str:
    """A line without the numbers and the widths that differ from run to run."""
    return " ".join(re.sub(r"\d+", "0", line).split())


@pytest.mark.parametrize("title", _titles("console"))
def test_the_commands_of_a_section_run_and_show_what_is_said(title, folder):
    for block in SECTIONS[title]:
        if block.tag != "console":
            continue
        for command, said in _commands(block.text):
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            shown = _loosely("\n".join([done.stdout, done.stderr]))
            for line in said:
                assert _loosely(line) in shown, f"{command}\n{line}\n{done.stdout}{done.stderr}"
        with SqliteSaver.from_conn_string("support.sqlite") as saver:  # filled again for the next
            for thread_id in ("anna", "ben"):
                saver.delete_thread(thread_id)
                save_thread(saver, thread_id, [time.time() - 40 * DAY])


@pytest.mark.parametrize("title", _titles("sh"))
def test_the_shell_lines_name_extras_and_targets_that_exist(title):
    lines = [line for one in SECTIONS[title] if one.tag == "sh" for line in one.text.splitlines()]
    for line in lines:
        if line.startswith("make "):
            subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, check=True, timeout=60)
            continue
        name, extras = re.fullmatch(r'pip install "?([a-z-]+)(?:\[([a-z,]+)\])?"?', line).groups()
        assert name == PROJECT["name"]
        assert set((extras or "").split(",")) - {""} <= set(PROJECT["optional-dependencies"])


def test_no_block_is_of_a_kind_that_no_test_looks_at():
    tags = {block.tag for blocks in SECTIONS.values() for block in blocks}
    assert tags <= {"python", "console", "sh", "text"}
    fences = README.count("```")
    assert fences == 2 * sum(len(blocks) for blocks in SECTIONS.values())
    for title in _titles("text"):
        assert title in _titles("python"), "a text block is the output of the python before it"


def test_the_table_of_contents_names_every_section():
    anchors = [re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in SECTIONS]
    assert re.findall(r"^- \[.*\]\(#(.*)\)$", README, flags=re.MULTILINE) == anchors


def _options(command):
    done = subprocess.run(
        [sys.executable, "-m", "langgraph_ephemeral_checkpointer", command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    return set(re.findall(r"^  (--[a-z-]+)", done.stdout, flags=re.MULTILINE)) - {"--help"}


def test_every_option_of_the_command_line_is_in_the_readme():
    for command in ("status", "sweep"):
        assert _options(command) <= set(re.findall(r"--[a-z-]+", README))


def test_the_readme_says_of_an_option_which_commands_have_it():
    options = {command: _options(command) for command in ("status", "sweep", "run")}
    rows = re.findall(r"^\| `(--[a-z-]+).*?\| (`\w+`(?: and `\w+`| only)):", README, re.MULTILINE)
    assert len(rows) > 5
    for option, said in rows:
        having = {command for command, found in options.items() if option in found}
        assert set(re.findall(r"`(\w+)`", said)) == having, option


def test_every_reason_to_keep_a_thread_is_in_the_readme():
    from langgraph_ephemeral_checkpointer import KeepReason

    assert {f"`{reason}`" for reason in KeepReason} <= set(re.findall(r"`\w+`", README))
