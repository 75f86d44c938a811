"""The tables of LangGraph's Postgres savers, and what tells their checkpoints apart."""

from __future__ import annotations

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")

DIGEST = "coalesce(pg_catalog.sum(pg_catalog.hashtext(checkpoint_id)), 0)::bigint"
"""An aggregate that tells checkpoints apart from as many others, in whatever order they come."""
