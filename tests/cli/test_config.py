"""The rules file on the command line, with each kind of mistake, and what is merged how."""

from __future__ import annotations

import json
import sys

import pytest

from langgraph_ephemeral_checkpointer.cli.app import Program
from tests.support.program import run, threads_in

RULES = """
[policy]
idle_ttl = "1h"

[sweep]
batch_size = 10

[database]
backend = "sqlite"
dsn_env = "THREADS_FILE"

[[rules]]
match = "wait*"
interrupted_ttl = "1h"

[[rules]]
match = "idle"
exempt = true
"""
EVERY = ("status", "sweep", "run")


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "ephemeral.toml"
    path.write_text(RULES)
    return path


def test_one_file_drives_status_sweep_and_run(call, file, rules, monkeypatch):
    monkeypatch.setenv("THREADS_FILE", str(file))
    config = ["--config", str(rules)]
    told = [json.loads(line) for line in call("status", *config, "--json").out.splitlines()]
    reasons = {one["thread_id"]: one["reason"] for one in told}
    assert reasons == {"idle": None, "waiting": "interrupted_ttl", "fresh": None, "ageless": None}
    dry = json.loads(call("sweep", *config, "--json", "--dry-run").out)
    assert dry["deleted_thread_ids"] == ["waiting"]
    answer = call("run", *config, "--json", "--once")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["deleted_thread_ids"] == ["waiting"]
    assert threads_in(file) == {"idle", "fresh", "ageless"}


def test_rules_on_the_line_replace_the_policy_of_the_file(call, file, rules, monkeypatch):
    monkeypatch.setenv("THREADS_FILE", str(file))
    answer = call("sweep", "--config", str(rules), "--hard-age-ttl", "1ms", "--dry-run")
    assert answer.status == 2
    answer = call("sweep", "--config", str(rules), "--hard-age-ttl", "30m", "--dry-run", "--json")
    would = json.loads(answer.out)
    assert would["deleted_thread_ids"] == ["waiting"]
    assert would["kept"] == {"ageless": "age_unknown"}


def test_the_line_comes_before_the_file(call, file, rules):
    answer = call("sweep", "--config", str(rules), "--dsn", str(file), "--dry-run")
    assert answer.status == 0
    answer = call("sweep", "--config", str(rules), "--backend", "memory")
    assert "alive" in answer.out


@pytest.mark.parametrize("name", EVERY)
def test_a_bad_file_is_wrong_usage_named_by_line_and_key(call, file, rules, name):
    rules.write_text(RULES.replace("exempt", "exemt"))
    answer = call(name, "--config", str(rules), "--dsn", str(file))
    assert answer.status == 2
    assert f"{rules}:18: rules[2].exemt: no such key; did you mean exempt?" in answer.err
    assert answer.out == ""


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[database]", "[databse]"), "databse: no such table"),
        (('backend = "sqlite"', 'backend = "tenant-postgres"'), "--tenant NAME or"),
        (('match = "idle"', 'tenant = "a"'), "has no tenants"),
    ],
)
def test_what_the_command_cannot_do_is_wrong_usage(call, file, rules, name, change, said):
    rules.write_text(RULES.replace(*change))
    answer = call(name, "--config", str(rules), "--dsn", str(file))
    assert answer.status == 2
    assert said in answer.err


@pytest.mark.parametrize("name", EVERY)
def test_a_backend_that_nothing_tells_is_wrong_usage(call, rules, name):
    rules.write_text(RULES.replace('backend = "sqlite"', ""))
    answer = call(name, "--config", str(rules), "--dsn", "dbname=threads")
    assert answer.status == 2
    assert "--backend is required" in answer.err


@pytest.mark.parametrize("name", EVERY)
def test_rules_for_tenants_are_refused_where_nobody_knows_the_tenant(call, file, rules, name):
    rules.write_text('[policy]\nidle_ttl = "1h"\n[[rules]]\ntenant = "legal"\nexempt = true\n')
    more = ["--once"] if name == "run" else []
    words = ["--backend", "sqlite", "--dsn", str(file), "--config", str(rules)]
    answer = call(name, *words, *more)
    assert answer.status == 2
    assert "rules of the file name tenants" in answer.err
    assert "idle" in threads_in(file)


def test_the_variable_of_the_file_is_the_one_that_is_missed(call, rules):
    answer = call("sweep", "--config", str(rules))
    assert answer.status == 2
    assert "environment variable THREADS_FILE" in answer.err


def test_check_says_what_a_file_means(call, rules):
    answer = call("check", "--config", str(rules))
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "line 12: deleted when a human has not answered for 1 hour",
        "line 16: kept",
        "every other thread: deleted when idle for 1 hour",
    ]


def test_check_names_every_mistake_by_line_and_key_in_a_process(tmp_path, rules):
    rules.write_text(RULES.replace('"1h"', '"1x"').replace("[sweep]", "[sweeps]"))
    done = run("check", "--config", rules.name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert [line.split(": ")[1:3] for line in done.stderr.splitlines()] == [
        ["ephemeral.toml:3", "policy.idle_ttl"],
        ["ephemeral.toml:5", "sweeps"],
        ["ephemeral.toml:14", "rules[1].interrupted_ttl"],
    ]
    missing = run("check", "missing.toml", cwd=tmp_path)
    assert missing.returncode == 1
    assert missing.stderr == "error: missing.toml: cannot be read: No such file or directory\n"


def test_check_and_sweep_read_a_langgraph_json(call, file, tmp_path):
    path = tmp_path / "langgraph.json"
    path.write_text('{"checkpointer": {"ttl": {"default_ttl": 60, "sweep_limit": 1}}}')
    assert call("check", "--config", str(path)).out == (
        "every thread: deleted when idle for 1 hour, "
        "deleted when a human has not answered for 1 hour\n"
    )
    words = ["--backend", "sqlite", "--dsn", str(file), "--config", str(path)]
    swept = json.loads(call("sweep", *words, "--json").out)
    assert swept["deleted_thread_ids"] == ["idle"]
    assert swept["deferred_count"] == 1


RESOLVER = """
from langgraph_ephemeral_checkpointer import PolicyOverride, TTLPolicy

def resolve(thread_id):
    return PolicyOverride.EXEMPT if thread_id == "waiting" else PolicyOverride.USE_DEFAULT

async def later(thread_id):
    return PolicyOverride.EXEMPT

class rules:
    nothing = 5
"""


def test_a_resolver_in_code_is_asked_before_the_rules(file, rules, tmp_path):
    (tmp_path / "my_rules.py").write_text(RESOLVER)
    words = ["--config", str(rules), "--json", "--dry-run"]
    swept = run(
        *("sweep", *words, "--resolver", "my_rules:resolve"), cwd=tmp_path, THREADS_FILE=str(file)
    )
    assert swept.returncode == 0, swept.stderr
    assert json.loads(swept.stdout)["deleted_thread_ids"] == []
    without = run("sweep", *words, cwd=tmp_path, THREADS_FILE=str(file))
    assert json.loads(without.stdout)["deleted_thread_ids"] == ["waiting"]


@pytest.mark.parametrize(
    ("resolver", "said"),
    [
        ("my_rules", "not of the form module:function"),
        ("my_rules:", "not of the form"),
        ("my_rules_nowhere:resolve", "cannot be loaded: ModuleNotFoundError"),
        ("my_rules_2:nothing", "cannot be loaded: AttributeError"),
        ("my_rules_2:rules.nothing", "is no function"),
        ("my_rules_2:later", "is asynchronous"),
    ],
)
def test_a_resolver_that_cannot_be_used_is_wrong_usage(
    call, file, tmp_path, monkeypatch, resolver, said
):
    (tmp_path / "my_rules_2.py").write_text(RESOLVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["sweep", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h"]
    answer = call(*words, "--resolver", resolver)
    assert answer.status == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_the_brake_refuses_and_force_releases_it(call, file):
    words = ["sweep", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h"]
    brake = ["--max-delete-percent", "10"]
    answer = call(*words, *brake)
    assert answer.status == 1
    assert "error: the sweep was refused: the rules match 1 of 4 threads (25%)" in answer.err
    assert "idle" in threads_in(file)
    assert call(*words, *brake, "--force").status == 0
    assert "idle" not in threads_in(file)


def test_the_brake_of_the_file_counts_too(call, file, rules, monkeypatch):
    monkeypatch.setenv("THREADS_FILE", str(file))
    rules.write_text(RULES.replace("batch_size = 10", "max_delete_percent = 10"))
    assert call("sweep", "--config", str(rules)).status == 1
    assert call("sweep", "--config", str(rules), "--max-delete-percent", "50").status == 0


def test_messages_may_be_json(call, file, tmp_path):
    words = ["sweep", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h"]
    answer = call(*words, "--log-format", "json", "--max-delete-percent", "1", "--coordinate")
    rules, first, last = map(json.loads, answer.err.splitlines())
    assert rules["event"] == "rules"
    assert (first["level"], first["logger"]) == (
        "warning", "langgraph_ephemeral_checkpointer.sweeper",
    )  # fmt: skip
    assert last["level"] == "error"
    assert last["message"].startswith("the sweep was refused")
    assert last["time"].endswith("+00:00")


def test_the_audit_log_may_hash_ids(call, file, tmp_path, monkeypatch):
    words = ["sweep", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h"]
    log = tmp_path / "audit.jsonl"
    assert call(*words, "--hash-ids").status == 2
    monkeypatch.setenv("LGEC_HASH_KEY", "k")
    assert call(*words, "--audit-log", str(log), "--hash-ids").status == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["intent", "deleted"]
    assert "idle" not in {line["thread"] for line in lines}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-delete-percent", "0"], "> 0 and <= 100"),
        (["--max-delete-percent", "101"], "> 0 and <= 100"),
        (["--max-delete-percent", "half"], "no number of percent"),
        (["--max-delete-percent", "nan"], "no number of percent"),
        (["--config="], "it is empty"),
        (["--config", "missing.toml"], "cannot be read"),
        (["--audit-log="], "it is empty"),
        (["--log-format", "xml"], "none of text, json"),
        (["--force=yes"], "takes no value"),
    ],
)
def test_values_that_cannot_be_read_are_wrong_usage(call, words, said):
    answer = call("sweep", "--backend", "memory", "--idle-ttl", "1h", *words)
    assert answer.status == 2
    assert said in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interval", "0"], "greater than 0"),
        (["--metrics-port", "65536"], "no port"),
        (["--metrics-port", "-1"], "needs a value"),
        (["--unready-after", "0"], "whole number"),
        (["--max-deletes", "0"], "whole number"),
        (["--once", "--once"], "given twice"),
    ],
)
def test_wrong_usage_of_run(call, words, said):
    answer = call("run", "--backend", "memory", "--idle-ttl", "1h", *words)
    assert answer.status == 2
    assert said in answer.err


def test_every_command_that_judges_threads_takes_a_rules_file():
    for name in EVERY:
        assert {"config", "resolver"} <= set(Program.subcommands()[name].options())


def test_metrics_without_the_package_name_the_extra(call, file, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    words = ["run", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h", "--once"]
    answer = call(*words, "--metrics-port", "0")
    assert answer.status == 1
    assert "pip install 'langgraph-ephemeral-checkpointer[metrics]'" in answer.err


def test_a_file_in_the_current_folder_takes_the_place_of_no_installed_module(
    call, file, tmp_path, monkeypatch
):
    (tmp_path / "colorsys.py").write_text("raise SystemExit('planted')")
    (tmp_path / "rules_by_colour.py").write_text(
        "import colorsys\nfrom langgraph_ephemeral_checkpointer import TTLPolicy\n"
        "def resolve(thread_id):\n    return TTLPolicy(idle_ttl_seconds=1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [one for one in sys.path if one not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    words = ["status", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h"]
    answer = call(*words, "--resolver", "rules_by_colour:resolve")
    assert answer.status == 0, answer.err
