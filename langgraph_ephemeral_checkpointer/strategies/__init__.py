"""How each kind of checkpointer is swept.

The classes of optional backends are imported when they are first asked for, so this
package works with whatever is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_ephemeral_checkpointer.common.lazy import lazily
from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_id
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.strategies.base import (
    Outcome,
    Page,
    PruneOutcome,
    Recheck,
    Size,
    Strategy,
)
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    FindsOrphans,
    FindsOrphansFromAnywhere,
    HasLock,
    HasTenants,
    HasTrash,
    LeavesUnread,
    MeasuresSizes,
    Prunes,
    PurgesMessages,
)
from langgraph_ephemeral_checkpointer.strategies.generic import GenericStrategy
from langgraph_ephemeral_checkpointer.strategies.registry import (
    STORAGES,
    detect_strategy,
    register_strategy,
)

if TYPE_CHECKING:
    from langgraph_ephemeral_checkpointer.strategies.memory.strategy import MemoryStrategy
    from langgraph_ephemeral_checkpointer.strategies.postgres.strategy import (
        AsyncPostgresStrategy as AsyncPostgresStrategy,
    )
    from langgraph_ephemeral_checkpointer.strategies.postgres.strategy import (
        PostgresStrategy as PostgresStrategy,
    )
    from langgraph_ephemeral_checkpointer.strategies.sqlite.strategy import (
        AsyncSqliteStrategy as AsyncSqliteStrategy,
    )
    from langgraph_ephemeral_checkpointer.strategies.sqlite.strategy import (
        SqliteStrategy as SqliteStrategy,
    )
    from langgraph_ephemeral_checkpointer.strategies.tenant.strategy import (
        AsyncTenantPostgresStrategy as AsyncTenantPostgresStrategy,
    )
    from langgraph_ephemeral_checkpointer.strategies.tenant.strategy import (
        TenantPostgresStrategy as TenantPostgresStrategy,
    )

__all__ = [
    "FindsOrphans",
    "FindsOrphansFromAnywhere",
    "GenericStrategy",
    "HasLock",
    "HasTenants",
    "HasTrash",
    "LeavesUnread",
    "MeasuresSizes",
    "MemoryStrategy",
    "Outcome",
    "Page",
    "PruneOutcome",
    "Prunes",
    "PurgesMessages",
    "Recheck",
    "Size",
    "Strategy",
    "ThreadFacts",
    "Wanted",
    "detect_strategy",
    "register_strategy",
    "time_of_id",
    "waits_for_human",
]

_NAMES = {
    name: (module, storage.extra)
    for storage in STORAGES
    for module, _, name in (path.partition(":") for path in storage.strategies.values())
}
"""The strategies of the table, each with its module and the extra that brings what it needs."""

if not TYPE_CHECKING:  # a type checker would take every name for one of the module's

    def __getattr__(name: str) -> Any:
        return lazily(__name__, name, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
