"""The proof at first use that the tables are ours, and the making of those that are missing.

A table under our name is used only when its columns, its key, and its Row-Level Security are
what they must be, and when nothing runs on it but what those chose who own it. Everything is
read from the catalogs, in the same transaction that makes what is missing, so a half-made table
is never accepted.
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
from langgraph_ephemeral_checkpointer.tenancy.names import CLOSE_PATH, Names
from langgraph_ephemeral_checkpointer.tenancy.schema import (
    ADMITS,
    KEYS,
    MAINTENANCE_POLICY,
    POLICY,
    WANTED,
    Batch,
    table_ddl,
)

# The roles whose doings are this one's own: itself, those it is a member of, and superusers. (A
# superuser passes for a member of all.)
_OURS = """
WITH ours AS MATERIALIZED (
    SELECT r.oid FROM pg_roles r CROSS JOIN pg_roles me
    WHERE me.rolname = current_user
      AND (r.oid = me.oid OR r.rolsuper OR NOT me.rolsuper AND pg_has_role(r.oid, 'MEMBER'))
)
"""
# What takes or shows rows past the table, its key or its policies, whoever made it.
_ODD = """
    SELECT format('the rule %%I', r.rulename) FROM pg_rewrite r JOIN parts p ON p.oid = r.ev_class
    UNION ALL
    SELECT format('the unique index %%s, which takes two tenants for one', i.indexrelid::regclass)
    FROM pg_index i JOIN parts p ON p.oid = i.indrelid
    WHERE (i.indisunique OR i.indisexclusion) AND NOT EXISTS (
        SELECT FROM pg_attribute a
        WHERE a.attrelid = i.indrelid AND a.attname = 'tenant'
          AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
    UNION ALL
    SELECT format('the table %%s, of which it is a part', h.inhparent::regclass)
    FROM pg_inherits h WHERE h.inhrelid = c.oid
    UNION ALL
    SELECT format('the table %%s, which is a part of it', h.inhrelid::regclass)
    FROM pg_inherits h JOIN pg_class k ON k.oid = h.inhrelid
    WHERE h.inhparent IN (SELECT oid FROM parts)
      AND NOT (c.relkind = 'p' AND k.relkind IN ('r', 'p') AND k.relowner = c.relowner)
"""
# What runs whenever a row is read or written, with the rights of who reads or writes it, or with
# those of a function's owner; and whose that function is.
_ATTACHED = """
    SELECT format('the trigger %%I', t.tgname), f.proowner
    FROM pg_trigger t JOIN parts p ON p.oid = t.tgrelid JOIN pg_proc f ON f.oid = t.tgfoid
    WHERE NOT t.tgisinternal
    UNION ALL
    SELECT format('the default or expression of the column %%I', a.attname), c.relowner
    FROM pg_attrdef d JOIN parts p ON p.oid = d.adrelid
    JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
    UNION ALL
    SELECT format('the constraint %%I', k.conname), c.relowner
    FROM pg_constraint k JOIN parts p ON p.oid = k.conrelid
    WHERE k.contype NOT IN ('p', 'u', 'n')
      AND pg_get_constraintdef(k.oid) <> $$CHECK ((tenant <> ''::text))$$
    UNION ALL
    SELECT format('the expression or condition of the index %%s', i.indexrelid::regclass),
           c.relowner
    FROM pg_index i JOIN parts p ON p.oid = i.indrelid
    WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
    UNION ALL
    SELECT format('the policy %%I', y.polname), c.relowner
    FROM pg_policy y JOIN parts p ON p.oid = y.polrelid WHERE NOT y.polpermissive
"""
_PARTS = """
    WITH parts AS MATERIALIZED (
        SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid) WHERE c.relkind = 'p')
"""
_PROBE = f"""{_OURS}
SELECT t.name, c.relkind::text, c.relrowsecurity, c.relforcerowsecurity,
    ARRAY(SELECT ARRAY[a.attname::text, format_type(a.atttypid, NULL),
                       a.attnotnull::text, a.atthasdef::text, coalesce(k.collname::text, '')]
          FROM pg_attribute a LEFT JOIN pg_collation k
            ON k.oid = a.attcollation AND k.collnamespace = 'pg_catalog'::regnamespace
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
          FROM pg_policy p WHERE p.polrelid = c.oid),
    pg_get_userbyid(c.relowner)::text, c.relowner IN (SELECT oid FROM ours),
    pg_has_role(c.relowner, n.nspowner, 'MEMBER') OR pg_has_role(c.relowner, d.datdba, 'MEMBER'),
    ARRAY({_PARTS} {_ODD}),
    ARRAY({_PARTS} SELECT ARRAY[
              x.what, (x.whose IN (SELECT oid FROM ours))::text, (x.whose = c.relowner)::text]
          FROM ({_ATTACHED}) AS x (what, whose))
FROM pg_database d CROSS JOIN unnest(%s::text[]) AS t (name)
LEFT JOIN pg_namespace n ON n.nspname = %s
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
WHERE d.datname = current_database()
"""
_SCHEMA_EXISTS = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"
_ROLE = """
SELECT rolname, rolsuper OR rolbypassrls, current_setting('default_transaction_isolation'),
    EXISTS (SELECT FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace, unnest(p.polroles) AS u (role)
            WHERE n.nspname = %s AND c.relname = ANY (%s::text[]) AND p.polname = %s
              AND pg_has_role(u.role, 'USAGE'))
FROM pg_roles WHERE rolname = current_user
"""


@dataclass(frozen=True)
class Role:
    """Whom a connection acts as.

    Attributes:
        name: Of the role.
        bypasses_rls: Whether Row-Level Security is void for it.
        isolation: What its transactions are, where nobody says otherwise.
        maintains: Whether the maintenance policy shows it every tenant.
    """

    name: str
    bypasses_rls: bool
    isolation: str
    maintains: bool


def probe(names: Names) -> Statement:
    """The statement whose rows :func:`missing_tables` judges."""
    return Statement(_PROBE, (list(names.tables), names.schema))


def role(names: Names) -> Statement:
    """The statement that tells who the connection acts as."""
    return Statement(_ROLE, (names.schema, list(names.tables), MAINTENANCE_POLICY))


def missing_tables(
    names: Names, rows: Iterable[Sequence[Any]], *, migrated: bool = False
) -> list[str]:
    """Judge what the catalogs hold under our names.

    Args:
        names: The tables.
        rows: What :func:`probe` gave.
        migrated: The tables are made by a migration of the caller's, so that whoever owns them
            is the one who shall.

    Returns:
        The kinds of the tables that do not exist (``checkpoints``, ``blobs``, ``writes``).

    Raises:
        SchemaMismatchError: Something else is there: another layout or key, Row-Level
            Security off or not forced, another policy, an owner who is not to be relied on.
    """
    kind_of = dict(zip(names.tables, KEYS, strict=True))
    missing = []
    for name, relkind, *facts in rows:
        if relkind is None:
            missing.append(kind_of[name])
            continue
        faults = (
            [f"it is no plain table (relkind {relkind!r})"]
            if relkind not in {"r", "p"}
            else [*_faults(kind_of[name], *facts[:5]), *_others(*facts[5:], migrated=migrated)]
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
    for column, wanted in WANTED[kind].items():
        if found.get(column) != wanted:
            yield f"column {column} must be {wanted[0]}{' NOT NULL' if wanted[1] else ''}"
    for name, type_, notnull, default, collation in columns:
        if name not in WANTED[kind]:
            if notnull == "true" and default == "false":
                yield f"column {name} is unknown and must be given a value"
        elif type_.startswith("text") and collation != "C":
            yield f'column {name} must have the collation "C"'
    if tuple(key) != KEYS[kind]:
        yield f"its primary key must be ({', '.join(KEYS[kind])})"
    if not secured:
        yield "Row-Level Security is off"
    if not forced:
        yield "Row-Level Security is not forced for its owner"
    yield from _policy_faults(policies)


def _others(
    owner: str,
    ours: bool,
    owns_schema: bool,
    odd: Sequence[str],
    attached: Sequence[Sequence[str]],
    *,
    migrated: bool,
) -> Iterable[str]:
    """What others than the caller and the tables' owner have a hand in."""
    relied_on = ours or migrated
    if not (relied_on or owns_schema):
        yield (
            f"it belongs to role {owner!r}, which this one is no member of and which owns neither "
            "the schema nor the database; if a migration of yours made it, pass "
            "create_schema=False"
        )
    for what in odd:
        yield f"it has {what}"
    for what, of_ours, of_owner in attached:
        if not (relied_on and (of_ours == "true" or of_owner == "true")):
            yield (
                f"{what} runs what another role chose; if a migration of yours made it, pass "
                "create_schema=False"
            )


def _policy_faults(policies: Sequence[Sequence[str]]) -> Iterable[str]:
    ours = False
    for name, permissive, command, public, using, check in policies:
        if permissive == "false":
            continue  # a restrictive policy can only admit less
        if (name, command, public) == (POLICY, "*", "true"):
            ours = _plain(using) == _plain(check) == _plain(ADMITS)
            if not ours:
                yield f"its policy {name} is not the one this saver makes"
        elif (name, public) != (MAINTENANCE_POLICY, "false"):
            yield f"the policy {name} admits more than the tenant's own rows"
    if not ours:
        yield f"it lacks the policy {POLICY}"


def _plain(expression: str) -> str:
    """An expression without what Postgres adds when it prints one back."""
    return re.sub(r"::text|[()\s]", "", expression).lower()


def look(names: Names, *, migrated: bool = False) -> Plan[Batch, tuple[list[str], Role]]:
    """See what exists. Its own transaction; writes nothing.

    Args:
        names: The tables.
        migrated: See :func:`missing_tables`.

    Returns:
        The missing kinds, and the role of the connection.
    """
    _, found, roles = yield [CLOSE_PATH, probe(names), role(names)]
    return missing_tables(names, found, migrated=migrated), Role(*roles[0])


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
