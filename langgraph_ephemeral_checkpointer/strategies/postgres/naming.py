"""The tables of LangGraph's Postgres savers by their full names.

Statements name them as the savers do, by their bare names, which the search path resolves once, at
the beginning of a transaction. After that the path is closed: on it somebody may have planted a
function or an operator that fits better than the server's own, and would run with the sweeper's
rights. So a statement gets the schema that was found. A name that is forgotten here is an error of
the server's, and no other table.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import TABLES

T = TypeVar("T")

_NAME = f"(?:{'|'.join(TABLES)})"
_PLACE = re.compile(rf"\b((?:FROM|JOIN|UPDATE|INTO|TABLE)\s+)({_NAME}(?:,\s*{_NAME})*)\b(?!\.)")
_LITERAL = re.compile(rf"'({_NAME})'(?=::(?:pg_catalog\.)?regclass\b)")


def in_schema(plan: Plan[Statement, T], schema: str) -> Plan[Statement, T]:
    """Run a plan whose statements name the tables by their bare names.

    Args:
        plan: The plan.
        schema: Their schema, quoted where it has to be.
    """
    try:
        step = next(plan)
        while True:
            try:
                answer = yield _named(step, schema)
            except BaseException as error:  # noqa: BLE001 - the plan decides, and cleans up
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration is untyped


def _named(step: Statement, schema: str) -> Statement:
    # What is composed names its tables in full already.
    return replace(step, sql=qualified(step.sql, schema)) if isinstance(step.sql, str) else step


@lru_cache(maxsize=512)
def qualified(sql: str, schema: str) -> str:
    """Name the tables in a statement in full.

    Args:
        sql: The statement, to be executed with parameters.
        schema: Their schema, quoted where it has to be.
    """
    schema = schema.replace("%", "%%")
    literal = schema.replace("'", "''")
    sql = _LITERAL.sub(lambda found: f"'{literal}.{found[1]}'", sql)
    return _PLACE.sub(
        lambda found: found[1] + re.sub(_NAME, lambda name: f"{schema}.{name[0]}", found[2]), sql
    )
