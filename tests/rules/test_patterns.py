"""A pattern of a rules file cannot hold a sweep up."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest

from langgraph_ephemeral_checkpointer import PolicyOverride
from langgraph_ephemeral_checkpointer.rules import RulesError, load_rules
from langgraph_ephemeral_checkpointer.rules.patterns import bounded, is_quick

SLOW = [
    "^(a+)+$",
    "(a*)*b",
    "^(a|aa)+$",
    "^(a?a)+$",
    "(x+x+)+y",
    "^((a+)b?)*$",
    "^(a{1,9}){2,20}$",
    "(?:a|b|ab)*c",
    ".*.*.*.*x",
    "^.*.*.*.*.*x",
    "^" + "a?" * 30 + "a" * 30,
    "^(?=(a+)+$)b",
]
QUICK = [
    "^(demo|trial)-",
    "^tmp[0-9]+$",
    "^org-[a-z-]+$",
    "^org-[a-z]++(-[a-z]++)*$",
    r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    "^(?:eu|us)-[0-9]+-.*$",
    "x",
    "(?i)^Test",
    "^(ab)*$",
    "^(demo|trial)*$",
    "^(?>a+)+b",
]


@pytest.mark.parametrize("text", SLOW)
def test_a_pattern_that_can_take_very_long_is_refused(text):
    with pytest.raises(ValueError, match="may take very long on some thread ids"):
        bounded(text)


@pytest.mark.parametrize("text", QUICK)
def test_an_ordinary_pattern_is_taken_and_quick(text):
    pattern = bounded(text)
    for letter in ("a", "-", "0", "ab"):
        thread_id = (letter * 250)[:249] + "!"
        assert is_quick(pattern, thread_id)
        began = time.monotonic()
        pattern.search(thread_id)
        assert time.monotonic() - began < 2


def test_a_glob_is_never_slow():
    pattern = re.compile(fnmatch.translate("*a*a*a*a*a*b"))
    assert is_quick(pattern, "a" * 5000)
    began = time.monotonic()
    assert not pattern.search("a" * 5000)
    assert time.monotonic() - began < 5


def test_the_file_is_refused_by_name_and_line(tmp_path):
    file = tmp_path / "ephemeral.toml"
    file.write_text('[policy]\nidle_ttl = "1d"\n[[rules]]\nregex = "^(a+)+$"\nexempt = true\n')
    with pytest.raises(RulesError, match=r"ephemeral.toml:4: .*regex.* may take very long"):
        load_rules(file)


def test_an_id_that_is_too_long_for_a_pattern_is_kept(tmp_path, caplog):
    file = tmp_path / "ephemeral.toml"
    file.write_text('[[rules]]\nregex = "x.*y.*z"\nidle_ttl = "1d"\n')
    rules = load_rules(file)
    assert rules.decide("x" * 5000) is PolicyOverride.EXEMPT
    assert "5000 characters is kept" in caplog.text
    assert rules.decide("xyz") is not PolicyOverride.EXEMPT
