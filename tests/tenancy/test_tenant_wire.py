"""The short way on the wire: what it must do as psycopg's cursors do, and when it is left."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from langgraph_ephemeral_checkpointer.errors import StorageError, StorageUnavailableError
from langgraph_ephemeral_checkpointer.tenancy import (
    AsyncTenantPostgresSaver,
    TenantPostgresSaver,
)
from langgraph_ephemeral_checkpointer.tenancy import statements as sql
from langgraph_ephemeral_checkpointer.tenancy.rows import prepare_save, thread_target
from tests.tenancy.graphs import META, at, checkpoint, put


def _prepared(conn: psycopg.Connection[Any]) -> set[str]:
    query = "SELECT name FROM pg_prepared_statements WHERE name LIKE 'lgec%'"
    rows = conn.execute(query, prepare=False)
    return {name for (name,) in rows}


@pytest.mark.parametrize("command", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_save_survives_that_its_statements_are_deallocated(make_saver: Any, command: str) -> None:
    with make_saver(keep_checkpoints=1) as saver:
        for n in range(3):
            put(saver, "t", n)
        assert _prepared(saver.conn)
        saver.conn.execute(command, prepare=False)
        assert not _prepared(saver.conn)
        put(saver, "t", 3)
        assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(3)["id"]
        saver.conn.execute(command, prepare=False)
        assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(3)["id"]


async def test_an_asynchronous_save_survives_it_too(make_async_saver: Any) -> None:
    async with make_async_saver(keep_checkpoints=1) as saver:
        for n in range(3):
            made = checkpoint(n)
            await saver.aput(at("t"), made, META, made["channel_versions"])
            await saver.conn.execute("DEALLOCATE ALL", prepare=False)
        found = await saver.aget_tuple(at("t"))
        assert found.checkpoint["id"] == checkpoint(2)["id"]


def test_statements_that_were_prepared_since_are_not_prepared_twice(make_saver: Any) -> None:
    """The batch that finds some gone has prepared others before it fails."""
    with make_saver() as saver, make_saver(keep_checkpoints=1) as other:
        put(saver, "t", 1)
        other.conn = saver.conn
        saver.conn.execute(
            "DO $$ DECLARE name text; BEGIN FOR name IN SELECT p.name FROM pg_prepared_statements p"
            " WHERE p.name LIKE 'lgec%' AND p.statement LIKE '%advisory%' LOOP"
            " EXECUTE format('DEALLOCATE %I', name); END LOOP; END $$",
            prepare=False,
        )
        saver.get_tuple(at("t"))
        put(other, "t", 2)
        put(saver, "t", 3)
        saver.conn.execute("DEALLOCATE ALL", prepare=False)
        assert not _prepared(saver.conn)
        other.put_writes(at("t", id_=checkpoint(3)["id"]), [("log", 1)], "task")
        put(other, "t", 4)
        assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(4)["id"]


def test_without_a_threshold_nothing_is_prepared(make_saver: Any) -> None:
    with make_saver(keep_checkpoints=1, prepare_threshold=None) as saver:
        for n in range(3):
            put(saver, "t", n)
        assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(2)["id"]
        assert not _prepared(saver.conn)


def test_a_first_save_that_is_refused_leaves_the_connection_as_it_was(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    """Its statements are prepared all the same, and must not be prepared a second time."""
    with make_saver(keep_checkpoints=1) as saver:
        saver.setup()
        with pytest.raises(StorageError, match="0x00"):
            saver.put(at("t", "\0"), checkpoint(1), META, {})
        with pytest.raises(StorageError, match="0x00"):
            saver.put(at("t", id_="\0"), checkpoint(1), META, {})
        assert saver.conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert saver.conn.info.pipeline_status == psycopg.pq.PipelineStatus.OFF
        count = f"SELECT count(*) FROM {schema}.agent_threads"
        assert superuser.execute(count).fetchone() == (0,)
        put(saver, "t", 2)
        assert superuser.execute(count).fetchone() == (1,)


def test_a_server_that_ends_the_connection_is_told_of(make_saver: Any, superuser: Any) -> None:
    with make_saver(keep_checkpoints=1) as saver:
        put(saver, "t", 1)
        superuser.execute("SELECT pg_terminate_backend(%s, 5000)", [saver.conn.info.backend_pid])
        with pytest.raises(StorageUnavailableError):
            put(saver, "t", 2)
        assert saver.conn.closed


def test_a_wait_that_is_cancelled_is_told_of_and_stores_nothing(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    with make_saver(keep_checkpoints=1) as saver, make_saver() as other:
        put(saver, "t", 1)
        saver.conn.execute("SET lock_timeout = '50ms'")
        with other.conn.transaction():
            put(other, "t", 2)
            with pytest.raises(StorageUnavailableError, match="lock timeout"):
                put(saver, "t", 3)
        put(saver, "t", 4)
        rows = superuser.execute(f"SELECT checkpoint_id FROM {schema}.agent_threads").fetchall()
        assert rows == [(checkpoint(4)["id"],)]


def test_an_id_that_is_more_than_text_is_stored_as_text(make_saver: Any) -> None:
    class Id(str):
        """What a caller may have made of it."""

    with make_saver(keep_checkpoints=1) as saver:
        made = checkpoint(1)
        made["id"] = Id(made["id"])
        saver.put(at("t"), made, META, made["channel_versions"])
        assert saver.get_tuple(at("t", id_=made["id"])).checkpoint["id"] == made["id"]


def test_inside_a_pipeline_of_the_callers_it_stays_the_callers(make_saver: Any) -> None:
    with make_saver(keep_checkpoints=1) as saver:
        put(saver, "t", 1)
        with saver.conn.pipeline():
            put(saver, "t", 2)
            assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(2)["id"]
        assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(2)["id"]


@pytest.mark.parametrize(
    "template", [sql.SAVE, sql.SAVE_AND_TRIM, sql.SAVE_AND_TRIM_PLAIN], ids=["save", "any", "plain"]
)
def test_no_save_looks_beyond_its_thread(make_saver: Any, template: str) -> None:
    """A plan that is made while the tables are small stays for as long as the connection."""
    with make_saver() as saver:
        for n in range(3):
            put(saver, "t", n)
        made = checkpoint(3)
        target = thread_target("default", "t", at("t"))
        wanted = prepare_save(saver.serde, target, at("t"), made, META, made["channel_versions"])
        params = wanted.params(whole=False) | {"keep": 1, "seen": None}
        with saver.conn.transaction(force_rollback=True):
            saver.conn.execute("SET LOCAL langgraph.tenant = 'default'")
            saver.conn.execute("SET LOCAL plan_cache_mode = 'force_generic_plan'")
            text = "EXPLAIN " + saver.names.render(template)
            plan = [line for (line,) in saver.conn.execute(text, params, prepare=True)]
    assert not [line for line in plan if "Seq Scan" in line]
    looked_up = [line for line in plan if "Index Cond" in line]
    assert looked_up
    assert all("thread_id = " in line for line in looked_up)


def test_both_ways_leave_the_same_rows(app_dsn: str, schema: str, superuser: Any) -> None:
    """A transaction of the caller's takes the long one."""
    rows = []
    for tenant in ("short", "long"):
        with TenantPostgresSaver.from_conn_string(
            app_dsn, schema=schema, tenant=tenant, keep_checkpoints=2
        ) as saver:
            saver.setup()
            with saver.conn.transaction() if tenant == "long" else nullcontext():
                place = at("t")
                for n in range(4):
                    place = put(saver, "t", n, {"log": ["x" * n], "n": n}, config=place)
                    saver.put_writes(place, [("log", n), ("__error__", "e")], "task", "path")
            assert bool(_prepared(saver.conn)) == (tenant == "short")
        found = superuser.execute(
            f"SELECT to_jsonb(c) - 'tenant', to_jsonb(b) - 'tenant', to_jsonb(w) - 'tenant'"
            "   - 'written_at'"
            f" FROM {schema}.agent_threads c JOIN {schema}.agent_threads_blobs b"
            " USING (tenant, thread_id)"
            f" JOIN {schema}.agent_threads_writes w USING (tenant, thread_id)"
            " WHERE tenant = %s ORDER BY 1, 2, 3",
            [tenant],
        ).fetchall()
        rows.append(found)
    assert rows[0]
    assert rows[0] == rows[1]


async def test_a_cancelled_task_leaves_a_pool_that_works(app_dsn: str, schema: str) -> None:
    import asyncio

    from psycopg_pool import AsyncConnectionPool

    async with AsyncConnectionPool(app_dsn, min_size=1, max_size=1, open=False) as pool:
        saver = AsyncTenantPostgresSaver(pool, schema=schema, keep_checkpoints=1)
        made = checkpoint(1)
        await saver.aput(at("t"), made, META, made["channel_versions"])
        with psycopg.connect(app_dsn) as holder:
            holding = TenantPostgresSaver(holder, schema=schema)
            with holder.transaction():
                await asyncio.to_thread(holding.delete_thread, "t")
                again = checkpoint(2)
                task = asyncio.ensure_future(
                    saver.aput(at("t"), again, META, again["channel_versions"])
                )
                waiting = "SELECT count(*) FROM pg_locks WHERE locktype='advisory' AND NOT granted"
                async with await psycopg.AsyncConnection.connect(app_dsn, autocommit=True) as watch:
                    while await (await watch.execute(waiting)).fetchone() == (0,):
                        await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        last = checkpoint(3)
        await saver.aput(at("t"), last, META, last["channel_versions"])
        found = [one.checkpoint["id"] async for one in saver.alist(at("t"))]
        assert found == [last["id"]]
