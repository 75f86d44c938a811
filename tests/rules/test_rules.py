"""The rules file: what it means, and what is told of each kind of mistake."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer import (
    PolicyOverride,
    TTLPolicy,
    TTLSweeper,
    policy_from_config,
)
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, trim_to
from langgraph_ephemeral_checkpointer.policy import IdleTrimPolicy
from langgraph_ephemeral_checkpointer.rules import RulesError, load_rules
from langgraph_ephemeral_checkpointer.rules.positions import lines_of_keys
from langgraph_ephemeral_checkpointer.rules.words import policy_in_words, rules_in_a_line
from tests.support import backends

DAY = 86_400

PRUNED = ["memory", "sqlite", "pg-connection"]

EXAMPLE = """\
# Everything a file can say.
[policy]
idle_ttl = "30d"
hard_age_ttl = 31536000
max_checkpoints = 20
interrupted_ttl = "1h30m"

[sweep]
interval = "5m"
batch_size = 100
max_deletes = 5000
max_delete_percent = 50
coordinate = true
grace = "1h"

[database]
backend = "tenant-postgres"
dsn_env = "CHECKPOINTS_DSN"
table = "agent_threads"
schema = "agents"

[[rules]]
match = "legal-*"
exempt = true

[[rules]]
tenant = "trial-*"
match = "demo-?"
idle_ttl = "1h"

[[rules]]
regex = "^tmp[0-9]+$"
hard_age_ttl = "1d"
"""


@pytest.fixture
def load(tmp_path):
    def load(text, name="ephemeral.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_rules(path)

    return load


def test_everything_a_file_can_say(load):
    rules = load(EXAMPLE)
    assert rules.policy == TTLPolicy(30 * DAY, 365 * DAY, 20, 5400)
    sweep = rules.sweep
    assert (sweep.interval, sweep.batch_size, sweep.max_deletes) == (300, 100, 5000)
    assert (sweep.max_delete_percent, sweep.coordinate, sweep.grace) == (50, True, 3600)
    database = rules.database
    assert (database.backend, database.dsn_env) == ("tenant-postgres", "CHECKPOINTS_DSN")
    assert (database.table, database.schema) == ("agent_threads", "agents")
    assert [rule.line for rule in rules.rules] == [22, 26, 31]


@pytest.mark.parametrize(
    ("thread_id", "tenant", "expected"),
    [
        ("legal-1", None, PolicyOverride.EXEMPT),
        ("legal-demo-1", "trial-x", PolicyOverride.EXEMPT),
        ("Legal-1", None, PolicyOverride.USE_DEFAULT),
        ("xlegal-1", None, PolicyOverride.USE_DEFAULT),
        ("legal-1\nmore", None, PolicyOverride.EXEMPT),
        ("demo-1", "trial-x", TTLPolicy(idle_ttl_seconds=3600)),
        ("demo-12", "trial-x", PolicyOverride.USE_DEFAULT),
        ("demo-1", "paying", PolicyOverride.USE_DEFAULT),
        ("demo-1", None, PolicyOverride.USE_DEFAULT),
        ("tmp77", "paying", TTLPolicy(hard_age_ttl_seconds=DAY)),
        ("tmp77x", None, PolicyOverride.USE_DEFAULT),
        ("", None, PolicyOverride.USE_DEFAULT),
    ],
)
def test_the_first_rule_that_matches_counts_and_replaces_the_policy_whole(
    load, thread_id, tenant, expected
):
    assert load(EXAMPLE).decide(thread_id, tenant) == expected


def test_without_a_policy_what_no_rule_matches_is_kept(load):
    rules = load('[[rules]]\nmatch = "tmp-*"\nidle_ttl = "1h"\n')
    assert rules.decide("other") is PolicyOverride.EXEMPT
    policy, resolver = rules.configured()
    assert resolver("other") is PolicyOverride.EXEMPT
    assert policy.idle_ttl_seconds > 1000 * 365 * DAY


def test_without_rules_there_is_no_resolver_to_slow_a_scan(load):
    assert load('[policy]\nidle_ttl = "1h"\n').configured().resolver is None


def test_rules_for_tenants_are_never_used_where_tenants_are_not_known(load):
    rules = load(EXAMPLE)
    with pytest.raises(ValueError, match="current_tenant"):
        rules.configured()
    tenant = "trial-1"
    _, resolver = rules.configured(lambda: tenant)
    assert resolver("demo-1") == TTLPolicy(idle_ttl_seconds=3600)
    tenant = "paying"
    assert resolver("demo-1") is PolicyOverride.USE_DEFAULT


MISTAKES = {
    "no TOML": ("[policy\nidle_ttl = 1", 1, None, "this is no TOML"),
    "a word without quotes": ("[policy]\nidle_ttl = 7d", 2, None, "this is no TOML"),
    "a key twice": ('[policy]\nidle_ttl = "1d"\nidle_ttl = "2d"', 3, None, "this is no TOML"),
    "an unknown table": ('[policies]\nidle_ttl = "7d"', 1, "policies", "did you mean policy?"),
    "an unknown key": ('[policy]\n\nidle = "7d"', 3, "policy.idle", "did you mean idle_ttl?"),
    "an unknown key of a rule": (
        '[[rules]]\nmatch = "*"\nexempt = true\n[[rules]]\nmatch = "*"\nidle_tll = "1d"',
        6, "rules[2].idle_tll", "did you mean idle_ttl?",
    ),
    "no duration": ('[policy]\nidle_ttl = "soon"', 2, "policy.idle_ttl", "'soon' is no duration"),
    "a duration in other words": (
        '[policy]\nidle_ttl = "7 days"', 2, "policy.idle_ttl", "write 7d",
    ),
    "a duration of years": ('[policy]\nidle_ttl = "1y"', 2, "policy.idle_ttl", "write 365d"),
    "an empty duration": ('[policy]\nidle_ttl = ""', 2, "policy.idle_ttl", "is no duration"),
    "a duration of 0": ("[policy]\nidle_ttl = 0", 2, "policy.idle_ttl", "> 0"),
    "a negative duration": ("[policy]\nidle_ttl = -5", 2, "policy.idle_ttl", "> 0"),
    "an endless duration": ("[policy]\nidle_ttl = inf", 2, "policy.idle_ttl", "finite"),
    "a duration that is a flag": ("[policy]\nidle_ttl = true", 2, "policy.idle_ttl", "bool"),
    "a duration that is a date": (
        "[policy]\nidle_ttl = 2026-01-01", 2, "policy.idle_ttl", "not date",
    ),
    "a count of 0": ("[policy]\nmax_checkpoints = 0", 2, "policy.max_checkpoints", ">= 1"),
    "a count that is no int": (
        "[policy]\nmax_checkpoints = 2.5", 2, "policy.max_checkpoints", "whole number",
    ),
    "a count that is text": (
        '[policy]\nmax_checkpoints = "20"', 2, "policy.max_checkpoints", "whole number",
    ),
    "an empty policy": ("\n[policy]\n", 2, "policy", "at least one of idle_ttl"),
    "a policy that is no table": ('policy = "7d"', 1, "policy", "must be a table"),
    "an empty file": ("", None, None, "neither a [policy] nor any [[rules]]"),
    "only a sweep": ('[sweep]\ninterval = "5m"', None, None, "neither a [policy]"),
    "a share of 0": (
        "[policy]\nidle_ttl = 1\n[sweep]\nmax_delete_percent = 0",
        4, "sweep.max_delete_percent", "> 0",
    ),
    "a share above all": (
        "[policy]\nidle_ttl = 1\n[sweep]\nmax_delete_percent = 101",
        4, "sweep.max_delete_percent", "<= 100",
    ),
    "a flag that is text": (
        '[policy]\nidle_ttl = 1\n[sweep]\ncoordinate = "yes"',
        4, "sweep.coordinate", "true or false",
    ),
    "no backend": (
        '[policy]\nidle_ttl = 1\n[database]\nbackend = "mysql"',
        4, "database.backend", "one of memory, sqlite",
    ),
    "a DSN for the name of a variable": (
        '[policy]\nidle_ttl = 1\n[database]\ndsn_env = "postgresql://u:hunter2@h/d"',
        4, "database.dsn_env", "not the DSN itself",
    ),
    "a DSN of its own": (
        '[policy]\nidle_ttl = 1\n[database]\ndsn = "postgresql://u:hunter2@h/d"',
        4, "database.dsn", "no such key",
    ),
    "an empty schema": (
        '[policy]\nidle_ttl = 1\n[database]\nschema = ""', 4, "database.schema", "not empty",
    ),
    "rules that are one table": (
        '[rules]\nmatch = "*"\nexempt = true', 1, "rules", "write [[rules]]",
    ),
    "a rule that matches nothing": (
        '[policy]\nidle_ttl = 1\n\n[[rules]]\nexempt = true', 4, "rules[1]", "match, regex or",
    ),
    "a rule without a policy": (
        '\n[[rules]]\nmatch = "*"', 2, "rules[1]", "or exempt = true",
    ),
    "a rule that is not exempt and no more": (
        '[[rules]]\nmatch = "*"\nexempt = false', 1, "rules[1]", "or exempt = true",
    ),
    "an exempt rule with a policy": (
        '[[rules]]\nmatch = "*"\nexempt = true\nidle_ttl = "7d"',
        4, "rules[1].idle_ttl", "beside exempt",
    ),
    "a rule with both patterns": (
        '[[rules]]\nmatch = "*"\nregex = "x"\nexempt = true', 3, "rules[1].regex", "not both",
    ),
    "an empty pattern": (
        '[[rules]]\nmatch = ""\nexempt = true', 2, "rules[1].match", "not empty",
    ),
    "no regular expression": (
        '[[rules]]\nregex = "("\nexempt = true', 2, "rules[1].regex", "no regular expression",
    ),
    "tenants where there are none": (
        '[database]\nbackend = "postgres"\n[[rules]]\ntenant = "*"\nexempt = true',
        4, "rules[1].tenant", "no tenants",
    ),
    "an inline table": ('policy = {idle_ttl = "x"}', 1, "policy.idle_ttl", "no duration"),
    "a dotted key": ('\npolicy.idle_ttl = "x"', 2, "policy.idle_ttl", "no duration"),
    "rules in an array": (
        'rules = [\n  {match = "a", exempt = true},\n  {match = "b"},\n]',
        1, "rules[2]", "or exempt = true",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "key", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_by_line_and_key(load, text, line, key, said):
    with pytest.raises(RulesError) as caught:
        load(text)
    assert [(one.line, one.key) for one in caught.value.problems] == [(line, key)]
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
    if line is not None:
        assert f"ephemeral.toml:{line}: " in str(caught.value)


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(load):
    with pytest.raises(RulesError) as caught:
        load('[sweep]\nnope = 1\n[policy]\nidle_ttl = "x"\n[[rules]]\nmatch = 5\nmatc = 1\n')
    assert [one.line for one in caught.value.problems] == [2, 4, 6, 7]


def test_a_short_duration_without_a_unit_is_logged_by_line_and_key(load, caplog):
    """It is no mistake: seconds are what it says."""
    rules = load(
        '[policy]\nidle_ttl = 7\n[sweep]\ngrace = "90"\ninterval = "90s"\n'
        '[[rules]]\nmatch = "*"\nhard_age_ttl = 3600\ninterrupted_ttl = 0.5\n'
    )
    assert rules.policy.idle_ttl_seconds == 7
    said = [one.getMessage().partition("ephemeral.toml:")[2] for one in caplog.records]
    assert said == [
        "2: policy.idle_ttl: 7 means 7 seconds; did you mean 7d? Write 7s if not",
        "4: sweep.grace: 90 means 90 seconds; did you mean 90d? Write 90s if not",
        "9: rules[1].interrupted_ttl: 0.5 means 0.5 seconds; did you mean 0.5d? Write 0.5s if not",
    ]


def test_a_policy_is_said_in_words():
    assert policy_in_words(TTLPolicy(7 * DAY, 90 * DAY, 20, 5400)) == (
        "deleted when idle for 7 days, deleted when 90 days old, trimmed to 20 checkpoints, "
        "deleted when a human has not answered for 1 hour 30 minutes"
    )
    assert policy_in_words(None) == "kept"
    assert (
        policy_in_words(IdleTrimPolicy(max_checkpoints_per_thread=1, trim_after_idle_seconds=3600))
        == "trimmed to 1 checkpoints when idle for 1 hour"
    )


def test_many_rules_are_said_in_a_line_of_bounded_length(load):
    text = "".join(f'[[rules]]\nmatch = "{n}"\nexempt = true\n' for n in range(100))
    assert rules_in_a_line(load(text)) == (
        "line 1: kept; line 4: kept; line 7: kept; line 10: kept; line 13: kept; 95 more rules; "
        "every other thread: kept"
    )


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b'[policy]\nidle_ttl = "\xff"')
    for name in ("missing.toml", "latin.toml", ".", "nul\0.toml"):
        with pytest.raises(RulesError, match="cannot be read"):
            load_rules(f"{tmp_path}/{name}")


def test_lines_are_found_behind_values_of_many_lines(load):
    text = (
        'a = """\n[policy]\nidle_ttl = 1\n"""\nb = [\n 1,\n 2,\n]\n\n[policy] # c\n"idle_ttl" = 1'
    )
    lines = lines_of_keys(text)
    assert (lines["a",], lines["b",], lines["policy",]) == (1, 5, 10)
    assert lines["policy", "idle_ttl"] == 11


_KEYS = st.sampled_from(["idle_ttl", "match", "nope", "exempt", "max_checkpoints"])
_VALUES = st.sampled_from(['"1d"', "5", "true", '"*"', "[1,\n2]", '"""\n[x]\n"""', "{a = 1}"])
_HEADS = st.sampled_from(["[policy]", "[sweep]", "[[rules]]", "[other.deep]", "# note", ""])


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.tuples(_HEADS, st.dictionaries(_KEYS, _VALUES, max_size=3)), max_size=5))
def test_any_file_is_read_or_refused_by_name(blocks):
    """No text makes anything but rules or problems, and each problem of a key has its line."""
    from langgraph_ephemeral_checkpointer.rules.reading import read_toml

    text = "\n".join(
        "\n".join([head, *(f"{key} = {value}" for key, value in pairs.items())])
        for head, pairs in blocks
    )
    _, problems = read_toml(text)
    for problem in problems:
        if problem.key is not None:
            assert problem.line is not None
            last = problem.key.rpartition(".")[2].partition("[")[0]
            assert last in text.splitlines()[problem.line - 1]


# --- langgraph.json


def platform(**ttl):
    document = {"graphs": {}, "checkpointer": {"ttl": ttl}, "store": {"ttl": {"default_ttl": 1}}}
    return json.dumps(document, indent=2)


def test_a_langgraph_json_means_what_it_means_on_the_platform(load):
    rules = load(
        platform(strategy="delete", default_ttl=60, sweep_interval_minutes=2, sweep_limit=7),
        "langgraph.json",
    )
    assert rules.policy == TTLPolicy(idle_ttl_seconds=3600, interrupted_ttl_seconds=3600)
    assert (rules.sweep.interval, rules.sweep.max_deletes) == (120, 7)
    rules = load(platform(default_ttl=0.5), "langgraph.json")
    assert rules.policy.idle_ttl_seconds == 30
    assert (rules.sweep.interval, rules.sweep.max_deletes) == (300, 1000)
    rules = load(platform(strategy="keep_latest", default_ttl=60), "langgraph.json")
    assert rules.policy == IdleTrimPolicy(
        max_checkpoints_per_thread=1, trim_after_idle_seconds=3600
    )


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("{\n", 2, "no JSON"),
        ("[]", None, "no checkpointer.ttl"),
        ('{"checkpointer": {}}', 1, "nothing ever expires"),
        (platform(strategy="delete"), 4, "nothing ever expires"),
        (platform(strategy="archive", default_ttl=1), 5, "delete, keep_latest"),
        (platform(default_ttl="30d"), 5, "minutes"),
        (platform(default_ttl=0), 5, "minutes"),
        (platform(default_ttl=1, sweep_interval_minutes=-1), 6, "minutes"),
        (platform(default_ttl=1, sweep_limit=0), 6, "whole number"),
    ],
)
def test_a_mistake_in_a_langgraph_json_is_told_by_line(load, text, line, said):
    with pytest.raises(RulesError, match=said) as caught:
        load(text, "langgraph.json")
    assert [one.line for one in caught.value.problems] == [line]


@pytest.mark.parametrize(
    "backend",
    [one for one in backends.ONE_EACH if one[0] in PRUNED],
    indirect=True,
    ids="-".join,
)
async def test_keep_latest_trims_only_threads_that_are_past_the_ttl(backend, load, tmp_path):
    now = time.time()
    for age in (5, 4, 3):
        await backend.put("quiet", now - age * DAY)
        await backend.put("busy", now - (age - 3) * DAY)
    load(platform(strategy="keep_latest", default_ttl=24 * 60), "langgraph.json")
    policy, resolver = policy_from_config(tmp_path / "langgraph.json")
    sweeper = TTLSweeper(backend.saver, policy, policy_resolver=resolver)
    result = await backend.sweep(sweeper)
    assert (result.deleted_thread_ids, result.errors) == ([], {})
    assert result.pruned_checkpoint_count == 2
    assert len(backend.storage.rows("busy")["checkpoints"]) == 3


async def test_a_sweep_by_a_file_takes_what_its_rules_say(load, tmp_path):
    from langgraph.checkpoint.memory import InMemorySaver

    from tests.support.program import put

    saver = InMemorySaver()
    put(saver, ["legal-1", "tmp-1", "chat-1"], age_seconds=2 * DAY)
    load('[policy]\nidle_ttl = "30d"\n[[rules]]\nmatch = "legal-*"\nexempt = true\n'
         '[[rules]]\nmatch = "tmp-*"\nidle_ttl = "1h"\n')  # fmt: skip
    policy, resolver = policy_from_config(tmp_path / "ephemeral.toml")
    result = TTLSweeper(saver, policy, policy_resolver=resolver).sweep()
    assert result.deleted_thread_ids == ["tmp-1"]


@pytest.mark.parametrize(
    ("newest_at", "roots", "kept"),
    [(100, 5, 1), (939, 5, 1), (940, 5, None), (1000, 5, None), (100, 1, None), (None, 5, None)],
)
def test_a_thread_is_trimmed_once_it_is_past_the_ttl(newest_at, roots, kept):
    policy = IdleTrimPolicy(max_checkpoints_per_thread=1, trim_after_idle_seconds=60)
    facts = ThreadFacts("t", newest_at, newest_at, roots, roots)
    assert trim_to(facts, policy, 1000) == kept


@pytest.mark.parametrize(
    "arguments", [{}, {"trim_after_idle_seconds": 5}, {"max_checkpoints_per_thread": 1}]
)
def test_a_trim_after_idleness_needs_both_of_its_numbers(arguments):
    with pytest.raises((ValueError, TypeError)):
        IdleTrimPolicy(**arguments)
