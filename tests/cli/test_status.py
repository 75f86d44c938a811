"""status: every thread, how old it is, and by which rule it is expired."""

from __future__ import annotations

import json

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_ephemeral_checkpointer import (
    AsyncRequiredError,
    TTLPolicy,
    athread_statuses,
    thread_statuses,
)
from langgraph_ephemeral_checkpointer.sweeps import paging
from tests.support.program import dump, put, run, threads_in

POLICY = TTLPolicy(idle_ttl_seconds=3600)


def words(file, *more):
    return ["status", "--backend", "sqlite", "--dsn", str(file), *more]


def rows(answer):
    """Give each line of the table as a dictionary from the thread to the other cells."""
    lines = [line.rsplit(maxsplit=1) for line in answer.out.splitlines()[1:]]
    return {thread: " ".join(cells.split()) for cells, thread in lines}


def objects(answer):
    return {one["thread_id"]: one for one in map(json.loads, answer.out.splitlines())}


def test_every_thread_is_shown_with_its_state(call, file):
    answer = call(*words(file, "--idle-ttl", "1h"))
    assert answer.status == 0
    assert answer.out.splitlines()[0].split() == ["IDLE", "AGE", "CHECKPOINTS", "STATE", "THREAD"]
    assert rows(answer) == {
        "idle": "3h 3h 3 expired: idle_ttl",
        "fresh": "0s 0s 3 active",
        "waiting": "2h 2h 2 interrupted",
        "ageless": "unknown unknown 1 age unknown",
    }
    assert answer.err == "4 threads: 1 expired, 1 interrupted, 1 of unknown age\n"


@pytest.mark.parametrize(
    ("rules", "expired"),
    [
        (["--idle-ttl", "2h30m"], {"idle": "idle_ttl"}),
        (["--idle-ttl", "4h"], {}),
        (["--hard-age-ttl", "1h"], {"idle": "hard_age_ttl", "waiting": "hard_age_ttl"}),
        (["--interrupted-ttl", "1h"], {"waiting": "interrupted_ttl"}),
        (["--idle-ttl", "1h", "--interrupted-ttl", "3h"], {"idle": "idle_ttl"}),
        (["--max-checkpoints", "1"], {}),
    ],
    ids=" ".join,
)
def test_the_rule_that_matches_is_named_and_is_the_one_that_a_sweep_applies(
    call, file, rules, expired
):
    answer = call(*words(file, "--json", *rules))
    found = {thread: one["reason"] for thread, one in objects(answer).items() if one["expired"]}
    assert found == expired
    only = call(*words(file, "--json", "--expired", *rules))
    assert {thread: one["reason"] for thread, one in objects(only).items()} == expired
    if "--max-checkpoints" not in rules:
        swept = call(*["sweep", *words(file)[1:], "--dry-run", "--json", *rules])
        assert json.loads(swept.out)["reasons"] == expired


def test_json_has_one_object_per_line_and_nothing_else(call, file):
    answer = call(*words(file, "--json", "--idle-ttl", "1h", "--max-checkpoints", "2"))
    assert (answer.status, answer.err) == (0, "")
    found = objects(answer)
    idle = found["idle"]
    assert 3 * 3600 <= idle.pop("idle_seconds") <= idle.pop("age_seconds") < 3 * 3600 + 60
    assert idle == {
        "thread_id": "idle",
        "checkpoint_count": 3,
        "root_checkpoint_count": 3,
        "interrupted": False,
        "reason": "idle_ttl",
        "expired": True,
        "kept": None,
        "excess_checkpoints": 1,
    }
    assert (found["waiting"]["kept"], found["waiting"]["interrupted"]) == ("interrupted", True)
    assert (found["ageless"]["kept"], found["ageless"]["age_seconds"]) == ("age_unknown", None)
    assert found["fresh"]["excess_checkpoints"] == 1


def test_the_limit_stops_early_and_says_so(call, file):
    answer = call(*words(file, "--idle-ttl", "1h", "--limit", "2"))
    assert len(answer.out.splitlines()) == 3
    assert answer.err.splitlines() == [
        "stopped at --limit 2; there are more threads",
        "2 threads: 0 expired, 0 interrupted, 1 of unknown age",
    ]
    whole = call(*words(file, "--idle-ttl", "1h", "--limit", "4"))
    assert len(whole.out.splitlines()) == 5
    assert "stopped" not in whole.err


def test_status_changes_nothing(call, file):
    before = dump(file)
    call(*words(file, "--hard-age-ttl", "1s", "--max-checkpoints", "1"))
    assert dump(file) == before


HOSTILE = ["", " a", "a ", '"a"', "a\nb", "\x1b[31mred", "a\u202eb", "ü", "日本", "a b", "tab\t"]


def test_ids_cannot_forge_lines_nor_move_the_cursor(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "ids.db")) as saver:
        put(saver, HOSTILE)
    told = ["status", "--backend", "sqlite", "--dsn", "ids.db", "--idle-ttl", "1h"]
    answer = run(*told, cwd=tmp_path, PYTHONIOENCODING="utf-8")
    lines = answer.stdout.splitlines()[1:]
    assert len(lines) == len(HOSTILE)
    assert "\x1b" not in answer.stdout
    shown = {line[len(lines[0]) - len('""') :] for line in lines}
    assert {"ü", "日本", "a b", '" a"', '"a "', r'"a\nb"', r'"\"a\""'} <= shown
    ascii_only = run(*told, cwd=tmp_path, PYTHONIOENCODING="ascii", LANG="C", LC_ALL="C")
    assert ascii_only.returncode == 0
    assert r'"\u00fc"' in ascii_only.stdout
    as_json = run(*told, "--json", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert {json.loads(line)["thread_id"] for line in as_json.stdout.splitlines()} == set(HOSTILE)


def test_threads_come_page_by_page(tmp_path, monkeypatch):
    """A million threads are never in memory at once."""
    monkeypatch.setattr(paging, "PAGE_SIZE", 10)
    with SqliteSaver.from_conn_string(str(tmp_path / "many.db")) as saver:
        put(saver, [f"thread-{number:02}" for number in range(35)])
        scans = []
        saver.conn.set_trace_callback(lambda sql: "GROUP BY" in sql and scans.append(sql))
        found = thread_statuses(saver, POLICY)
        assert scans == []
        first = [next(found).thread_id for _ in range(10)]
        asked = len(scans)
        rest = [one.thread_id for one in found]
    assert first + rest == [f"thread-{number:02}" for number in range(35)]
    assert len(scans) == 4 * asked


async def test_both_colours_tell_the_same(file):
    now = 2e9
    with SqliteSaver.from_conn_string(str(file)) as saver:
        told = list(thread_statuses(saver, POLICY, clock=lambda: now))
        again = [one async for one in athread_statuses(saver, POLICY, clock=lambda: now)]
    async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
        with pytest.raises(AsyncRequiredError, match="athread_statuses"):
            thread_statuses(saver, POLICY)
        other = [one async for one in athread_statuses(saver, POLICY, clock=lambda: now)]
    assert told == again == other
    assert {one.thread_id for one in told} == threads_in(file)


def test_what_is_no_saver_or_no_policy_is_refused_at_once():
    with pytest.raises(TypeError, match="from_conn_string"):
        thread_statuses(SqliteSaver.from_conn_string("x.db"), POLICY)
    with pytest.raises(TypeError, match="policy"):
        thread_statuses(InMemorySaver(), 3600)
