"""Options of the commands that sweep: their names, what they say first, and what is in doubt."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from psycopg.conninfo import conninfo_to_dict

from tests.support.program import dump, put, run, threads_in

ALL = {"idle", "fresh", "waiting", "ageless"}
RULES = '[policy]\nidle_ttl = "30d"\n[[rules]]\nmatch = "idle"\nidle_ttl = "1h30m"\n'


def on(name, file, *more):
    once = ["--once"] if name == "run" else []
    return [name, "--backend", "sqlite", "--dsn", str(file), *once, *more]


@pytest.mark.parametrize("name", ["sweep", "run"])
def test_max_deletes_bounds_a_sweep(call, file, name):
    words = on(name, file, "--idle-ttl", "1h", "--interrupted-ttl", "1h", "--json")
    answer = call(*words, "--max-deletes", "1")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["deleted_thread_ids"] == ["idle"]
    assert json.loads(answer.out)["deferred_count"] == 1


@pytest.mark.parametrize("word", [["--limit", "1"], ["--limit=1"], ["--limit"]], ids=" ".join)
def test_the_old_name_of_max_deletes_is_refused_with_the_new_one(call, file, word):
    answer = call(*on("sweep", file, "--idle-ttl", "1h", *word))
    assert answer.status == 2
    assert answer.err == "error: --limit is called --max-deletes now; see --help\n"
    assert threads_in(file) == ALL


def test_limit_of_status_is_another_thing_and_stays(call, file):
    answer = call("status", "--dsn", str(file), "--idle-ttl", "1h", "--limit", "2", "--json")
    assert answer.status == 0
    assert answer.out.count("\n") == 2


def test_a_dry_run_of_run_deletes_nothing_and_says_what_it_would(call, file):
    before = dump(file)
    answer = call(*on("run", file, "--idle-ttl", "1h", "--dry-run", "--json"))
    assert answer.status == 0, answer.err
    told = json.loads(answer.out)
    assert (told["dry_run"], told["deleted_thread_ids"]) == (True, ["idle"])
    first, *rest = answer.err.splitlines()
    assert first == "dry run: nothing is written"
    assert "would delete 1 thread" in rest[-1]
    assert dump(file) == before


@pytest.mark.parametrize("more", [[], ["--json"], ["--log-format", "json"]], ids=" ".join)
@pytest.mark.parametrize("name", ["sweep", "run"])
def test_the_first_message_names_the_rules_in_words(call, file, name, more):
    """Also before what was in doubt, and before what the storage cannot do."""
    words = on(name, file, "--idle-ttl", "7d", "--hard-age-ttl", "120", "--coordinate", *more)
    answer = call(*words)
    assert answer.status == 0, answer.err
    lines = answer.err.splitlines()
    first = "rules: every thread: deleted when idle for 7 days, deleted when 2 minutes old"
    if "--log-format" in more:
        told = [json.loads(line) for line in lines]
        assert (told[0]["message"], told[0]["event"]) == (first, "rules")
        assert [one["level"] for one in told[1:3]] == ["warning", "warning"]
        lines = [one["message"] for one in told]
    assert lines[0] == first
    assert "120 means 120 seconds; did you mean 120d?" in lines[1]
    assert "SqliteStrategy has no lock" in lines[2]


def test_the_rules_of_a_file_and_a_resolver_are_named_too(call, file, tmp_path, monkeypatch):
    (tmp_path / "first_words.py").write_text(
        "from langgraph_ephemeral_checkpointer import PolicyOverride\n"
        "def resolve(thread_id):\n    return PolicyOverride.USE_DEFAULT\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rules.toml").write_text(RULES)
    words = on("sweep", file, "--config", "rules.toml", "--resolver", "first_words:resolve")
    assert call(*words).err == (
        "rules: a resolver is asked first; line 3: deleted when idle for 1 hour 30 minutes; "
        "every other thread: deleted when idle for 30 days\n"
    )
    assert threads_in(file) == ALL - {"idle"}


def test_a_dry_sweep_names_no_rules_and_wrong_usage_is_one_line(call, file):
    dry = call(*on("sweep", file, "--idle-ttl", "1h", "--dry-run"))
    assert dry.err == "dry run: nothing was written\n"
    wrong = call(*on("sweep", file, "--idle-ttl", "7", "--nope"))
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--backend", "memory", "--idle-ttl", "7"],
        ["sweep", "--backend", "memory", "--idle-ttl", "7"],
        ["sweep", "--backend", "memory", "--idle-ttl=7", "--dry-run"],
        ["run", "--backend", "memory", "--idle-ttl", "1h", "--once", "--interval", "7"],
        ["purge-messages", "--backend", "memory", "--older-than", "7", "--dry-run"],
        ["orphans", "--backend", "memory", "--older-than", "7"],
        ["status", "--backend", "memory", "--forecast", "--at", "30d,7"],
    ],
    ids=" ".join,
)
def test_a_short_duration_without_a_unit_draws_one_warning(call, words):
    answer = call(*words)
    assert answer.status == 0
    said = [line for line in answer.err.splitlines() if "7 means 7 seconds" in line]
    assert len(said) == 1
    assert said[0].startswith("warning: --")
    assert "did you mean 7d?" in said[0]


def test_a_short_duration_of_a_file_draws_one_warning(call, file, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("[policy]\nidle_ttl = 7\n")
    answer = call(*on("sweep", file, "--config", str(path), "--dry-run"))
    assert answer.err.splitlines()[0] == (
        f"warning: {path}:2: policy.idle_ttl: 7 means 7 seconds; did you mean 7d? Write 7s if not"
    )
    assert answer.err.count("means") == 1


@pytest.mark.parametrize(
    ("typed", "meant"), [("1y", "365d"), ("1mo", "30d"), ("7 days", "7d"), ("7D", "7d")]
)
def test_a_duration_in_other_words_is_refused_with_the_right_spelling(call, file, typed, meant):
    answer = call(*on("sweep", file, "--idle-ttl", typed))
    assert answer.status == 2
    assert f"--idle-ttl: '{typed}' is no duration: write {meant}; see" in answer.err
    assert threads_in(file) == ALL


# --- a backend that the DSN tells


FORMS = ["{path}", "sqlite:///{path}", "SQLite:///{path}", "~/threads.db", "sqlite:///~/threads.db"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["line", "environment", "both"])
def test_the_backend_may_be_left_out_for_an_sqlite_file(call, file, monkeypatch, form, where):
    monkeypatch.setenv("HOME", str(file.parent))
    dsn = form.format(path=file)
    words = ["sweep", "--idle-ttl", "1h", "--json"]
    if where == "environment":
        monkeypatch.setenv("LGEC_DSN", dsn)
    else:
        words += ["--dsn", dsn] + (["--backend", "sqlite"] if where == "both" else [])
    answer = call(*words)
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["deleted_thread_ids"] == ["idle"]


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--idle-ttl", "1h"],
        ["orphans"],
        ["purge-messages", "--older-than", "1d"],
        ["setup"],
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_backend_may_leave_it_out(call, tmp_path, words):
    file = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        put(saver, ["one"])
    answer = call(*words, "--dsn", str(file))
    assert answer.status == 0, answer.err
    if words == ["setup"]:
        assert call("trash", "--dsn", str(file)).status == 0
        assert call("restore", "nobody", "--dsn", str(file)).status == 1


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg",
                                    "postgresql+asyncpg", "postgresql+psycopg2"])  # fmt: skip
def test_the_backend_may_be_left_out_for_a_url_of_postgres(call, pg_dsn, scheme):
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        put(saver, ["old"], age_seconds=7200)
    where = conninfo_to_dict(pg_dsn)
    dsn = f"{scheme}://{where['user']}@/{where['dbname']}?host={quote(where['host'], safe='')}"
    for words in ([], ["--backend", "postgres"]):
        answer = call("sweep", "--idle-ttl", "1h", "--json", "--dry-run", "--dsn", dsn, *words)
        assert answer.status == 0, answer.err
        assert json.loads(answer.out)["deleted_thread_ids"] == ["old"]


@pytest.mark.parametrize("content", [None, b"", b"no database, but long enough for one"])
def test_what_tells_no_backend_is_wrong_usage(call, tmp_path, content):
    path = tmp_path / "threads.db"
    if content is not None:
        path.write_bytes(content)
    for dsn in (str(path), "host=/tmp dbname=x password=hunter2", str(tmp_path), "mysql://a/b"):
        answer = call("sweep", "--idle-ttl", "1h", "--dsn", dsn)
        assert answer.status == 2
        assert "--backend is required, or backend under [database] in a rules file" in answer.err
        assert answer.err.count("\n") == 1
        assert "hunter2" not in answer.err
    assert path.exists() == (content is not None)


def test_a_missing_file_of_a_url_is_one_line_and_is_not_created(call, tmp_path):
    answer = call("sweep", "--idle-ttl", "1h", "--dsn", f"sqlite:///{tmp_path}/typo.db")
    assert (answer.status, answer.err.count("\n")) == (1, 1)
    assert "typo.db': no such file; nothing was created" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_tenants_are_never_guessed_from_a_dsn(call):
    answer = call(
        "sweep", "--idle-ttl", "1h", "--dsn", "postgresql://u:hunter2@h/d", "--tenant", "a"
    )
    assert answer.status == 2
    assert "--tenant is only for --backend tenant-postgres" in answer.err


def test_the_backend_of_the_line_and_of_the_file_come_before_the_dsn(call, file, tmp_path):
    assert call("sweep", "--backend", "memory", "--idle-ttl", "1h", "--dsn", str(file)).status == 0
    path = tmp_path / "rules.toml"
    path.write_text('[policy]\nidle_ttl = "1h"\n[database]\nbackend = "memory"\n')
    assert call("sweep", "--config", str(path), "--dsn", str(file)).status == 0
    assert threads_in(file) == ALL


def test_a_tilde_in_the_path_of_a_file_is_the_home(file, tmp_path):
    """The shell expands none that stands behind an equals sign."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "rules.toml").write_text('[policy]\nidle_ttl = "1h"\n')
    words = [f"--dsn={file}", "--config=~/rules.toml", "--audit-log=~/audit.jsonl"]
    done = run("sweep", *words, cwd=tmp_path, HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert (home / "audit.jsonl").read_text().count("\n") == 2
    assert run("check", "--config=~/rules.toml", cwd=tmp_path, HOME=str(home)).returncode == 0


def test_a_password_is_hidden_in_a_url_with_a_driver_too(call):
    answer = call("sweep", "--idle-ttl", "1h", "--dsn",
                  "postgresql+psycopg://u:hunter2@127.0.0.1:1/d?connect_timeout=2")  # fmt: skip
    assert answer.status == 1
    assert "hunter2" not in answer.err
