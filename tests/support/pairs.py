"""Two places per kind of saver: one to prune, and a twin to compare with."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver

from tests.support.places import sqlite_files


@pytest.fixture(scope="session")
def postgres_pair(postgres_database: str) -> Iterator[tuple[str, str]]:
    """Two DSNs of one database: two schemas with the upstream saver's tables each."""
    schemas = [f"prune_{uuid.uuid4().hex[:8]}" for _ in range(2)]
    dsns = []
    for schema in schemas:
        with psycopg.connect(postgres_database, autocommit=True) as conn:
            conn.execute(f"CREATE SCHEMA {schema}")
        dsn = psycopg.conninfo.make_conninfo(postgres_database, options=f"-csearch_path={schema}")
        with PostgresSaver.from_conn_string(dsn) as saver:
            saver.setup()
        dsns.append(dsn)
    yield dsns[0], dsns[1]
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        for schema in schemas:
            conn.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(scope="session")
def locate(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[str, str]]:
    """Where a pair of a given kind lives; each call gives an unused pair of files."""
    directory: Path = tmp_path_factory.mktemp("prune")

    def where(kind: str) -> tuple[str, str]:
        if kind == "memory":
            return "", ""
        if "sqlite" in kind:
            return sqlite_files(directory, uuid.uuid4().hex)
        dsns: tuple[str, str] = request.getfixturevalue("postgres_pair")
        return dsns

    return where
