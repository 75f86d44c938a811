"""The two savers side by side: the tenant saver under Row-Level Security, and upstream's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.server import Server
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver


def prepare(server: Server) -> str:
    """Make a database with upstream's tables, and give a DSN of a role that RLS holds for."""
    dsn = server.new()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE app LOGIN NOSUPERUSER NOBYPASSRLS")
        conn.execute(f"GRANT CREATE ON DATABASE {conninfo_to_dict(dsn)['dbname']} TO app")
        conn.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
    return make_conninfo(dsn, user="app")


@contextmanager
def both(dsn: str, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Open the tenant saver and upstream's by the same role, each on a connection of its own."""
    with (
        TenantPostgresSaver.from_conn_string(
            dsn, schema="tenants", require_rls=True, **options
        ) as ours,
        PostgresSaver.from_conn_string(dsn) as upstream,
    ):
        ours.setup()
        yield ours, upstream
