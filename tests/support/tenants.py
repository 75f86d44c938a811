"""What the tenant saver's tests share: a role for which Row-Level Security holds."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver

_numbers = itertools.count()


@pytest.fixture(scope="session")
def tenant_database(postgres_database: str) -> Iterator[str]:
    """A DSN for a role without any privilege that would make Row-Level Security void."""
    role = f"lgec_app_{next(_numbers)}_{postgres_database.rpartition('_')[2][:8]}"
    role = "".join(c for c in role if c.isalnum() or c == "_")
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        name = sql.Identifier(role)
        conn.execute(
            sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD 'app'").format(name)
        )
        conn.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
                sql.Identifier(conn.info.dbname), name
            )
        )
    yield psycopg.conninfo.make_conninfo(postgres_database, user=role, password="app")
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
        conn.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture
def app_dsn(tenant_database: str) -> str:
    return tenant_database


@pytest.fixture
def schema(postgres_database: str) -> Iterator[str]:
    """The name of a schema that is made by the saver and dropped after the test."""
    name = f"tenants_{next(_numbers)}"
    yield name
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture
def saver(app_dsn: str, schema: str) -> Iterator[TenantPostgresSaver]:
    with TenantPostgresSaver.from_conn_string(app_dsn, schema=schema) as made:
        yield made


@pytest.fixture
def make_saver(app_dsn: str, schema: str) -> Callable[..., Any]:
    """Gives a context manager for a saver with options, on a connection of its own."""

    @contextmanager
    def make(**options: Any) -> Iterator[TenantPostgresSaver]:
        options.setdefault("schema", schema)
        with TenantPostgresSaver.from_conn_string(app_dsn, **options) as made:
            yield made

    return make


@pytest.fixture
def make_async_saver(app_dsn: str, schema: str) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[AsyncTenantPostgresSaver]:
        options.setdefault("schema", schema)
        async with AsyncTenantPostgresSaver.from_conn_string(app_dsn, **options) as made:
            yield made

    return make


@pytest.fixture
def superuser(postgres_database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees every row, to count what is really there."""
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        yield conn


@pytest.fixture
def maintenance_dsn(app_dsn: str, schema: str, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """A DSN for a role that sees every tenant of the schema's tables, which are made here."""
    role = f"sweeper_of_{schema}"
    superuser.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD 'app'")
    try:
        with TenantPostgresSaver.from_conn_string(app_dsn, schema=schema) as saver:
            for statement in saver.ddl(maintenance_role=role):
                saver.conn.execute(statement)
            saver.conn.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            for right in ("SELECT", "DELETE", "UPDATE", "INSERT"):
                saver.conn.execute(f"GRANT {right} ON ALL TABLES IN SCHEMA {schema} TO {role}")
        yield psycopg.conninfo.make_conninfo(app_dsn, user=role)
    finally:
        superuser.execute(f"DROP OWNED BY {role}")
        superuser.execute(f"DROP ROLE {role}")
