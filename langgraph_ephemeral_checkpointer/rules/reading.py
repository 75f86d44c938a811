"""From a TOML document to rules, or to a list of everything that is wrong with it. Pure."""

from __future__ import annotations

import difflib
import fnmatch
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from langgraph_ephemeral_checkpointer.common.kinds import (
    Option,
    declared,
    flag_in,
    value_shown,
)
from langgraph_ephemeral_checkpointer.options import SweepOptions
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.rules.model import DatabaseOptions, Problem, Rule, Rules
from langgraph_ephemeral_checkpointer.rules.patterns import bounded
from langgraph_ephemeral_checkpointer.rules.positions import KeyPath, line_of, lines_of_keys
from langgraph_ephemeral_checkpointer.strategies.registry import STORAGES, storage_named

BACKENDS = tuple(storage.name for storage in STORAGES)

Reader: TypeAlias = Callable[[Any], Any]


def read_toml(text: str) -> tuple[Rules, Sequence[Problem]]:
    """Read the text of a rules file.

    Returns:
        The rules, and what is wrong; the rules are of use only where that is nothing.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Rules(), [_not_toml(error, text)]
    reading = _Reading(document, lines_of_keys(text))
    rules = reading.rules()
    return rules, sorted(reading.problems, key=lambda problem: problem.line or 0)


def _not_toml(error: tomllib.TOMLDecodeError, text: str) -> Problem:
    place = re.search(r"line (\d+)", str(error))
    line = int(place[1]) if place else len(text.splitlines())
    return Problem(line, None, f"this is no TOML: {error}")


def text(value: object) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"must be a text that is not empty, not {value_shown(value)}")
    return value


def glob(value: object) -> re.Pattern[str]:
    """Read a pattern of ``*``, ``?`` and ``[...]`` for the whole text, case included."""
    return re.compile(rf"\A{fnmatch.translate(text(value))}")


def regex(value: object) -> re.Pattern[str]:
    """Read a regular expression, to be found anywhere in the text."""
    return bounded(text(value))


def backend(value: object) -> str:
    """Read the kind of a storage."""
    if value not in BACKENDS:
        raise ValueError(f"must be one of {', '.join(BACKENDS)}, not {value_shown(value)}")
    return str(value)


def variable(value: object) -> str:
    """Read the name of an environment variable; a connection string is not repeated."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text(value)):
        raise ValueError(
            "must be the name of an environment variable that holds the DSN, not the DSN itself"
        )
    return text(value)


def _table(where: type) -> dict[str, Option]:
    return {one.key: one for one in declared(where)}


_POLICY = _table(TTLPolicy)
_SWEEP = _table(SweepOptions)
_WHICH: dict[str, Reader] = {"match": glob, "regex": regex, "tenant": glob, "exempt": flag_in}
_RULE: dict[str, Reader | Option] = {**_WHICH, **_POLICY}
_DATABASE: dict[str, Reader] = {
    "backend": backend,
    "dsn_env": variable,
    "table": text,
    "schema": text,
}
_TABLES = ("policy", "sweep", "database", "rules")


class _Reading:
    def __init__(self, document: Mapping[str, Any], lines: Mapping[KeyPath, int]) -> None:
        self._document = document
        self._lines = lines
        self.problems: list[Problem] = []
        self.doubts: list[Problem] = []

    def rules(self) -> Rules:
        for key in self._document:
            if key not in _TABLES:
                self._complain((key,), f"no such table{_did_you_mean(key, _TABLES)}")
        policy = None
        if "policy" in self._document:
            policy = self._policy(("policy",), self._values(("policy",), _POLICY))
        sweep = SweepOptions(**self._values(("sweep",), _SWEEP))
        database = DatabaseOptions(**self._values(("database",), _DATABASE))
        rules = self._all_rules(database.backend)
        if not self.problems and policy is None and not rules:
            self.problems.append(
                Problem(None, None, "there is neither a [policy] nor any [[rules]]")
            )
        return Rules(policy, rules, sweep, database, tuple(self.doubts))

    def _all_rules(self, storage: str | None) -> tuple[Rule, ...]:
        found = self._document.get("rules", [])
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            self._complain(("rules",), "rules are tables of an array: write [[rules]] before each")
            return ()
        rules = [self._rule(index) for index in range(len(found))]
        if storage is not None and not storage_named(storage).has_tenants:
            for index, rule in enumerate(found):
                if "tenant" in rule:
                    self._complain(
                        ("rules", index, "tenant"), f"the backend {storage} has no tenants"
                    )
        return tuple(rule for rule in rules if rule is not None)

    def _rule(self, index: int) -> Rule | None:
        where: KeyPath = ("rules", index)
        raw, before = self._document["rules"][index], len(self.problems)
        values = self._values(where, _RULE)
        patterns = [key for key in ("match", "regex", "tenant") if key in raw]
        if not patterns:
            self._complain(where, "a rule needs match, regex or tenant to say which threads")
        if "match" in raw and "regex" in raw:
            self._complain((*where, "regex"), "a rule has match or regex, not both")
        limits = {key: value for key, value in values.items() if key in _POLICY}
        exempt = values.get("exempt", False)
        policy = None
        if exempt and limits:
            key = next(iter(limits))
            self._complain((*where, key), "has no meaning beside exempt = true")
        elif not exempt and len(self.problems) == before:
            policy = self._policy(where, limits)
        if len(self.problems) > before:
            return None
        return Rule(
            policy,
            values.get("match") or values.get("regex"),
            values.get("tenant"),
            line_of(where, self._lines),
        )

    def _policy(self, where: KeyPath, values: Mapping[str, Any]) -> TTLPolicy | None:
        if not values:
            one_of = ", ".join(_POLICY)
            exempt = ", or exempt = true" if where[0] == "rules" else ""
            if not any(
                problem.key.startswith(_name(where)) for problem in self.problems if problem.key
            ):
                self._complain(where, f"at least one of {one_of} is needed{exempt}")
            return None
        return TTLPolicy(**{_POLICY[key].name: value for key, value in values.items()})

    def _values(self, where: KeyPath, readers: Mapping[str, Reader | Option]) -> dict[str, Any]:
        table: Any = self._document.get(str(where[0]), {})
        for step in where[1:]:
            table = table[step]
        if not isinstance(table, dict):
            self._complain(where, f"must be a table: write [{where[0]}] above its keys")
            return {}
        values = {}
        for key, value in table.items():
            path = (*where, key)
            if key not in readers:
                self._complain(path, f"no such key{_did_you_mean(key, readers)}")
                continue
            reader = readers[key]
            try:
                if not isinstance(reader, Option):
                    values[key] = reader(value)
                    continue
                values[key] = reader.kind.from_file(value)
                if (doubt := reader.kind.doubt(value)) is not None:
                    self.doubts.append(Problem(line_of(path, self._lines), _name(path), doubt))
            except (ValueError, TypeError) as error:
                self._complain(path, str(error))
        return values

    def _complain(self, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(line_of(path, self._lines), _name(path), message))


def _name(path: KeyPath) -> str:
    name = ""
    for step in path:
        name += f"[{step + 1}]" if isinstance(step, int) else f".{step}" if name else step
    return name


def _did_you_mean(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f": there are {', '.join(known)}"
