"""Retention for LangGraph checkpointers: delete expired threads and lose nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_ephemeral_checkpointer.audit import AuditError, AuditLog
from langgraph_ephemeral_checkpointer.errors import (
    ColourError,
    CrossTenantError,
    HistoryNeededError,
    NotInTrashError,
    NotSetUpError,
    RetentionError,
    RowSecurityError,
    SchemaMismatchError,
    SchemaMissingError,
    ScopeLostError,
    StorageError,
    StorageUnavailableError,
    TenantError,
    TenantRequiredError,
    TenantResolutionError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadLivesAgainError,
    ThreadMovedError,
    TrashNotEmptyError,
    UnsupportedCheckpointerError,
)
from langgraph_ephemeral_checkpointer.forecasting import Forecast, aforecast, forecast
from langgraph_ephemeral_checkpointer.optional import optional_name
from langgraph_ephemeral_checkpointer.orphans import Orphan
from langgraph_ephemeral_checkpointer.policy import PolicyOverride, TTLPolicy
from langgraph_ephemeral_checkpointer.result import KeepReason, SweepResult
from langgraph_ephemeral_checkpointer.rules import RulesError, policy_from_config
from langgraph_ephemeral_checkpointer.status import (
    ThreadStatus,
    athread_statuses,
    thread_statuses,
)
from langgraph_ephemeral_checkpointer.strategies.registry import register_strategy
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper
from langgraph_ephemeral_checkpointer.trash import TrashedThread
from langgraph_ephemeral_checkpointer.types import (
    OnAfterDelete,
    OnBeforeDelete,
    OnSweepComplete,
    PolicyResolver,
)

if TYPE_CHECKING:
    from langgraph_ephemeral_checkpointer.tenancy import (
        AsyncTenantPostgresSaver as AsyncTenantPostgresSaver,
    )
    from langgraph_ephemeral_checkpointer.tenancy import (
        TenantPostgresSaver as TenantPostgresSaver,
    )

__all__ = [
    "AuditError",
    "AuditLog",
    "ColourError",
    "CrossTenantError",
    "Forecast",
    "HistoryNeededError",
    "KeepReason",
    "NotInTrashError",
    "NotSetUpError",
    "OnAfterDelete",
    "OnBeforeDelete",
    "OnSweepComplete",
    "Orphan",
    "PolicyOverride",
    "PolicyResolver",
    "RetentionError",
    "RowSecurityError",
    "RulesError",
    "SchemaMismatchError",
    "SchemaMissingError",
    "ScopeLostError",
    "StorageError",
    "StorageUnavailableError",
    "SweepResult",
    "TTLPolicy",
    "TTLSweeper",
    "TenantError",
    "TenantRequiredError",
    "TenantResolutionError",
    "ThreadDeletedError",
    "ThreadExistsError",
    "ThreadLivesAgainError",
    "ThreadMovedError",
    "ThreadStatus",
    "TrashNotEmptyError",
    "TrashedThread",
    "UnsupportedCheckpointerError",
    "aforecast",
    "athread_statuses",
    "forecast",
    "policy_from_config",
    "register_strategy",
    "thread_statuses",
]

_OPTIONAL = {
    "TenantPostgresSaver": (f"{__name__}.tenancy", "postgres"),
    "AsyncTenantPostgresSaver": (f"{__name__}.tenancy", "postgres"),
}

if not TYPE_CHECKING:  # a type checker would take every name for one of the package's

    def __getattr__(name: str) -> Any:
        return optional_name(__name__, name, _OPTIONAL)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OPTIONAL})
