"""Options of a sweep: declared once, and the same for a sweeper, a file and the command line."""

from __future__ import annotations

import inspect
import typing
from dataclasses import fields
from datetime import timedelta

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer import SweepOptions, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.cli.app import Program
from langgraph_ephemeral_checkpointer.common.kinds import declared
from langgraph_ephemeral_checkpointer.options import MoreArguments
from langgraph_ephemeral_checkpointer.rules.reading import read_toml
from tests.support.program import put

POLICY = TTLPolicy(idle_ttl_seconds=60)
VALUES = {"DURATION": ("2h", 7200), "N": ("7", 7), "PERCENT": ("12.5", 12.5), None: (None, True)}


def old_threads(*names):
    saver = InMemorySaver()
    put(saver, names, age_seconds=3600)
    return saver


def test_a_sweeper_takes_the_options_as_one_object():
    saver = old_threads("a", "b", "c")
    result = TTLSweeper(saver, POLICY, options=SweepOptions(max_deletes=2)).sweep()
    assert len(result.deleted_thread_ids) == 2
    refused = TTLSweeper(saver, POLICY, options=SweepOptions(max_delete_percent=50)).sweep()
    assert refused.refused


def test_arguments_and_options_are_put_together():
    options = SweepOptions(max_deletes=2)
    sweeper = TTLSweeper(old_threads("a", "b"), POLICY, options=options, max_delete_percent=50)
    assert sweeper.sweep().refused
    same = TTLSweeper(old_threads("a", "b", "c"), POLICY, options=options, max_deletes_per_sweep=2)
    assert len(same.sweep().deleted_thread_ids) == 2


def test_what_is_said_twice_and_differently_is_refused():
    with pytest.raises(TypeError, match="max_deletes_per_sweep is given twice"):
        TTLSweeper(
            InMemorySaver(), POLICY, options=SweepOptions(max_deletes=2), max_deletes_per_sweep=1
        )


@pytest.mark.parametrize("options", [{"max_deletes": 1}, 5, TTLPolicy(60)])
def test_options_of_another_type_are_refused(options):
    with pytest.raises(TypeError, match="options must be SweepOptions"):
        TTLSweeper(InMemorySaver(), POLICY, options=options)


def test_an_argument_that_is_misspelt_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'grace'"):
        TTLSweeper(InMemorySaver(), POLICY, grace=60)


def test_durations_may_be_timedeltas_and_are_read_as_seconds():
    assert SweepOptions(grace=timedelta(hours=1)).grace == 3600
    assert SweepOptions(interval=timedelta(minutes=1)).interval == 60
    assert SweepOptions() == SweepOptions(300, 500, None, None, False, None)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"grace": 0}, ValueError, "grace must be finite and > 0"),
        ({"grace": "1h"}, TypeError, "grace must be seconds"),
        ({"interval": None}, TypeError, "interval must be seconds"),
        ({"batch_size": None}, TypeError, "batch_size must be an int"),
        ({"max_deletes": 0}, ValueError, "max_deletes must be >= 1"),
        ({"max_deletes": True}, TypeError, "max_deletes must be an int"),
        ({"max_delete_percent": 101}, ValueError, "max_delete_percent must be > 0 and <= 100"),
        ({"coordinate": 1}, TypeError, "coordinate must be True or False"),
        ({"coordinate": None}, TypeError, "coordinate must be True or False"),
    ],
)
def test_a_bad_value_is_told_by_the_name_of_the_option(given, error, said):
    with pytest.raises(error, match=said):
        SweepOptions(**given)


@pytest.mark.parametrize("one", declared(SweepOptions), ids=lambda one: one.name)
def test_an_option_that_is_declared_is_one_of_the_sweeper_the_file_and_the_line(one):
    typed, value = VALUES[one.kind.metavar]
    arguments = {*inspect.signature(TTLSweeper).parameters, *typing.get_type_hints(MoreArguments)}
    assert one.again or one.argument in arguments
    raw = "true" if typed is None else f'"{typed}"' if one.kind.metavar == "DURATION" else typed
    rules, problems = read_toml(f"[policy]\nidle_ttl = 3600\n[sweep]\n{one.key} = {raw}\n")
    assert not problems
    assert getattr(rules.sweep, one.name) == value
    commands = ("run",) if one.again else ("run", "sweep")
    for name in commands:
        taken = Program.subcommands()[name].options()[one.key]
        assert taken.display_name == f"--{one.key.replace('_', '-')}"
        assert taken.help == one.help
        if typed is not None:
            assert taken.parser(typed) == value


@pytest.mark.parametrize("one", declared(TTLPolicy), ids=lambda one: one.name)
def test_a_rule_that_is_declared_is_one_of_the_policy_the_file_and_the_line(one):
    typed, value = VALUES[one.kind.metavar]
    raw = f'"{typed}"' if one.kind.metavar == "DURATION" else typed
    for text in (f"[policy]\n{one.key} = {raw}\n", f'[[rules]]\nmatch = "*"\n{one.key} = {raw}\n'):
        rules, problems = read_toml(text)
        assert not problems
        policy = rules.policy or rules.rules[0].policy
        assert policy == TTLPolicy(**{one.name: value})
    for name in ("status", "sweep", "run"):
        assert Program.subcommands()[name].options()[one.key].parser(typed) == value


def test_every_field_is_declared():
    for where in (SweepOptions, TTLPolicy):
        assert [one.name for one in declared(where)] == [one.name for one in fields(where)]
    assert all(one.words.count("{}") == 1 for one in declared(TTLPolicy))
