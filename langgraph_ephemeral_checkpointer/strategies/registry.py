"""The table of storages: which strategy sweeps which saver, and how each storage is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.errors import UnsupportedCheckpointerError
from langgraph_ephemeral_checkpointer.strategies.base import Strategy

_PACKAGE = "langgraph_ephemeral_checkpointer"
_HERE = f"{_PACKAGE}.strategies"


@dataclass(frozen=True, slots=True)
class Storage:
    """One kind of storage. A path is ``module:name`` and imported when it is needed.

    Attributes:
        name: What ``--backend`` calls it.
        strategies: The path of the strategy's class, by the dotted name of the saver's class.
        opener: The path of an ``opening.Opener``, which the command line opens it by.
        pool: The path of an ``opening.Pool``, for a process that sweeps again and again; None:
            it is opened anew for each sweep.
        extra: The extra of this package that brings what it needs; None: nothing.
        needs_dsn: Whether the command line has to be told where it is.
        has_tenants: Whether the command line takes ``--table``, ``--schema`` and ``--tenant``.
    """

    name: str
    strategies: Mapping[str, str]
    opener: str
    pool: str | None = None
    extra: str | None = None
    needs_dsn: bool = True
    has_tenants: bool = False


# By name, so that what is not installed is never imported: a saver of that type cannot exist then.
STORAGES: tuple[Storage, ...] = (
    Storage(
        name="memory",
        strategies={
            "langgraph.checkpoint.memory.InMemorySaver": f"{_HERE}.memory.strategy:MemoryStrategy"
        },
        opener=f"{_HERE}.memory.open:open_memory",
        needs_dsn=False,
    ),
    Storage(
        name="sqlite",
        strategies={
            "langgraph.checkpoint.sqlite.SqliteSaver": f"{_HERE}.sqlite.strategy:SqliteStrategy",
            "langgraph.checkpoint.sqlite.aio.AsyncSqliteSaver": (
                f"{_HERE}.sqlite.strategy:AsyncSqliteStrategy"
            ),
        },
        opener=f"{_HERE}.sqlite.open:open_sqlite",
        extra="sqlite",
    ),
    Storage(
        name="postgres",
        strategies={
            "langgraph.checkpoint.postgres.PostgresSaver": (
                f"{_HERE}.postgres.strategy:PostgresStrategy"
            ),
            "langgraph.checkpoint.postgres.aio.AsyncPostgresSaver": (
                f"{_HERE}.postgres.strategy:AsyncPostgresStrategy"
            ),
        },
        opener=f"{_HERE}.postgres.open:open_postgres",
        pool=f"{_HERE}.postgres.open:pool_postgres",
        extra="postgres",
    ),
    Storage(
        name="tenant-postgres",
        strategies={
            f"{_PACKAGE}.tenancy.saver.TenantPostgresSaver": (
                f"{_HERE}.tenant.strategy:TenantPostgresStrategy"
            ),
            f"{_PACKAGE}.tenancy.aio.AsyncTenantPostgresSaver": (
                f"{_HERE}.tenant.strategy:AsyncTenantPostgresStrategy"
            ),
        },
        opener=f"{_HERE}.tenant.open:open_tenants",
        extra="postgres",
        has_tenants=True,
    ),
)
"""Every storage of this package: a row of this table, and a folder beside this module."""

_REFUSED = {
    f"langgraph.checkpoint.postgres.shallow.{name}": name
    for name in ("ShallowPostgresSaver", "AsyncShallowPostgresSaver")
}
_AWS = "langgraph_checkpoint_aws.checkpoint"
_CASSANDRA = "langgraph_checkpoint_cassandra"
_LISTS_NOTHING = {
    f"{_AWS}.valkey.saver.ValkeySaver",
    f"{_AWS}.valkey.async_saver.AsyncValkeySaver",
    f"{_AWS}.valkey.agentcore.saver.AgentCoreValkeySaver",
    f"{_AWS}.bedrock_sessions.saver.BedrockSessionSaver",
    f"{_AWS}.bedrock_sessions.async_saver.AsyncBedrockSessionSaver",
    f"{_CASSANDRA}.cassandra_saver.CassandraSaver",
    f"{_CASSANDRA}.cassandra_saver_async.AsyncCassandraSaver",
}
"""Savers whose ``list(None)`` gives nothing, without an error, whatever is stored."""
_DRIVERS = {
    "sqlite3": "SqliteSaver",
    "aiosqlite": "AsyncSqliteSaver",
    "psycopg": "PostgresSaver",
    "psycopg_pool": "PostgresSaver",
}
"""Packages of connections and pools that are easily taken for a saver."""

_registered: dict[type, type[Strategy]] = {}


def load(path: str) -> Any:
    """Import what a path ``module:name`` names.

    Raises:
        ImportError: What the module needs is not installed.
    """
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def storage_named(name: str) -> Storage:
    """Return the row of a storage.

    Raises:
        KeyError: No storage has that name.
    """
    for storage in STORAGES:
        if storage.name == name:
            return storage
    raise KeyError(name)


def register_strategy(saver_class: type, strategy_class: type[Strategy]) -> None:
    """Have every sweeper use a strategy for a class of savers and its subclasses.

    Args:
        saver_class: The saver's class. The nearest registered class in the saver's method
            resolution order counts, and a registration beats a built-in of the same class.
        strategy_class: A subclass of Strategy, built with the saver as its only argument.

    Raises:
        TypeError: One of them is no class of the right kind.
    """
    if not (isinstance(saver_class, type) and issubclass(saver_class, BaseCheckpointSaver)):
        raise TypeError(f"saver_class must be a BaseCheckpointSaver class, not {saver_class!r}")
    if not (isinstance(strategy_class, type) and issubclass(strategy_class, Strategy)):
        raise TypeError(f"strategy_class must be a Strategy class, not {strategy_class!r}")
    _registered[saver_class] = strategy_class


def check_saver(candidate: Any) -> None:
    """Refuse what is not a saver, and say what to pass instead.

    Raises:
        TypeError: With the remedy in its message.
    """
    if isinstance(candidate, BaseCheckpointSaver):
        return
    name = getattr(candidate, "__name__", None) or type(candidate).__name__
    if isinstance(candidate, type):
        hint = f"pass an instance, not the class {name}"
    elif driver := _DRIVERS.get(type(candidate).__module__.partition(".")[0]):
        saver = f"Async{driver}" if name.startswith("Async") else driver
        hint = f"build a saver on the {name}, for instance a {saver}, and pass that"
    elif hasattr(candidate, "__enter__") or hasattr(candidate, "__aenter__"):
        hint = (
            f"a context manager ({name}) was given; from_conn_string() returns one: enter it "
            "with 'with ... as saver:' ('async with' for asynchronous savers) and pass saver"
        )
    elif isinstance(getattr(candidate, "checkpointer", None), BaseCheckpointSaver):
        hint = f"pass the checkpointer of the {name}, i.e. its .checkpointer"
    else:
        hint = f"pass the saver itself, for instance an InMemorySaver, not {name}"
    raise TypeError(f"checkpointer must be a BaseCheckpointSaver: {hint}")


def detect_strategy(saver: BaseCheckpointSaver[Any]) -> Strategy:
    """Choose the strategy for a saver by its type, subclasses included.

    Args:
        saver: Any saver. A wrapper of this package is looked through.

    Returns:
        A strategy on the saver, or on what it wraps.

    Raises:
        UnsupportedCheckpointerError: A saver whose layout cannot be swept, that can neither list
            nor delete threads, or that is known to list nothing unless a thread is named.
    """
    while isinstance(inner := getattr(saver, "__retained__", None), BaseCheckpointSaver):
        saver = inner
    for ancestor in type(saver).__mro__:
        if ancestor in _registered:
            return _registered[ancestor](saver)
        name = f"{ancestor.__module__}.{ancestor.__qualname__}"
        if name in _REFUSED:
            raise UnsupportedCheckpointerError(
                f"{_REFUSED[name]} keeps one checkpoint a thread in tables of another layout and "
                "cannot be swept; use PostgresSaver or AsyncPostgresSaver"
            )
        if name in _LISTS_NOTHING:
            raise UnsupportedCheckpointerError(
                f"{type(saver).__name__} lists nothing unless a thread is named, so no sweep would "
                "find a thread; subclass GenericStrategy, override list_checkpoints() or "
                "alist_checkpoints() so that it gives every thread, and pass strategy="
            )
        for storage in STORAGES:
            if name in storage.strategies:
                found: type[Strategy] = load(storage.strategies[name])
                return found(saver)
    from langgraph_ephemeral_checkpointer.strategies.generic import GenericStrategy

    return GenericStrategy(saver)
