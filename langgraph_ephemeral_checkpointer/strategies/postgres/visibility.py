"""Making sure that the tables are those of LangGraph's savers, and hide no row from the role.

A thread of which only some rows are seen looks idle, finished or absent. So each transaction on
these tables begins with :data:`LOOK`, and goes on only where its answer shows that every row is
seen: a policy may be switched on at any time, and a pool gives each transaction another session.
What changes after that look (a role loses BYPASSRLS), and what the trash has, is held by
``row_security = off``: the server then refuses a statement that a policy would filter.

Tables of another program may have the same names. What tables are like is asked once: it takes
longer than :data:`LOOK`, and tables that are made anew show by their oids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import HiddenRowsError, StorageUnusableError
from langgraph_ephemeral_checkpointer.strategies.postgres.naming import in_schema
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import (
    FOUND_COLUMNS,
    FOUND_KEYS,
    TABLES,
    what_is_foreign,
)

T = TypeVar("T")

NO_TABLES = (
    "the database has no checkpoint tables where the search path looks; call setup() of the saver "
    "once, or grant this role USAGE on their schema"
)
NEEDED_RIGHTS = (
    "a sweep needs SELECT, DELETE and, to lock rows, UPDATE on the checkpoint tables, and setup() "
    "of the trash their owner"
)
FILTERED = (
    "row security would hide rows from this role, so the statement was not run. If a trigger of "
    "yours reads or writes that table: ALTER FUNCTION ... SET row_security = on"
)

RELIES_ON_PATH = (
    "the search path is closed, so that nothing planted there is called. If a trigger of yours "
    "relies on it: ALTER FUNCTION ... SET search_path = ..."
)

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}

# The names are looked up as every other statement looks them up. One catalog and no join: to plan
# one would cost more than all the rest.
_OIDS = ", ".join(f"pg_catalog.to_regclass('{table}')::pg_catalog.oid" for table in TABLES)
_NAMED = ", ".join(f"'{table}'::pg_catalog.regclass::pg_catalog.oid" for table in TABLES)
LOOK = Statement(
    f"""
    SELECT relname::pg_catalog.text, relnamespace::pg_catalog.regnamespace::pg_catalog.text,
        relkind::pg_catalog.text, pg_catalog.row_security_active(oid),
        pg_catalog.has_any_column_privilege(oid, 'SELECT'), current_user::pg_catalog.text,
        pg_catalog.set_config('row_security', 'off', true),
        pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), oid::pg_catalog.int8
    FROM pg_catalog.pg_class
    WHERE oid OPERATOR(pg_catalog.=) ANY ((SELECT ARRAY[{_OIDS}])::pg_catalog.oid[])
    """
)
"""Asks what :func:`refuse_hidden` judges, has the transaction refuse filtered reads, and closes the
search path. The tables are looked up before that: by a subquery, which is asked once."""

PROOF = Statement(
    f"""
    SELECT relname::pg_catalog.text, relnamespace::pg_catalog.regnamespace::pg_catalog.text,
        {FOUND_COLUMNS}, {FOUND_KEYS}
    FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) ANY (ARRAY[{_NAMED}])
    """
)
"""Asks what :func:`refuse_foreign` judges, of the tables that were found."""


def seeing_all(
    plan: Plan[Statement, T], proven: set[frozenset[int]], level: Statement | None = None
) -> Plan[Statement, T]:
    """Run a plan in a transaction that sees every row of the saver's tables, and nothing planted.

    Args:
        plan: The rest of the transaction.
        proven: The oids of tables that are known to be a saver's; what is found is added.
        level: Sets its isolation level, which has to come first.

    Raises:
        HiddenRowsError: Rows can be hidden, or a table may not be read.
        StorageUnusableError: The tables are not there, or others have their names.
    """
    if level is not None:
        yield level
    found = yield LOOK
    schema = refuse_hidden(found)
    oids = frozenset(row[-1] for row in found)
    return (yield from in_schema(_proving(plan, proven, oids), schema))


def _proving(
    plan: Plan[Statement, T], proven: set[frozenset[int]], oids: frozenset[int]
) -> Plan[Statement, T]:
    if oids not in proven:
        refuse_foreign((yield PROOF))
        proven.add(oids)
    return (yield from plan)


def refuse_hidden(rows: Iterable[Sequence[Any]]) -> str:
    """Refuse tables that may not show every row.

    Args:
        rows: The answer to :data:`LOOK`.

    Returns:
        The schema of the tables, quoted where it has to be.

    Raises:
        HiddenRowsError: Rows can be hidden, or a table may not be read.
        StorageUnusableError: The tables are not there.
    """
    found = sorted(rows, key=lambda row: TABLES.index(row[0]))
    if len(found) != len(TABLES):
        raise StorageUnusableError(NO_TABLES)
    names = {f"{schema}.{table}": row for table, schema, *row in found}
    role = f"role {found[0][5]!r}"
    if len({schema for _, schema, *_ in found}) > 1:
        raise HiddenRowsError(
            f"the search path of {role} finds tables of different schemas ({', '.join(names)}), "
            "which are not the tables of one saver; name the saver's schema first in search_path"
        )
    for name, (kind, *_) in names.items():
        if kind in _KINDS:
            raise HiddenRowsError(
                f"{name} is {_KINDS[kind]}, which can hide rows from {role}; nothing was deleted. "
                "Let the search path find the saver's own tables"
            )
    if unreadable := [name for name, (_, _, readable, *_) in names.items() if not readable]:
        raise HiddenRowsError(
            f"permission denied: {role} has no right SELECT on {', '.join(unreadable)}; "
            f"{NEEDED_RIGHTS}"
        )
    if secured := [name for name, (_, active, *_) in names.items() if active]:
        raise HiddenRowsError(
            f"row security on {', '.join(secured)} can hide rows from {role}, and a thread with "
            "hidden rows looks idle; nothing was deleted. Sweep as a role with BYPASSRLS, or as "
            "the owner of the tables without FORCE ROW LEVEL SECURITY; a policy that shows every "
            "row does not do"
        )
    return str(found[0][1])


def refuse_foreign(rows: Iterable[Sequence[Any]]) -> None:
    """Refuse tables that are not those of LangGraph's savers.

    Args:
        rows: The answer to :data:`PROOF`.

    Raises:
        StorageUnusableError: They are another program's.
    """
    for table, schema, columns, keys in sorted(rows, key=lambda row: TABLES.index(row[0])):
        if wrong := what_is_foreign(table, columns, keys):
            raise StorageUnusableError(
                f"{schema}.{table} is not a table of LangGraph's saver: {wrong}. Nothing was "
                "changed; name the schema of the saver's tables first in search_path"
            )
