"""Transactions of another isolation level than the one that the threads' locks need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from langgraph_ephemeral_checkpointer.errors import StorageError
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy import saver as saver_module
from tests.support.tenant_graphs import META, at, checkpoint

LEVELS = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
ONE = {"a": "1.1", "kept": "1.1"}


def _options(dsn: str, level: IsolationLevel) -> str:
    name = level.name.lower().replace("_", r"\ ")
    return psycopg.conninfo.make_conninfo(dsn, options=f"-c default_transaction_isolation={name}")


@contextmanager
def _while_it_waits(saver: Any, app_dsn: str, call: Callable[[], Any]) -> Iterator[Any]:
    """Hold the thread's lock in a transaction, with ``call`` waiting for it on a thread."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except StorageError as error:
            failed.append(error)

    waiting = threading.Thread(target=run)
    with psycopg.connect(app_dsn, autocommit=True) as rival:
        with rival.transaction():
            for statement in saver.names.lock("default", "t"):
                rival.execute(statement.sql, statement.params)
            waiting.start()
            query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            deadline = time.monotonic() + 10
            while rival.execute(query).fetchone() == (0,):
                assert time.monotonic() < deadline
            yield rival, failed
        waiting.join()


def _values(saver: Any, id_: str | None = None) -> Any:
    return saver.get_tuple(at("t", id_=id_)).checkpoint["channel_values"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_default_that_the_locks_do_not_work_under_is_refused_at_first_use(
    app_dsn: str, schema: str, superuser: Any, level: IsolationLevel
) -> None:
    with TenantPostgresSaver.from_conn_string(_options(app_dsn, level), schema=schema) as saver:
        for call in (saver.setup, lambda: saver.get_tuple(at("t"))):
            with pytest.raises(StorageError, match="default_transaction_isolation"):
                call()
    made = superuser.execute("SELECT to_regnamespace(%s)", [schema]).fetchone()
    assert made == (None,)


async def test_the_asynchronous_class_refuses_it_too(app_dsn: str, schema: str) -> None:
    dsn = _options(app_dsn, IsolationLevel.REPEATABLE_READ)
    async with AsyncTenantPostgresSaver.from_conn_string(dsn, schema=schema) as saver:
        with pytest.raises(StorageError, match="default_transaction_isolation"):
            await saver.aget_tuple(at("t"))


def test_without_the_refusal_a_save_would_tear_its_thread(
    app_dsn: str, schema: str, make_saver: Any, monkeypatch: Any
) -> None:
    """The control: what the refusal is for."""
    monkeypatch.setattr(saver_module, "check_isolation", lambda _role: None)
    dsn = _options(app_dsn, IsolationLevel.REPEATABLE_READ)
    two = checkpoint(2, {"a": 2, "kept": "k"}, versions={"a": "2.2", "kept": "1.1"})
    with (
        make_saver() as plain,
        TenantPostgresSaver.from_conn_string(dsn, schema=schema) as torn,
    ):
        for saver, left in ((torn, {"a": 2}), (plain, {"a": 2, "kept": "k"})):
            first = checkpoint(1, {"a": 1, "kept": "k"}, versions=ONE)
            place = plain.put(at("t"), first, META, ONE)
            saver.setup()

            def save(saver: Any = saver, place: Any = place) -> None:
                saver.put(place, two, META, {"a": "2.2"})

            with _while_it_waits(plain, app_dsn, save) as (rival, _):
                for suffix in ("", "_blobs", "_writes"):
                    rival.execute(f"DELETE FROM {schema}.agent_threads{suffix}")
            assert _values(plain) == left
            plain.delete_thread("t")


@pytest.mark.parametrize("level", LEVELS)
def test_a_prune_on_a_connection_of_another_level_goes_by_what_is_there_now(
    app_dsn: str, schema: str, make_saver: Any, level: IsolationLevel
) -> None:
    """A fork is saved while it waits for the lock, and needs what only the oldest holds."""
    with make_saver() as saver, psycopg.connect(app_dsn, autocommit=True) as conn:
        conn.isolation_level = level
        pruner = TenantPostgresSaver(conn, schema=schema)
        pruner.setup()
        first = checkpoint(1, {"a": 1, "kept": "k"}, versions=ONE)
        place = saver.put(at("t"), first, META, ONE)
        new = {"a": "2.2", "kept": "2.2"}
        saver.put(place, checkpoint(2, {"a": 2, "kept": "l"}, versions=new), META, new)
        fork = checkpoint(3, {"a": 3, "kept": "k"}, versions={"a": "3.3", "kept": "1.1"})
        with _while_it_waits(saver, app_dsn, lambda: pruner.prune(["t"])) as (rival, failed):
            TenantPostgresSaver(rival, schema=schema).put(place, fork, META, {"a": "3.3"})
        assert failed == []
        assert _values(saver) == {"a": 3, "kept": "k"}
        assert len([*saver.list(at("t"))]) == 1
