"""What can be imported from where, with and without the optional packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

import langgraph_ephemeral_checkpointer as package
from langgraph_ephemeral_checkpointer import errors, retention, strategies, testing, types
from langgraph_ephemeral_checkpointer.metrics import SweepMetrics

# What users import: a name that leaves one of these lists is a change for them.
PROMISED = {
    package: """
        AsyncTenantPostgresSaver AuditError AuditLog CrossTenantError Forecast HistoryNeededError
        KeepReason NotInTrashError NotSetUpError OnAfterDelete OnBeforeDelete OnSweepComplete
        Orphan PolicyOverride PolicyResolver RetentionError RowSecurityError RulesError
        SchemaMismatchError SchemaMissingError ScopeLostError StorageError
        StorageUnavailableError SweepResult TTLPolicy TTLSweeper TenantError
        TenantPostgresSaver TenantRequiredError TenantResolutionError ThreadDeletedError
        ThreadExistsError ThreadLivesAgainError ThreadMovedError ThreadStatus
        TrashNotEmptyError TrashedThread UnsupportedCheckpointerError aforecast
        athread_statuses errors forecast metrics policy_from_config register_strategy retention
        strategies tenancy testing thread_statuses types
    """,
    strategies: """
        AsyncPostgresStrategy AsyncSqliteStrategy AsyncTenantPostgresStrategy GenericStrategy
        MemoryStrategy Outcome Page PostgresStrategy PruneOutcome Recheck Size SqliteStrategy
        Strategy TenantPostgresStrategy ThreadFacts Wanted detect_strategy register_strategy
        time_of_id waits_for_human
    """,
    retention: """
        OnBeforeTrim PurgeResult RetainedCheckpointer apurge_messages oldest_message_time
        purge_messages stamp_messages trim_messages
    """,
    testing: """
        BrokenContractError ContractReport StrategyContract acheck_strategy asave_thread
        check_strategy checkpoint_id_at save_thread
    """,
    types: """
        KeepReason OnAfterDelete OnBeforeDelete OnSweepComplete PolicyOverride PolicyResolver
        SweepResult TTLPolicy
    """,
}

ERRORS = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.RetentionError)
]

_WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("psycopg", "psycopg_pool", "aiosqlite"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""


def _without_drivers(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT + code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("module", PROMISED, ids=lambda module: module.__name__)
def test_every_promised_name_is_there(module):
    assert not [name for name in PROMISED[module].split() if not hasattr(module, name)]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_can_be_imported_from_the_package(name):
    assert getattr(package, name) is getattr(errors, name)
    assert name in package.__all__


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (package, "TenantPostgresSaver"),
        (package, "AsyncTenantPostgresSaver"),
        (strategies, "AsyncSqliteStrategy"),
        (strategies, "PostgresStrategy"),
        (strategies, "AsyncTenantPostgresStrategy"),
    ],
)
def test_names_that_need_an_optional_package_are_there_and_are_listed(module, name):
    assert name in dir(module)
    assert getattr(module, name).__name__ == name


def test_a_name_that_is_not_there_is_an_attribute_error():
    for module in (package, strategies):
        with pytest.raises(AttributeError, match="has no attribute 'Sweper'"):
            _ = module.Sweper


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("from langgraph_ephemeral_checkpointer import TenantPostgresSaver", "postgres"),
        ("from langgraph_ephemeral_checkpointer.strategies import PostgresStrategy", "postgres"),
    ],
)
def test_a_name_whose_package_is_missing_tells_how_to_install_it(statement, remedy):
    told = _without_drivers(statement)
    assert told.returncode == 1
    assert f"pip install 'langgraph-ephemeral-checkpointer[{remedy}]'" in told.stderr


def test_all_names_can_be_imported_where_no_driver_is_installed():
    told = _without_drivers(
        "from langgraph_ephemeral_checkpointer import *\n"
        "from langgraph_ephemeral_checkpointer.strategies import *\n"
        "print(TTLSweeper.__name__, Strategy.__name__)\n"
    )
    assert (told.stdout, told.stderr) == ("TTLSweeper Strategy\n", "")


def test_the_package_loads_nothing_before_it_is_asked_for():
    told = _without_drivers(
        "import langgraph_ephemeral_checkpointer as package\n"
        "assert not [name for name in sys.modules if name.startswith('langgraph.')]\n"
        "print(package.errors.StorageError.__name__, package.TTLPolicy(60).idle_ttl_seconds)\n"
    )
    assert (told.stdout, told.stderr) == ("StorageError 60\n", "")


def test_every_module_can_be_the_first_that_is_imported():
    code = (
        "import importlib, pkgutil, sys\n"
        f"import {package.__name__} as package\n"
        "prefix = f'{package.__name__}.'\n"
        "for module in [*pkgutil.walk_packages(package.__path__, prefix)]:\n"
        "    for name in [name for name in sys.modules if name.startswith(prefix)]:\n"
        "        del sys.modules[name]\n"
        "    importlib.import_module(module.name)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stderr == ""


@pytest.mark.parametrize("name", package.__all__)
def test_a_public_name_is_found_where_its_module_has_it(name):
    value = getattr(package, name)
    assert name in dir(package)
    if isinstance(value, type):
        assert value.__name__ == name


def test_an_error_without_a_docstring_names_itself():
    class Mine(errors.RetentionError):
        pass

    assert str(Mine()) == "Mine"
    assert str(Mine("told")) == "told"


def test_it_works_without_docstrings():
    code = (
        "from langgraph.checkpoint.memory import InMemorySaver\n"
        "from langgraph_ephemeral_checkpointer import TenantRequiredError\n"
        "from langgraph_ephemeral_checkpointer.testing import check_strategy\n"
        "print(len(check_strategy(InMemorySaver).passed) > 0, TenantRequiredError())\n"
    )
    told = subprocess.run(
        [sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=False
    )
    assert (told.stdout, told.stderr) == ("True TenantRequiredError\n", "")
    helped = subprocess.run(
        [sys.executable, "-OO", "-m", package.__name__, "help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "\n  sweep\n" in helped.stdout


def test_metrics_without_their_package_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"^SweepMetrics needs .*checkpointer\[metrics\]"):
        SweepMetrics()
