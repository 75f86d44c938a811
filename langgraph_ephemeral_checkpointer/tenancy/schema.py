"""The definition of the tables, and of the policies that keep tenants apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from psycopg import sql

from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.tenancy.names import SETTING, Names

Batch = Sequence[Statement]
"""Statements that go over the network together, in one transaction."""

POLICY = "langgraph_tenant"
MAINTENANCE_POLICY = "langgraph_maintenance"
ADMITS = f"tenant = nullif(current_setting('{SETTING}', true), '')"

_TEXT = 'text COLLATE "C" NOT NULL'
_THREAD = f"tenant {_TEXT} CHECK (tenant <> ''), thread_id {_TEXT}, checkpoint_ns {_TEXT}"
# Postgres compresses large values itself, and its default algorithm is the slow one, but
# lz4 is a build option: the storage is left to the database's own settings.
_COLUMNS = {
    "checkpoints": f"""{_THREAD}, checkpoint_id {_TEXT},
    parent_id text COLLATE "C", callers text[] COLLATE "C" NOT NULL,
    source text COLLATE "C", step bigint, run_id text COLLATE "C", format integer,
    channels text[] COLLATE "C" NOT NULL, versions text[] COLLATE "C" NOT NULL,
    held text[] COLLATE "C" NOT NULL, delta text[] COLLATE "C" NOT NULL,
    made_at timestamptz, born_at timestamptz,
    type {_TEXT}, state bytea NOT NULL,
    PRIMARY KEY (tenant, thread_id, checkpoint_ns, checkpoint_id)""",
    "blobs": f"""{_THREAD}, channel {_TEXT}, version {_TEXT},
    type {_TEXT}, blob bytea NOT NULL,
    PRIMARY KEY (tenant, thread_id, checkpoint_ns, channel, version)""",
    "writes": f"""{_THREAD}, checkpoint_id {_TEXT},
    task_id {_TEXT}, idx integer NOT NULL, task_path {_TEXT}, channel {_TEXT},
    type {_TEXT}, blob bytea NOT NULL, written_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, thread_id, checkpoint_ns, checkpoint_id, task_id, idx)""",
}
KEYS = {
    "checkpoints": ("tenant", "thread_id", "checkpoint_ns", "checkpoint_id"),
    "blobs": ("tenant", "thread_id", "checkpoint_ns", "channel", "version"),
    "writes": ("tenant", "thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx"),
}


def _wanted_columns(definition: str) -> dict[str, tuple[str, bool]]:
    """Name to (type, must not be NULL), read off the definition that makes the table."""
    found = re.findall(r"(\w+) (text\[\]|text|bigint|integer|timestamptz|bytea)([^,]*)", definition)
    long = {"timestamptz": "timestamp with time zone"}
    return {name: (long.get(kind, kind), "NOT NULL" in rest) for name, kind, rest in found}


WANTED = {kind: _wanted_columns(text) for kind, text in _COLUMNS.items()}

# A policy holds for the members of its roles too; for a superuser none does.
_SEES_ALL = """
SELECT (SELECT r.rolsuper OR r.rolbypassrls FROM pg_roles r WHERE r.rolname = current_user)
    OR EXISTS (
        SELECT FROM pg_policy p
        JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s AND p.polname = %s
          AND EXISTS (SELECT FROM unnest(p.polroles) AS u (role)
                      WHERE pg_has_role(u.role, 'USAGE')))
"""


def sees_every_tenant(names: Names) -> Statement:
    """The statement that tells whether the connection's role sees the rows of all tenants."""
    return Statement(_SEES_ALL, (names.schema, names.table, MAINTENANCE_POLICY))


def table_ddl(names: Names, kinds: Iterable[str]) -> list[str]:
    """The statements that make some of the tables, Row-Level Security included."""
    quoted = names.quoted()
    statements = []
    for kind in kinds:
        table = quoted[kind]
        tenants_own = f"USING ({ADMITS}) WITH CHECK ({ADMITS})"
        statements += [
            f"CREATE TABLE {table} (\n    {_COLUMNS[kind]}\n)",
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY {POLICY} ON {table} AS PERMISSIVE FOR ALL TO PUBLIC {tenants_own}",
        ]
    return statements


def ddl(names: Names, maintenance_role: str | None = None) -> list[str]:
    """Every statement of the schema, for a migration tool.

    Args:
        names: The tables.
        maintenance_role: A role that shall see every tenant, by a policy of its own.

    Returns:
        Statements to run in this order, in one transaction. They grant nothing: an
        application role needs USAGE on the schema, and SELECT, INSERT, UPDATE and
        DELETE on the tables.

    Raises:
        ValueError: ``maintenance_role`` is empty or PUBLIC.
    """
    schema = sql.Identifier(names.schema).as_string(None)
    statements = [f"CREATE SCHEMA IF NOT EXISTS {schema}", *table_ddl(names, KEYS)]
    if maintenance_role is not None:
        role_name = sql.Identifier(maintenance_role).as_string(None)
        if maintenance_role.lower() == "public" or not maintenance_role:
            raise ValueError("the maintenance role must be one role, not PUBLIC")
        statements += [
            f"CREATE POLICY {MAINTENANCE_POLICY} ON {table} AS PERMISSIVE FOR ALL\n"
            f"    TO {role_name} USING (true) WITH CHECK (true)"
            for table in names.quoted().values()
        ]
    return statements
