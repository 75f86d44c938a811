"""A schema full of traps: whoever calls one of its functions or operators gets an error.

Every operator of pg_catalog is in it once more, and every function that this package might name;
what takes values of any type, once for each type. Postgres prefers an exact match wherever in the
search path it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

import langgraph_ephemeral_checkpointer

_ELEMENTS = ("text", "bytea", "bigint", "integer")
_TYPES = {
    *_ELEMENTS,
    *(f"{element}[]" for element in _ELEMENTS),
    *("boolean", "timestamp with time zone", "double precision", "numeric", "interval", "name"),
    *("oid", "regclass", "xid", "jsonb", "json", "tid", '"char"', "uuid", "void", "record"),
    *("oid[]", "name[]", "smallint", "smallint[]", "int2vector", "oidvector"),
}
_DOMAINS = ("text", "bytea", "timestamptz", "float8", "jsonb", "oid", "int8", "int4", "bool")
_ANY_ELEMENT = {"anyelement", "anynonarray", "anycompatible", "anycompatiblenonarray", '"any"'}
_ANY_ARRAY = {"anyarray", "anycompatiblearray"}

_FUNCTIONS = """
SELECT p.proname, p.prokind::text, p.proretset, p.prorettype::regtype::text,
    ARRAY(SELECT u.type::regtype::text FROM unnest(p.proargtypes::oid[])
          WITH ORDINALITY AS u (type, place) ORDER BY place)
FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a')
    AND p.proname = ANY (%s)
"""
_OPERATORS = """
SELECT oprname, oprresult::regtype::text, ARRAY[oprleft::regtype::text, oprright::regtype::text]
FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprkind = 'b'
"""

# Some are there already, or of a kind that nobody can make.
_MAKE = """
CREATE FUNCTION pg_temp.make(statements text[]) RETURNS void LANGUAGE plpgsql AS $make$
DECLARE one text;
BEGIN
    FOREACH one IN ARRAY statements LOOP
        BEGIN EXECUTE one; EXCEPTION WHEN others THEN NULL; END;
    END LOOP;
END $make$
"""


def plant(superuser: psycopg.Connection[Any], schema: str) -> None:
    """Make the schema, open to everybody."""
    name = sql.Identifier(schema)
    superuser.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    superuser.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO PUBLIC").format(name))
    made = [
        *_functions(superuser, name),
        *_operators(superuser, name),
        *(
            sql.SQL("CREATE DOMAIN {}.{} AS pg_catalog.{} CHECK (false)").format(name, *[one] * 2)
            for one in map(sql.Identifier, _DOMAINS)
        ),
    ]
    superuser.execute(_MAKE)
    superuser.execute("SELECT pg_temp.make(%s)", [[one.as_string(superuser) for one in made]])


def path_of(dsn: str, path: str) -> str:
    """The DSN, with a search path."""
    return psycopg.conninfo.make_conninfo(dsn, options=f"-csearch_path={path}")


def _functions(conn: psycopg.Connection[Any], schema: sql.Identifier) -> Iterator[sql.Composed]:
    found = conn.execute(_FUNCTIONS, [_words()]).fetchall()
    for name, kind, is_set, result, args in found:
        for given, gives in _forms(args, result):
            where = schema.as_string(conn), sql.Identifier(name).as_string(conn)
            if kind == "f":
                yield _trap(".".join(where), given, f"SETOF {gives}" if is_set else gives)
                continue
            step = sql.Identifier(f"step of {name} {given}").as_string(conn)
            yield _trap(f"{where[0]}.{step}", [gives, *given], gives)
            yield sql.SQL(
                f"CREATE AGGREGATE {'.'.join(where)} ({', '.join(given) or '*'}) "
                f"(sfunc = {where[0]}.{step}, stype = {gives})"
            )


def _operators(conn: psycopg.Connection[Any], schema: sql.Identifier) -> Iterator[sql.Composed]:
    where = schema.as_string(conn)
    for name, result, args in conn.execute(_OPERATORS).fetchall():
        for given, gives in _forms(args, result):
            function = f"{where}.{sql.Identifier(f'op {name} {given}').as_string(conn)}"
            yield _trap(function, given, gives)
            yield sql.SQL(
                f"CREATE OPERATOR {where}.{name} "
                f"(leftarg = {given[0]}, rightarg = {given[1]}, function = {function})"
            )


def _trap(name: str, args: Sequence[str], result: str) -> Any:
    body = "BEGIN RAISE EXCEPTION 'planted'; END"
    return sql.SQL(
        f"CREATE FUNCTION {name} ({', '.join(args)}) RETURNS {result} "
        f"LANGUAGE plpgsql AS $${body}$$".replace("{", "{{").replace("}", "}}")
    ).format()


def _forms(args: Sequence[str], result: str) -> Iterator[tuple[list[str], str]]:
    """What a function takes and gives, with each type for those that may be any."""
    for element in _ELEMENTS:
        *given, gives = (
            f"{element}[]" if one in _ANY_ARRAY else element if one in _ANY_ELEMENT else one
            for one in (*args, result)
        )
        if {*given, gives} <= _TYPES:
            yield given, gives
        if [*given, gives] == [*args, result]:
            return


def _words() -> list[str]:
    """Every word in the source of the package."""
    package = Path(langgraph_ephemeral_checkpointer.__file__).parent
    return [
        *{word for file in package.rglob("*.py") for word in re.findall(r"\w+", file.read_text())}
    ]
