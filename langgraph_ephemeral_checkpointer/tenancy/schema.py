"""The tables: their definition, and the proof that what is there is really ours.

A table under our name is used only when its columns, its key, and its Row-Level
Security are what they must be. Everything is read from the catalogs, in the same
transaction that makes what is missing, so a half-made table is never accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import SchemaMismatchError, SchemaMissingError
from langgraph_ephemeral_checkpointer.tenancy.names import CLOSE_PATH, SETTING, Names

Batch = Sequence[Statement]
"""Statements that go over the network together, in one transaction."""

POLICY = "langgraph_tenant"
MAINTENANCE_POLICY = "langgraph_maintenance"
_ADMITS = f"tenant = nullif(current_setting('{SETTING}', true), '')"

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
_KEYS = {
    "checkpoints": ("tenant", "thread_id", "checkpoint_ns", "checkpoint_id"),
    "blobs": ("tenant", "thread_id", "checkpoint_ns", "channel", "version"),
    "writes": ("tenant", "thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx"),
}


def _wanted_columns(definition: str) -> dict[str, tuple[str, bool]]:
    """Name to (type, must not be NULL), read off the definition that makes the table."""
    found = re.findall(r"(\w+) (text\[\]|text|bigint|integer|timestamptz|bytea)([^,]*)", definition)
    long = {"timestamptz": "timestamp with time zone"}
    return {name: (long.get(kind, kind), "NOT NULL" in rest) for name, kind, rest in found}


_WANTED = {kind: _wanted_columns(text) for kind, text in _COLUMNS.items()}

_PROBE = """
SELECT t.name, c.relkind::text, c.relrowsecurity, c.relforcerowsecurity,
    ARRAY(SELECT ARRAY[a.attname::text, format_type(a.atttypid, NULL),
                       a.attnotnull::text, a.atthasdef::text, coalesce(k.collname::text, '')]
          FROM pg_attribute a LEFT JOIN pg_collation k ON k.oid = a.attcollation
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    ARRAY(SELECT a.attname::text
          FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS u (num, ord)
          JOIN pg_attribute a ON true
          WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid
            AND a.attrelid = c.oid AND a.attnum = u.num
          ORDER BY u.ord),
    ARRAY(SELECT ARRAY[p.polname::text, p.polpermissive::text, p.polcmd::text,
                       (p.polroles = ARRAY[0::oid])::text,
                       coalesce(pg_get_expr(p.polqual, p.polrelid), ''),
                       coalesce(pg_get_expr(p.polwithcheck, p.polrelid), '')]
          FROM pg_policy p WHERE p.polrelid = c.oid)
FROM unnest(%s::text[]) AS t (name)
LEFT JOIN pg_namespace n ON n.nspname = %s
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
"""
_SCHEMA_EXISTS = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"
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
_ROLE = """
SELECT rolname, rolsuper OR rolbypassrls, current_setting('default_transaction_isolation')
FROM pg_roles WHERE rolname = current_user
"""


@dataclass(frozen=True)
class Role:
    """Whom a connection acts as.

    Attributes:
        name: Of the role.
        bypasses_rls: Whether Row-Level Security is void for it.
        isolation: What its transactions are, where nobody says otherwise.
    """

    name: str
    bypasses_rls: bool
    isolation: str


def probe(names: Names) -> Statement:
    """The statement whose rows :func:`missing_tables` judges."""
    return Statement(_PROBE, (list(names.tables), names.schema))


def role() -> Statement:
    """The statement that tells who the connection acts as."""
    return Statement(_ROLE)


def sees_every_tenant(names: Names) -> Statement:
    """The statement that tells whether the connection's role sees the rows of all tenants."""
    return Statement(_SEES_ALL, (names.schema, names.table, MAINTENANCE_POLICY))


def missing_tables(names: Names, rows: Iterable[Sequence[Any]]) -> list[str]:
    """Judge what the catalogs hold under our names.

    Args:
        names: The tables.
        rows: What :func:`probe` gave.

    Returns:
        The kinds of the tables that do not exist (``checkpoints``, ``blobs``, ``writes``).

    Raises:
        SchemaMismatchError: Something else is there: another layout or key, Row-Level
            Security off or not forced, another policy.
    """
    kind_of = dict(zip(names.tables, _KEYS, strict=True))
    missing = []
    for name, relkind, *facts in rows:
        if relkind is None:
            missing.append(kind_of[name])
            continue
        faults = (
            [f"it is no plain table (relkind {relkind!r})"]
            if relkind not in {"r", "p"}
            else [*_faults(kind_of[name], *facts)]
        )
        if faults:
            raise SchemaMismatchError(
                f"{names.schema}.{name} is not a table of this saver: {'; '.join(faults)}. "
                "Nothing was written. Repair it, or choose another table= or schema="
            )
    return missing


def _faults(
    kind: str,
    secured: bool,
    forced: bool,
    columns: Sequence[Sequence[str]],
    key: Sequence[str],
    policies: Sequence[Sequence[str]],
) -> Iterable[str]:
    found = {name: (type_, notnull == "true") for name, type_, notnull, _, _ in columns}
    for column, wanted in _WANTED[kind].items():
        if found.get(column) != wanted:
            yield f"column {column} must be {wanted[0]}{' NOT NULL' if wanted[1] else ''}"
    for name, type_, notnull, default, collation in columns:
        if name not in _WANTED[kind]:
            if notnull == "true" and default == "false":
                yield f"column {name} is unknown and must be given a value"
        elif type_.startswith("text") and collation != "C":
            yield f'column {name} must have the collation "C"'
    if tuple(key) != _KEYS[kind]:
        yield f"its primary key must be ({', '.join(_KEYS[kind])})"
    if not secured:
        yield "Row-Level Security is off"
    if not forced:
        yield "Row-Level Security is not forced for its owner"
    yield from _policy_faults(policies)


def _policy_faults(policies: Sequence[Sequence[str]]) -> Iterable[str]:
    ours = False
    for name, permissive, command, public, using, check in policies:
        if permissive == "false":
            continue  # a restrictive policy can only admit less
        if (name, command, public) == (POLICY, "*", "true"):
            ours = _plain(using) == _plain(check) == _plain(_ADMITS)
            if not ours:
                yield f"its policy {name} is not the one this saver makes"
        elif (name, public) != (MAINTENANCE_POLICY, "false"):
            yield f"the policy {name} admits more than the tenant's own rows"
    if not ours:
        yield f"it lacks the policy {POLICY}"


def _plain(expression: str) -> str:
    """An expression without what Postgres adds when it prints one back."""
    return re.sub(r"::text|[()\s]", "", expression).lower()


def table_ddl(names: Names, kinds: Iterable[str]) -> list[str]:
    """The statements that make some of the tables, Row-Level Security included."""
    quoted = names.quoted()
    statements = []
    for kind in kinds:
        table = quoted[kind]
        tenants_own = f"USING ({_ADMITS}) WITH CHECK ({_ADMITS})"
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
    statements = [f"CREATE SCHEMA IF NOT EXISTS {schema}", *table_ddl(names, _KEYS)]
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


def look(names: Names) -> Plan[Batch, tuple[list[str], Role]]:
    """See what exists. Its own transaction; writes nothing.

    Returns:
        The missing kinds, and the role of the connection.
    """
    _, found, roles = yield [CLOSE_PATH, probe(names), role()]
    return missing_tables(names, found), Role(*roles[0])


def create(names: Names) -> Plan[Batch, None]:
    """Make what is missing. To be run in one transaction.

    The lock makes processes that start together queue here; those that come late find
    everything made. The probe at the end is part of the transaction: whatever a trigger
    or a default did to the tables, they are accepted only as they must be.

    Raises:
        SchemaMismatchError: Something else has those names.
        SchemaMissingError: A table was not made, although no statement failed.
    """
    lock = Statement("SELECT pg_advisory_xact_lock(%s::bigint)", (names.schema_key,))
    yield [CLOSE_PATH, lock]
    found, exists = yield [probe(names), Statement(_SCHEMA_EXISTS, (names.schema,))]
    missing = missing_tables(names, found)
    statements = table_ddl(names, missing)
    if not exists[0][0]:
        statements.insert(0, f"CREATE SCHEMA {sql.Identifier(names.schema).as_string(None)}")
    try:
        for text in statements:
            yield [Statement(text, None, fetch=False)]
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaMissingError(
            f"{_listed(names, missing)} do not exist, and this role may not make them "
            f"({error.diag.message_primary}): run the statements of ddl() as the role that shall "
            "own them, and grant this one USAGE on the schema and SELECT, INSERT, UPDATE and "
            "DELETE on the tables"
        ) from error
    (found,) = yield [probe(names)]
    if missing := missing_tables(names, found):
        raise SchemaMissingError(
            f"not all that was made for {names.schema}.{names.table} is there (missing: "
            f"{', '.join(missing)}): look for what takes it away, such as an event trigger. "
            "Nothing was kept"
        )


def refuse_missing(names: Names, missing: Sequence[str]) -> None:
    """Raise where tables are missing and none may be made.

    Raises:
        SchemaMissingError: Any is.
    """
    if missing:
        raise SchemaMissingError(
            f"{_listed(names, missing)} do not exist and "
            "create_schema=False: run the statements of ddl(), or pass create_schema=True"
        )


def _listed(names: Names, kinds: Sequence[str]) -> str:
    quoted: Mapping[str, str] = names.quoted()
    return ", ".join(quoted[kind] for kind in kinds)
