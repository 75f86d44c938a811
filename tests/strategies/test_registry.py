"""Each saver gets its strategy by type, and what is no saver is refused with the remedy."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer import (
    TTLPolicy,
    TTLSweeper,
    UnsupportedCheckpointerError,
    register_strategy,
    strategies,
)
from langgraph_ephemeral_checkpointer.strategies import registry
from tests.support import backends, foreign, graphs

POLICY = TTLPolicy(60)
EXPECTED = {
    "memory": "MemoryStrategy",
    "sqlite": "SqliteStrategy",
    "aiosqlite": "AsyncSqliteStrategy",
    "pg-connection": "PostgresStrategy",
    "pg-pool": "PostgresStrategy",
    "pg-pipeline": "PostgresStrategy",
    "apg-connection": "AsyncPostgresStrategy",
    "apg-pool": "AsyncPostgresStrategy",
    "apg-pipeline": "AsyncPostgresStrategy",
    "foreign-sync": "GenericStrategy",
    "foreign-async": "GenericStrategy",
    "foreign-both": "GenericStrategy",
}


@pytest.fixture(autouse=True)
def _registrations_of_a_test_do_not_last(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.mark.parametrize(
    "backend", [(kind, "asweep") for kind in EXPECTED], ids="-".join, indirect=True
)
async def test_each_saver_gets_its_strategy(backend):
    strategy = backend.sweeper().strategy
    assert type(strategy) is getattr(strategies, EXPECTED[backend.kind])
    assert strategy.checkpointer is backend.saver


class Mine(InMemorySaver):
    pass


class Middle(Mine):
    pass


class Mixed(Middle, foreign.SyncForeignSaver):
    pass


@pytest.mark.parametrize(
    "base", [InMemorySaver, SqliteSaver, AsyncSqliteSaver, PostgresSaver, AsyncPostgresSaver]
)
def test_a_subclass_gets_the_strategy_of_its_class(base):
    names = {
        InMemorySaver: "MemoryStrategy",
        SqliteSaver: "SqliteStrategy",
        AsyncSqliteSaver: "AsyncSqliteStrategy",
        PostgresSaver: "PostgresStrategy",
        AsyncPostgresSaver: "AsyncPostgresStrategy",
    }
    subclass = type("Sub", (type("Between", (base,), {}),), {})
    saver = subclass.__new__(subclass)
    saver.conn = None
    assert type(registry.detect_strategy(saver)).__name__ == names[base]


def test_the_nearest_registered_class_counts_and_beats_a_built_in():
    class ForMine(strategies.MemoryStrategy):
        pass

    class ForMemory(strategies.MemoryStrategy):
        pass

    register_strategy(Mine, ForMine)
    assert type(TTLSweeper(Mine(), POLICY).strategy) is ForMine
    assert type(TTLSweeper(Middle(), POLICY).strategy) is ForMine
    assert type(TTLSweeper(InMemorySaver(), POLICY).strategy) is strategies.MemoryStrategy
    register_strategy(InMemorySaver, ForMemory)
    assert type(TTLSweeper(InMemorySaver(), POLICY).strategy) is ForMemory
    assert type(TTLSweeper(Middle(), POLICY).strategy) is ForMine


@pytest.mark.parametrize(
    "classes",
    [
        (object, strategies.MemoryStrategy),
        (InMemorySaver(), strategies.MemoryStrategy),
        (InMemorySaver, object),
        (InMemorySaver, strategies.MemoryStrategy(InMemorySaver())),
    ],
)
def test_registering_anything_else_is_a_type_error(classes):
    with pytest.raises(TypeError, match="must be a"):
        register_strategy(*classes)


def test_a_strategy_that_is_passed_is_used():
    saver = InMemorySaver()
    strategy = strategies.GenericStrategy(saver)
    assert TTLSweeper(saver, POLICY, strategy=strategy).strategy is strategy


def test_a_wrapper_of_this_package_is_looked_through():
    class Wrapper(foreign.SyncForeignSaver):
        @property
        def __retained__(self):
            return self.hidden

    saver = Wrapper()
    strategy = TTLSweeper(saver, POLICY).strategy
    assert type(strategy) is strategies.MemoryStrategy
    assert strategy.checkpointer is saver.hidden


class OnlyLists(BaseCheckpointSaver):
    def list(self, config, *, filter=None, before=None, limit=None):  # noqa: A002
        yield from ()


class ListsAndDeletes(OnlyLists):
    def delete_thread(self, thread_id):
        pass


@pytest.mark.parametrize("saver", [BaseCheckpointSaver(), OnlyLists()])
def test_a_saver_that_cannot_list_or_cannot_delete_is_refused(saver):
    with pytest.raises(UnsupportedCheckpointerError, match="subclass Strategy"):
        TTLSweeper(saver, POLICY)


def test_a_strategy_may_add_only_what_the_saver_lacks():
    class Deletes(strategies.GenericStrategy):
        def delete_thread(self, thread_id):
            raise AssertionError(thread_id)

    saver = OnlyLists()
    result = TTLSweeper(saver, POLICY, strategy=Deletes(saver)).sweep()
    assert result.active_thread_count == 0


async def test_async_methods_that_only_refuse_do_not_keep_asweep_from_working():
    class Refuses(foreign.SyncForeignSaver):
        async def aget_tuple(self, config):
            raise NotImplementedError("use the other one")

        async def alist(self, config, *, filter=None, before=None, limit=None):  # noqa: A002
            raise NotImplementedError("use the other one")
            yield

        async def adelete_thread(self, thread_id):
            raise NotImplementedError("use the other one")

    saver = Refuses()
    backend = backends.Backend("x", saver, "asweep", False, backends.MemoryStorage(saver.hidden))
    await backend.plant("t", 1_700_000_000)
    assert (await backend.sweep()).deleted_thread_ids == ["t"]
    assert backend.storage.threads() == set()


def test_a_saver_that_lists_only_single_threads_is_told_of_and_nothing_is_deleted():
    class Narrow(ListsAndDeletes):
        def list(self, config, *, filter=None, before=None, limit=None):  # noqa: A002
            raise ValueError("thread_id is required")
            yield

    with pytest.raises(Exception, match=r"cannot list.*nothing was deleted.*list_checkpoints"):
        TTLSweeper(Narrow(), POLICY).sweep()


@pytest.mark.parametrize("name", ["ShallowPostgresSaver", "AsyncShallowPostgresSaver"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_shallow_savers_are_refused_by_name(name):
    from langgraph.checkpoint.postgres import shallow

    cls = getattr(shallow, name)
    for one in (cls, type("Sub", (cls,), {})):
        with pytest.raises(UnsupportedCheckpointerError, match=rf"{name}.*use PostgresSaver"):
            TTLSweeper(one.__new__(one), POLICY)


@pytest.mark.parametrize(
    ("candidate", "hint"),
    [
        (lambda: SqliteSaver.from_conn_string(":memory:"), "with"),
        (lambda: AsyncSqliteSaver.from_conn_string(":memory:"), "async with"),
        (lambda: PostgresSaver.from_conn_string(""), "with"),
        (lambda: InMemorySaver, "pass an instance, not the class InMemorySaver"),
        (lambda: graphs.chat(InMemorySaver()), r"\.checkpointer"),
        (lambda: graphs.chat(None), "not CompiledStateGraph"),
        (lambda: None, "not NoneType"),
        (lambda: True, "not bool"),
        (lambda: "postgresql://me:hunter2@host/db", "not str"),
        (dict, "not dict"),
    ],
)
def test_what_is_no_saver_is_refused_with_the_remedy(candidate, hint):
    candidate = candidate()
    with pytest.raises(TypeError, match=hint) as caught:
        TTLSweeper(candidate, POLICY)
    assert "hunter2" not in str(caught.value)
    assert "must be a BaseCheckpointSaver" in str(caught.value)


def test_a_connection_or_a_pool_is_no_context_manager_of_from_conn_string():
    conn = sqlite3.connect(":memory:")
    pool = ConnectionPool("", open=False)
    for candidate, saver in ((conn, "SqliteSaver"), (pool, "PostgresSaver")):
        with pytest.raises(TypeError, match=saver) as caught:
            TTLSweeper(candidate, POLICY)
        assert "from_conn_string" not in str(caught.value)
    conn.close()


def test_a_count_rule_that_the_strategy_cannot_follow_is_refused_at_construction():
    with pytest.raises(ValueError, match="max_checkpoints_per_thread is not supported"):
        TTLSweeper(foreign.ForeignSaver(), TTLPolicy(max_checkpoints_per_thread=3))


def test_coordination_without_a_shared_lock_is_a_warning(caplog):
    TTLSweeper(InMemorySaver(), POLICY, enable_coordination=True)
    assert "enable_coordination has no effect for InMemorySaver" in caplog.text


BLOCKED = """
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {blocked!r} or name in {blocked!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Blocker())
    import langgraph_ephemeral_checkpointer as package
    from langgraph_ephemeral_checkpointer import strategies, types
    from langgraph.checkpoint.memory import InMemorySaver

    for name in package.__all__:
        getattr(package, name)
    sweeper = package.TTLSweeper(InMemorySaver(), package.TTLPolicy(60))
    assert sweeper.sweep().deleted_thread_ids == []
    for name, module in (("SqliteStrategy", "sqlite3"), ("PostgresStrategy", "psycopg")):
        try:
            getattr(strategies, name)
        except ImportError:
            print("missing", name)
        else:
            print("there", name)
"""


@pytest.mark.parametrize(
    ("blocked", "printed"),
    [
        ((), ["there SqliteStrategy", "there PostgresStrategy"]),
        (
            ("psycopg", "psycopg_pool", "langgraph.checkpoint.postgres"),
            ["there SqliteStrategy", "missing PostgresStrategy"],
        ),
        (
            ("aiosqlite", "langgraph.checkpoint.sqlite"),
            ["there SqliteStrategy", "there PostgresStrategy"],
        ),
        (
            ("aiosqlite", "langgraph.checkpoint.sqlite", "psycopg", "psycopg_pool"),
            ["there SqliteStrategy", "missing PostgresStrategy"],
        ),
    ],
    ids=["all", "no-postgres", "no-sqlite", "neither"],
)
def test_backends_that_are_not_installed_are_not_imported(blocked, printed):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(BLOCKED).format(blocked=blocked)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == printed


def test_nothing_of_a_backend_is_imported_before_it_is_asked_for():
    code = (
        "import sys, langgraph_ephemeral_checkpointer, langgraph_ephemeral_checkpointer.strategies;"
        "print([m for m in ('psycopg', 'psycopg_pool', 'aiosqlite') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
