"""The groups of tests: what each needs from the system, and who is in it.

Nobody marks a test by hand. A group is found by the fixtures that a test uses, by its
parameters, and by the code that it reaches; ``slow`` is what was slow when it was measured
(``pytest --measure``, which writes ``tests/slow.txt``).

What the system lacks is said at the top of a run, and its group is skipped. The variable
LGEC_REQUIRE names what must be there, separated by commas: then its absence ends the run.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.support import pgbouncer

SLOW_SECONDS = 2.0
SLOW = Path(__file__).parents[1] / "slow.txt"

SYSTEM = {"pgbouncer": lambda: shutil.which("pgbouncer")}
"""How to find what the suite neither brings nor starts from a wheel."""

SERVERS = ("postgres", "mariadb", "redis", "mongodb", "s3")
"""Groups whose tests use a fixture named after the group, with ``_server``."""

MODULES = {"processes": subprocess, "pgbouncer": pgbouncer}
"""Groups whose tests reach a module."""

_PARAMETERS = {
    "postgres": re.compile(r"\ba?pg-|postgres|\btenant\b", re.IGNORECASE),
    "pgbouncer": re.compile("pgbouncer"),
}
"""What the parameters say of a case of a group."""

_ON_REQUEST = {"request", "locate"}
"""Fixtures with which a test asks for a server only where a parameter says so."""


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = f"write down which tests take over {SLOW_SECONDS:g} s, in tests/slow.txt"
    parser.addoption("--measure", action="store_true", help=help_)


def pytest_configure(config: pytest.Config) -> None:
    required = {name for name in os.environ.get("LGEC_REQUIRE", "").split(",") if name}
    if unknown := required - SYSTEM.keys():
        known = ", ".join(SYSTEM)
        raise pytest.UsageError(f"LGEC_REQUIRE names {', '.join(unknown)}; it may name {known}")
    if lacking := required & set(_missing()):
        raise pytest.UsageError(f"LGEC_REQUIRE: not found on this system: {', '.join(lacking)}")


def pytest_report_header() -> list[str]:
    return [
        f"not found: {name}; its tests are skipped (LGEC_REQUIRE={name} makes that an error)"
        for name in _missing()
    ]


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow, missing = _slow(), _missing()
    functions = [item for item in items if isinstance(item, pytest.Function)]
    told = {(_bare(item), group) for item in functions for group in _by_parameters(item)}
    for item in functions:
        # Where parameters tell cases of a group apart, they decide.
        found = {group for group in _by_code(item) if (_bare(item), group) not in told}
        found |= _by_parameters(item) | _by_fixtures(item)
        if item.nodeid in slow:
            found.add("slow")
        for name in sorted(found):
            item.add_marker(name)
            if name in missing:
                item.add_marker(pytest.mark.skip(reason=f"{name} is not on this system"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.option.measure:
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
    slow = _slow() - seconds.keys()  # of what was not run now, what is known stays
    slow |= {name for name, took in seconds.items() if took > SLOW_SECONDS}
    SLOW.write_text("".join(f"{name}\n" for name in sorted(slow)))


def _slow() -> set[str]:
    return set(SLOW.read_text().splitlines()) if SLOW.exists() else set()


def _missing() -> list[str]:
    return [name for name, find in SYSTEM.items() if not find()]


def _bare(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _parameters(item: pytest.Function) -> str:
    return item.callspec.id if hasattr(item, "callspec") else ""


def _by_parameters(item: pytest.Function) -> set[str]:
    text = _parameters(item)
    return {
        group
        for group, pattern in _PARAMETERS.items()
        if (group != "postgres" or _ON_REQUEST & set(item.fixturenames)) and pattern.search(text)
    }


def _by_fixtures(item: pytest.Function) -> set[str]:
    names = set(item.fixturenames)
    found = {server for server in SERVERS if f"{server}_server" in names}
    return found | {"postgres"} if "own_server" in names else found


def _by_code(item: pytest.Function) -> Iterator[str]:
    names = item.fixturenames
    if "getfixturevalue" in _names(item.function.__code__) or "locate" in names:
        yield "postgres"
    reached = set(_reached(item.function))
    for name in names:
        for fixture in item._fixtureinfo.name2fixturedefs.get(name, ())[-1:]:
            reached |= _reached(fixture.func)
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, FunctionType):
                reached |= _reached(one)
    yield from (group for group, module in MODULES.items() if module in reached)


@functools.cache
def _reached(start: Any) -> frozenset[ModuleType]:
    """The modules that the code of the tests reaches from here by the names it uses."""
    found: set[ModuleType] = set()
    seen: set[int] = set()
    ahead = [start]
    while ahead:
        value = ahead.pop()
        if isinstance(value, ModuleType):
            found.add(value)
        elif getattr(value, "__module__", "").startswith("tests.") and id(value) not in seen:
            seen.add(id(value))
            found.add(sys.modules[value.__module__])
            ahead += _used(getattr(value, "__wrapped__", value))
    return frozenset(found)


def _used(value: Any) -> list[Any]:
    if isinstance(value, type):
        return list(vars(value).values())
    if not isinstance(value, FunctionType):
        return []
    names = _names(value.__code__)
    cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    modules = [value.__globals__[name] for name in names if name in value.__globals__]
    # Also what is looked up in a module of the tests, as in program.run().
    within = [
        getattr(module, name)
        for module in modules
        if isinstance(module, ModuleType) and module.__name__.startswith("tests.")
        for name in names
        if hasattr(module, name)
    ]
    return [*cells, *modules, *within]


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.cache
def _names(code: CodeType) -> frozenset[str]:
    inner = (_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return frozenset(code.co_names).union(*inner)
