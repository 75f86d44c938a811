"""Retention for LangGraph checkpointers: delete expired threads and lose nothing else."""

from __future__ import annotations

from importlib import import_module

from langgraph_ephemeral_checkpointer.common.lazy import lazily

TYPE_CHECKING = False  # as type checkers have it; typing itself takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from langgraph_ephemeral_checkpointer.errors import (
        AsyncRequiredError,
        ClockBehindError,
        CrossTenantError,
        HiddenRowsError,
        HistoryNeededError,
        NotInTrashError,
        NotSetUpError,
        RetentionError,
        RetryableError,
        RowSecurityError,
        SchemaMismatchError,
        SchemaMissingError,
        ScopeLostError,
        StorageError,
        StorageUnavailableError,
        StorageUnusableError,
        TenantError,
        TenantRequiredError,
        TenantResolutionError,
        ThreadBusyError,
        ThreadDeletedError,
        ThreadExistsError,
        ThreadLivesAgainError,
        ThreadMovedError,
        TrashNotEmptyError,
        UnsupportedCheckpointerError,
    )
    from langgraph_ephemeral_checkpointer.options import SweepOptions
    from langgraph_ephemeral_checkpointer.policy import PolicyOverride, TTLPolicy
    from langgraph_ephemeral_checkpointer.reports.forecast import Forecast, aforecast, forecast
    from langgraph_ephemeral_checkpointer.reports.status import (
        ThreadStatus,
        athread_statuses,
        thread_statuses,
    )
    from langgraph_ephemeral_checkpointer.result import KeepReason, SweepResult
    from langgraph_ephemeral_checkpointer.rules import RulesError, policy_from_config
    from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan
    from langgraph_ephemeral_checkpointer.strategies.registry import register_strategy
    from langgraph_ephemeral_checkpointer.strategies.trash import TrashedThread
    from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper
    from langgraph_ephemeral_checkpointer.sweeps.audit import AuditError, AuditLog
    from langgraph_ephemeral_checkpointer.tenancy import (
        AsyncTenantPostgresSaver as AsyncTenantPostgresSaver,
    )
    from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver as TenantPostgresSaver
    from langgraph_ephemeral_checkpointer.types import (
        OnAfterDelete,
        OnBeforeDelete,
        OnSweepComplete,
        PolicyResolver,
    )

# Without the tenant savers, which need psycopg: "from ... import *" works where it is missing. They
# are in dir(), and can be imported by name.
__all__ = [
    "AsyncRequiredError",
    "AuditError",
    "AuditLog",
    "ClockBehindError",
    "CrossTenantError",
    "Forecast",
    "HiddenRowsError",
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
    "RetryableError",
    "RowSecurityError",
    "RulesError",
    "SchemaMismatchError",
    "SchemaMissingError",
    "ScopeLostError",
    "StorageError",
    "StorageUnavailableError",
    "StorageUnusableError",
    "SweepOptions",
    "SweepResult",
    "TTLPolicy",
    "TTLSweeper",
    "TenantError",
    "TenantRequiredError",
    "TenantResolutionError",
    "ThreadBusyError",
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

# Nothing is loaded before it is asked for: LangGraph takes a second, in which Ctrl-C would end the
# command line in a traceback, and psycopg is an optional dependency.
_WHERE = {
    "sweeps.audit": ("AuditError", "AuditLog"),
    "errors": (
        "AsyncRequiredError",
        "ClockBehindError",
        "CrossTenantError",
        "HiddenRowsError",
        "HistoryNeededError",
        "NotInTrashError",
        "NotSetUpError",
        "RetentionError",
        "ThreadBusyError",
        "StorageUnusableError",
        "RetryableError",
        "RowSecurityError",
        "SchemaMismatchError",
        "SchemaMissingError",
        "ScopeLostError",
        "StorageError",
        "StorageUnavailableError",
        "TenantError",
        "TenantRequiredError",
        "TenantResolutionError",
        "ThreadDeletedError",
        "ThreadExistsError",
        "ThreadLivesAgainError",
        "ThreadMovedError",
        "TrashNotEmptyError",
        "UnsupportedCheckpointerError",
    ),
    "reports.forecast": ("Forecast", "aforecast", "forecast"),
    "strategies.orphans": ("Orphan",),
    "options": ("SweepOptions",),
    "policy": ("PolicyOverride", "TTLPolicy"),
    "result": ("KeepReason", "SweepResult"),
    "rules": ("RulesError", "policy_from_config"),
    "reports.status": ("ThreadStatus", "athread_statuses", "thread_statuses"),
    "strategies.registry": ("register_strategy",),
    "sweeper": ("TTLSweeper",),
    "strategies.trash": ("TrashedThread",),
    "types": ("OnAfterDelete", "OnBeforeDelete", "OnSweepComplete", "PolicyResolver"),
    "tenancy": ("TenantPostgresSaver", "AsyncTenantPostgresSaver"),
}
_MODULES = ("errors", "metrics", "retention", "strategies", "tenancy", "testing", "types")
_NAMES = {
    name: (f"{__name__}.{module}", "postgres" if module == "tenancy" else None)
    for module, names in _WHERE.items()
    for name in names
}

if not TYPE_CHECKING:  # a type checker would take every name for one of the package's

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        return lazily(__name__, name, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_MODULES})
