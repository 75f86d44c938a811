"""The short way on the wire: what it must do as psycopg's cursors do, and when it is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_ephemeral_checkpointer.errors import StorageError, StorageUnavailableError
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy import statements as sql
from langgraph_ephemeral_checkpointer.tenancy.rows import prepare_save, thread_target
from tests.support.tenant_graphs import META, at, checkpoint, put


def _prepared(conn: psycopg.Connection[Any]) -> set[str]:
    query = "SELECT name FROM pg_prepared_statements WHERE name LIKE 'lgec%'"
    rows = conn.execute(query, prepare=False)
    return {name for (name,) in rows}


@asynccontextmanager
async def _waiting(saver: Any, superuser: Any, made: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """A save that waits for its thread's lock, which somebody has to the end of the block."""
    await saver.setup()
    key = saver.names.key("default", "t")
    superuser.execute("SELECT pg_advisory_lock(%s::bigint)", [key])
    try:
        task = asyncio.ensure_future(saver.aput(at("t"), made, META, made["channel_versions"]))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while superuser.execute(waiting).fetchone() == (0,):
            await asyncio.sleep(0.01)
        yield task
    finally:
        superuser.execute("SELECT pg_advisory_unlock(%s::bigint)", [key])


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
    "template",
    [sql.SAVE, sql.SAVE_AND_TRIM, sql.SAVE_AND_TRIM_PLAIN, sql.SAVE_AND_REPLACE],
    ids=["save", "any", "plain", "replace"],
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


def test_a_notification_that_comes_with_a_save_is_handed_on(
    make_saver: Any, superuser: Any
) -> None:
    with make_saver(keep_checkpoints=1) as saver:
        put(saver, "t", 1)
        told: list[str] = []
        saver.conn.add_notify_handler(lambda notice: told.append(notice.payload))
        saver.conn.execute("LISTEN news")
        superuser.execute("NOTIFY news, 'before'")
        put(saver, "t", 2)
        assert told == ["before"]


def test_why_the_server_ended_the_connection_is_told(make_saver: Any, superuser: Any) -> None:
    with make_saver(keep_checkpoints=1) as saver:
        put(saver, "t", 1)
        superuser.execute("SELECT pg_terminate_backend(%s, 5000)", [saver.conn.info.backend_pid])
        with pytest.raises(StorageUnavailableError, match="administrator command"):
            put(saver, "t", 2)


def test_what_is_larger_than_every_buffer_goes_both_ways(make_saver: Any) -> None:
    large = random.Random(1).randbytes(20_000_000)
    with make_saver(keep_checkpoints=1) as saver:
        for n in range(2):
            place = put(saver, "t", n, {"large": large})
            saver.put_writes(place, [("large", large)], "task")
        found = saver.get_tuple(at("t"))
        assert found.checkpoint["channel_values"]["large"] == large
        assert found.pending_writes[0][2] == large


async def test_a_task_that_is_cancelled_while_it_sends_leaves_a_connection_that_works(
    app_dsn: str, make_async_saver: Any, superuser: Any
) -> None:
    """The server waits for the thread's lock, and does not take what comes after that."""
    async with make_async_saver(keep_checkpoints=1) as saver:
        made = checkpoint(1, {"large": bytes(30_000_000)})
        async with _waiting(saver, superuser, made) as task:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not saver.conn.closed
        made = checkpoint(2)
        await saver.aput(at("t"), made, META, made["channel_versions"])
        assert [one.checkpoint["id"] async for one in saver.alist(None)] == [made["id"]]


@pytest.mark.parametrize("turns", [1, 4, 5])
async def test_a_task_that_is_cancelled_twice_answers_nobody_with_what_was_left(
    make_async_saver: Any, superuser: Any, turns: int
) -> None:
    """Also where the error is kept, and with it all that was under way."""
    async with make_async_saver(keep_checkpoints=1) as saver:
        async with _waiting(saver, superuser, checkpoint(1)) as task:
            task.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as kept:
                await task
        made = checkpoint(2)
        if saver.conn.closed:
            with pytest.raises(StorageUnavailableError):
                await saver.aput(at("t"), made, META, made["channel_versions"])
        else:
            await saver.aput(at("t"), made, META, made["channel_versions"])
            found = await saver.aget_tuple(at("t"))
            assert found.checkpoint["id"] == made["id"]
        assert kept


@pytest.mark.parametrize("before", [0, 1])
def test_a_statement_whose_preparing_failed_is_prepared_again(
    app_dsn: str, schema: str, superuser: Any, before: int
) -> None:
    """psycopg takes it for prepared, although the server never got to it."""
    with psycopg.connect(app_dsn, autocommit=True) as conn:
        saver = TenantPostgresSaver(conn, schema=schema)
        saver.setup()
        conn.execute("SET lock_timeout = '20ms'")
        key = saver.names.key("default", "t")
        for _ in range(before):
            saver.delete_thread("t")
        for _ in range(4):
            superuser.execute("SELECT pg_advisory_lock(%s::bigint)", [key])
            with pytest.raises(StorageUnavailableError, match="lock timeout"):
                saver.delete_thread("t")
            superuser.execute("SELECT pg_advisory_unlock(%s::bigint)", [key])
            put(saver, "t", 1)
            saver.delete_thread("t")
            assert saver.get_tuple(at("t")) is None


async def test_it_is_so_on_an_asynchronous_connection_too(
    app_dsn: str, schema: str, superuser: Any
) -> None:
    conn = await psycopg.AsyncConnection.connect(app_dsn, autocommit=True)
    async with conn:
        saver = AsyncTenantPostgresSaver(conn, schema=schema)
        await saver.setup()
        await conn.execute("SET lock_timeout = '20ms'")
        key = saver.names.key("default", "t")
        for _ in range(4):
            superuser.execute("SELECT pg_advisory_lock(%s::bigint)", [key])
            with pytest.raises(StorageUnavailableError, match="lock timeout"):
                await saver.adelete_thread("t")
            superuser.execute("SELECT pg_advisory_unlock(%s::bigint)", [key])
            await saver.adelete_thread("t")
            await saver.aprune(["t"])


def test_a_pool_may_discard_everything_whenever_a_connection_comes_back(
    app_dsn: str, schema: str
) -> None:
    with ConnectionPool(
        app_dsn,
        min_size=1,
        max_size=1,
        kwargs={"autocommit": True},
        reset=lambda conn: conn.execute("DISCARD ALL", prepare=False),
    ) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, keep_checkpoints=2)
        for n in range(12):
            place = put(saver, "t", n)
            saver.put_writes(place, [("log", n)], "task")
            assert len([*saver.list(at("t"))]) == min(n + 1, 2)


def test_a_save_that_fails_as_it_is_committed_is_told_of(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    with make_saver(keep_checkpoints=1) as saver:
        put(saver, "t", 1)
        superuser.execute(
            f"CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
            " BEGIN IF NEW.channel = 'bad' THEN RAISE 'refused'; END IF; RETURN NEW; END $$"
        )
        superuser.execute(
            f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {schema}.agent_threads_blobs"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
            f" EXECUTE FUNCTION {schema}.refuse()"
        )
        with pytest.raises(StorageError, match="refused"):
            put(saver, "t", 2, {"bad": 1})
        assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(1)["id"]
        put(saver, "t", 3)
        assert [one.checkpoint["id"] for one in saver.list(None)] == [checkpoint(3)["id"]]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_serializer_may_give_any_kind_of_bytes(make_saver: Any, kind: Any) -> None:
    class Serde(JsonPlusSerializer):
        """One that hands out its buffer."""

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            tag, data = super().dumps_typed(obj)
            return tag, kind(data)

    with make_saver(serde=Serde(), keep_checkpoints=1) as saver:
        place = put(saver, "t", 1)
        saver.put_writes(place, [("log", 2)], "task")
        found = saver.get_tuple(at("t"))
        assert found.checkpoint["channel_values"] == {"log": [1]}
        assert found.pending_writes == [("task", "log", 2)]
