"""How each kind of checkpointer is swept.

The classes of optional backends are imported when they are first asked for, so this
package works with whatever is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_ephemeral_checkpointer.checkpoint_ids import time_of_id
from langgraph_ephemeral_checkpointer.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.pruning.outcome import PruneOutcome
from langgraph_ephemeral_checkpointer.strategies.base import (
    Outcome,
    Page,
    Recheck,
    Strategy,
)
from langgraph_ephemeral_checkpointer.strategies.generic import GenericStrategy
from langgraph_ephemeral_checkpointer.strategies.memory import MemoryStrategy
from langgraph_ephemeral_checkpointer.strategies.registry import (
    detect_strategy,
    register_strategy,
)

if TYPE_CHECKING:
    from langgraph_ephemeral_checkpointer.strategies.postgres import (
        AsyncPostgresStrategy,
        PostgresStrategy,
    )
    from langgraph_ephemeral_checkpointer.strategies.sqlite import (
        AsyncSqliteStrategy,
        SqliteStrategy,
    )
    from langgraph_ephemeral_checkpointer.strategies.tenant import (
        AsyncTenantPostgresStrategy,
        TenantPostgresStrategy,
    )

_OPTIONAL = {
    "SqliteStrategy": "sqlite",
    "AsyncSqliteStrategy": "sqlite",
    "PostgresStrategy": "postgres",
    "AsyncPostgresStrategy": "postgres",
    "TenantPostgresStrategy": "tenant",
    "AsyncTenantPostgresStrategy": "tenant",
}

__all__ = [
    "AsyncPostgresStrategy",
    "AsyncSqliteStrategy",
    "AsyncTenantPostgresStrategy",
    "GenericStrategy",
    "MemoryStrategy",
    "Outcome",
    "Page",
    "PostgresStrategy",
    "PruneOutcome",
    "Recheck",
    "SqliteStrategy",
    "Strategy",
    "TenantPostgresStrategy",
    "ThreadFacts",
    "Wanted",
    "detect_strategy",
    "register_strategy",
    "time_of_id",
    "waits_for_human",
]


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        return getattr(import_module(f"{__name__}.{_OPTIONAL[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
