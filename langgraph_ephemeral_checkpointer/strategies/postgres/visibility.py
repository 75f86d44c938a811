"""Making sure that the tables of LangGraph's Postgres savers hide no row from the role at work.

A thread of which only some rows are seen looks idle, finished or absent. So each transaction on
these tables begins with :data:`LOOK`, and goes on only where its answer shows that every row is
seen: a policy may be switched on at any time, and a pool gives each transaction another session.
What changes after that look (a role loses BYPASSRLS), and what the trash has, is held by
``row_security = off``: the server then refuses a statement that a policy would filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import HiddenRowsError, StorageUnusableError
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import TABLES

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

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}

# The names are looked up as every other statement looks them up. One catalog and no join: to plan
# one would cost more than all the rest.
_OIDS = ", ".join(f"pg_catalog.to_regclass('{table}')::pg_catalog.oid" for table in TABLES)
LOOK = Statement(
    f"""
    SELECT relname::pg_catalog.text, relnamespace::pg_catalog.regnamespace::pg_catalog.text,
        relkind::pg_catalog.text, pg_catalog.row_security_active(oid),
        pg_catalog.has_any_column_privilege(oid, 'SELECT'), current_user::pg_catalog.text,
        pg_catalog.set_config('row_security', 'off', true)
    FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) ANY (ARRAY[{_OIDS}])
    """
)
"""Asks what :func:`refuse_hidden` judges, and has the transaction refuse filtered reads."""


def seeing_all(plan: Plan[Statement, T], level: Statement | None = None) -> Plan[Statement, T]:
    """Run a plan in a transaction that sees every row of the saver's tables.

    Args:
        plan: The rest of the transaction.
        level: Sets its isolation level, which has to come first.

    Raises:
        HiddenRowsError: Rows can be hidden, or a table may not be read.
        StorageUnusableError: The tables are not there.
    """
    if level is not None:
        yield level
    refuse_hidden((yield LOOK))
    return (yield from plan)


def refuse_hidden(rows: Iterable[Sequence[Any]]) -> None:
    """Refuse tables that may not show every row.

    Args:
        rows: The answer to :data:`LOOK`.

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
