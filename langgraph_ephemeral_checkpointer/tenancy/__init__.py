"""Checkpointers for many tenants in one Postgres, kept apart by Row-Level Security."""

from __future__ import annotations

from .aio import AsyncTenantPostgresSaver
from .saver import TenantPostgresSaver

__all__ = ["AsyncTenantPostgresSaver", "TenantPostgresSaver"]
