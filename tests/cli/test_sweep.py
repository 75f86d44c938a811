"""sweep: what was deleted, what was kept and why, and the exit status."""

from __future__ import annotations

import json
import sqlite3

from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.strategies import GenericStrategy
from langgraph_ephemeral_checkpointer.strategies.registry import _registered
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper
from tests.support.program import dump, graph, put, run, threads_in

ALL = {"idle", "fresh", "waiting", "ageless"}
RULES = "rules: every thread: deleted when idle for 1 hour\n"


def words(file, *more):
    return ["sweep", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h", *more]


def cells(answer):
    return [line.split() for line in answer.out.splitlines()]


def test_a_sweep_tells_what_it_deleted_and_what_it_kept_and_why(call, file):
    answer = call(*words(file))
    assert (answer.status, answer.err) == (0, RULES)
    *table, total = cells(answer)
    assert table[0] == ["ACTION", "WHY", "THREAD"]
    assert sorted(table[1:]) == [
        ["deleted", "idle_ttl", "idle"],
        ["kept", "age_unknown", "ageless"],
        ["kept", "interrupted", "waiting"],
    ]
    assert " ".join(total[:-2]) == (
        "deleted 1 thread, kept 2 that a rule matched, 0 left for the next sweep; "
        "pruned 0 checkpoints; 3 threads alive;"
    )
    assert threads_in(file) == ALL - {"idle"}
    with SqliteSaver.from_conn_string(str(file)) as saver:
        state = graph(saver).get_state({"configurable": {"thread_id": "waiting"}})
        assert state.interrupts


def test_a_dry_run_tells_the_same_and_deletes_nothing(call, file):
    before = dump(file)
    dry = call(*words(file, "--dry-run"))
    assert dump(file) == before
    assert (dry.status, dry.err) == (0, "dry run: nothing was written\n")
    live = call(*words(file))
    undone = dry.out.replace("would delete", "deleted").replace("would keep", "kept")
    undone = undone.replace("would prune", "pruned")
    assert [line.split()[:5] for line in undone.splitlines()] == [row[:5] for row in cells(live)]


def test_json_is_one_object_with_the_whole_result(call, file):
    dry = call(*words(file, "--json", "--dry-run"))
    live = call(*words(file, "--json"))
    assert (dry.err, live.err) == ("", RULES)
    would, did = json.loads(dry.out), json.loads(live.out)
    assert (would.pop("dry_run"), did.pop("dry_run")) == (True, False)
    assert would.pop("sweep_duration_seconds") >= 0 <= did.pop("sweep_duration_seconds")
    assert would == did
    assert did == {
        "deleted_thread_ids": ["idle"],
        "reasons": {"idle": "idle_ttl"},
        "pruned_checkpoint_count": 0,
        "active_thread_count": 3,
        "lock_held_elsewhere": False,
        "kept": {"waiting": "interrupted", "ageless": "age_unknown"},
        "deferred_count": 0,
        "errors": {},
        "emptied_trash_count": 0,
        "orphan_count": 0,
        "refused": False,
        "oldest_overdue_seconds": 0.0,
        "by_tenant": {},
    }


def test_the_limit_takes_the_longest_overdue_and_leaves_the_rest(call, tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        for hours in (2, 5, 3, 4):
            put(saver, [f"{hours}h"], age_seconds=hours * 3600)
    answer = call(*words(path, "--max-deletes", "2", "--batch-size", "1"))
    assert answer.status == 0
    assert "deleted 2 threads" in answer.out
    assert "2 left for the next sweep" in answer.out
    assert threads_in(path) == {"2h", "3h"}


def test_a_thread_that_cannot_be_deleted_makes_the_status_1_and_stops_no_other(call, file):
    connection = sqlite3.connect(file)
    connection.executescript(
        "UPDATE checkpoints SET thread_id = 'bad' WHERE thread_id = 'waiting';"
        "CREATE TRIGGER no BEFORE DELETE ON checkpoints WHEN old.thread_id = 'bad' "
        "BEGIN SELECT raise(ABORT, 'not this one'); END"
    )
    connection.close()
    answer = call(*words(file))
    assert answer.status == 1
    assert "kept          failed           bad  (StorageError: SQLite refused" in answer.out
    assert "not this one" in answer.out
    assert answer.err.splitlines()[-1].startswith("error: the sweep is done, but not for 1 of its")
    assert "Traceback" not in answer.err
    assert threads_in(file) == {"fresh", "ageless", "bad"}
    assert "not this one" in json.loads(call(*words(file, "--json")).out)["errors"]["bad"]


def test_an_error_nobody_foresaw_is_one_line_and_status_1(call, file, monkeypatch):
    def sweep(self, *, dry_run=False, no_trash=False):
        raise RuntimeError("out of\ncheese")

    monkeypatch.setattr(TTLSweeper, "sweep", sweep)
    answer = call(*words(file))
    assert answer.status == 1
    assert answer.out == ""
    assert answer.err == f"{RULES}error: RuntimeError: out of cheese (--debug shows where)\n"
    assert "Traceback" in call(*words(file, "--debug")).err


def test_ctrl_c_is_status_130(call, file, monkeypatch):
    def sweep(self, *, dry_run=False, no_trash=False):
        raise KeyboardInterrupt

    monkeypatch.setattr(TTLSweeper, "sweep", sweep)
    answer = call(*words(file))
    assert (answer.status, answer.out) == (130, "")
    assert answer.err.splitlines()[-1] == "error: interrupted"


def test_coordination_is_said_to_have_no_effect_elsewhere(call, file):
    answer = call(*words(file, "--coordinate"))
    assert answer.status == 0
    first, second = answer.err.splitlines()
    assert f"{first}\n" == RULES
    assert "SqliteStrategy has no lock" in second


def test_the_script_and_the_module_are_the_same_program(file, tmp_path):
    answer = run(*words(file, "--json"), cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, RULES)
    assert json.loads(answer.stdout)["deleted_thread_ids"] == ["idle"]


def test_the_count_rule_trims_the_threads_that_live(call, file):
    def counts():
        connection = sqlite3.connect(file)
        sql = "SELECT thread_id, count(*) FROM checkpoints GROUP BY thread_id"
        found = dict(connection.execute(sql).fetchall())
        connection.close()
        return found

    before = counts()
    dry = call(*words(file, "--max-checkpoints", "2", "--dry-run"))
    assert "would prune 1 checkpoint;" in dry.out
    assert counts() == before
    live = call(*words(file, "--max-checkpoints", "2"))
    assert live.status == 0
    assert "pruned 1 checkpoint;" in live.out
    assert (before["fresh"], counts()["fresh"]) == (3, 2)


def test_a_rule_that_the_backend_cannot_follow_is_wrong_usage(call, file, monkeypatch):
    monkeypatch.setitem(_registered, SqliteSaver, GenericStrategy)
    answer = call(*words(file, "--max-checkpoints", "2"))
    assert answer.status == 2
    assert "max_checkpoints_per_thread is not supported" in answer.err
    assert answer.err.count("\n") == 1
