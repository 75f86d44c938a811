"""Checkpointers for many tenants in one Postgres, kept apart by Row-Level Security."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.tenancy.aio import AsyncTenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy.saver import TenantPostgresSaver

__all__ = ["AsyncTenantPostgresSaver", "TenantPostgresSaver"]
