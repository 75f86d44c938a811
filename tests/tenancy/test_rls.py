"""Raw SQL of the role that owns the tables: what Row-Level Security keeps from it.

The saver's own filters are out of the game here. Every attack is made twice: with the
security on it gets nothing, and with it off (the control) the same attack succeeds, so
that a test which could not fail would be seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support.tenant_graphs import at, put

TABLES = ("agent_threads", "agent_threads_blobs", "agent_threads_writes")
TEXT = "the victim's secret"


@pytest.fixture
def stored(make_saver: Any) -> None:
    """A victim's thread in all three tables, and one of the attacker's own."""
    with make_saver(tenant=None) as saver:
        for tenant in ("victim", "attacker"):
            with saver.tenant_scope(tenant):
                place = put(saver, "t", 1, {"log": [f"{tenant} {TEXT}"]})
                saver.put_writes(place, [("log", [TEXT])], "task")


def pin(conn: Any, tenant: str) -> None:
    conn.execute("SELECT set_config('langgraph.tenant', %s, true)", [tenant])


def nobody(conn: Any) -> None:
    """No tenant was ever set on this connection."""


def emptied(conn: Any) -> None:
    pin(conn, "victim")
    pin(conn, "")


def attacker(conn: Any) -> None:
    pin(conn, "attacker")


def after_an_error(conn: Any) -> None:
    """The victim's transaction failed on this connection just before."""
    try:
        with conn.transaction():
            pin(conn, "victim")
            conn.execute("SELECT 1 / 0")
    except psycopg.errors.DivisionByZero:
        pass


def after_a_commit(conn: Any) -> None:
    with conn.transaction():
        pin(conn, "victim")


def after_a_rolled_back_savepoint(conn: Any) -> None:
    with conn.transaction(force_rollback=True):
        pin(conn, "victim")


WHO = [
    nobody,
    emptied,
    attacker,
    after_an_error,
    after_a_commit,
    after_a_rolled_back_savepoint,
]
NESTED = {emptied, attacker}


def _where(table: str) -> str:
    return f"FROM {table} WHERE tenant = 'victim'"


def select(conn: Any, table: str) -> int:
    return len(conn.execute(f"SELECT * {_where(table)}").fetchall())


def count(conn: Any, table: str) -> int:
    return conn.execute(f"SELECT count(*) {_where(table)}").fetchone()[0]


def leak_through_an_error(conn: Any, table: str) -> int:
    """An expression that fails on the first row it is shown."""
    try:
        with conn.transaction():
            conn.execute(f"SELECT 1 {_where(table)} AND (thread_id || 'x')::int = 1")
    except psycopg.errors.InvalidTextRepresentation:
        return 1
    return 0


def update(conn: Any, table: str) -> int:
    return conn.execute(f"UPDATE {table} SET type = 'x' WHERE tenant = 'victim'").rowcount


def steal(conn: Any, table: str) -> int:
    try:
        with conn.transaction():
            return conn.execute(
                f"UPDATE {table} SET tenant = 'attacker', thread_id = 's' WHERE tenant = 'victim'"
            ).rowcount
    except psycopg.errors.InsufficientPrivilege:
        return 0


def plant(conn: Any, table: str) -> int:
    """Move rows of one's own into the victim's thread."""
    try:
        with conn.transaction():
            return conn.execute(
                f"UPDATE {table} SET tenant = 'victim', thread_id = 'p' WHERE tenant = 'attacker'"
            ).rowcount
    except psycopg.errors.InsufficientPrivilege:
        return 0


def delete(conn: Any, table: str) -> int:
    return conn.execute(f"DELETE {_where(table)}").rowcount


_VALUES = {
    "agent_threads": "(tenant, thread_id, checkpoint_ns, checkpoint_id, callers, channels, "
    "versions, held, delta, type, state) VALUES ('victim', 'n', '', 'c', '{}', '{}', '{}', '{}', "
    "'{}', 'x', '')",
    "agent_threads_blobs": "(tenant, thread_id, checkpoint_ns, channel, version, type, blob) "
    "VALUES ('victim', 'n', '', 'c', '1', 'x', '')",
    "agent_threads_writes": "(tenant, thread_id, checkpoint_ns, checkpoint_id, task_id, idx, "
    "task_path, channel, type, blob, written_at) VALUES ('victim', 'n', '', 'c', 't', 0, '', 'c', "
    "'x', '', now())",
}


def insert(conn: Any, table: str) -> int:
    try:
        with conn.transaction():
            return conn.execute(f"INSERT INTO {table} {_VALUES[table.rpartition('.')[2]]}").rowcount
    except psycopg.errors.InsufficientPrivilege:  # 42501
        return 0


def upsert(conn: Any, table: str) -> int:
    """Overwrite the victim's row through a conflict on its key."""
    key = conn.execute(
        "SELECT string_agg(a.attname, ', ' ORDER BY u.ord) FROM pg_index i, "
        "unnest(i.indkey::int2[]) WITH ORDINALITY AS u (num, ord) "
        "JOIN pg_attribute a ON a.attnum = u.num "
        "WHERE i.indrelid = %s::regclass AND a.attrelid = i.indrelid AND i.indisprimary",
        [table],
    ).fetchone()[0]
    try:
        with conn.transaction():
            text = f"INSERT INTO {table} {_VALUES[table.rpartition('.')[2]]}"
            return conn.execute(f"{text} ON CONFLICT ({key}) DO UPDATE SET type = 'y'").rowcount
    except psycopg.errors.InsufficientPrivilege:
        return 0


def insert_or_nothing(conn: Any, table: str) -> int:
    """ON CONFLICT DO NOTHING must not tell whether the victim has such a row either."""
    try:
        with conn.transaction():
            text = f"INSERT INTO {table} {_VALUES[table.rpartition('.')[2]]}"
            return conn.execute(f"{text} ON CONFLICT DO NOTHING RETURNING tenant").rowcount
    except psycopg.errors.InsufficientPrivilege:
        return 0


def lock_rows(conn: Any, table: str) -> int:
    return len(conn.execute(f"SELECT 1 {_where(table)} FOR UPDATE").fetchall())


def returning(conn: Any, table: str) -> int:
    query = f"UPDATE {table} SET type = type WHERE tenant = 'victim' RETURNING *"
    return len(conn.execute(query).fetchall())


def delete_by_a_join(conn: Any, table: str) -> int:
    """Rows of one's own lead to the victim's."""
    query = f"DELETE FROM {table} v USING (SELECT 'victim' AS tenant) o WHERE v.tenant = o.tenant"
    return conn.execute(query).rowcount


def _needs(version: int, conn: Any) -> bool:
    return conn.info.server_version >= version


def merge_delete(conn: Any, table: str) -> int:
    """MERGE came with Postgres 15; before it, a DELETE of the same rows."""
    if not _needs(150000, conn):
        return delete(conn, table)
    return conn.execute(
        f"MERGE INTO {table} t USING (SELECT 'victim' AS tenant) s ON t.tenant = s.tenant "
        "WHEN MATCHED THEN DELETE"
    ).rowcount


def merge_update(conn: Any, table: str) -> int:
    if not _needs(150000, conn):
        return update(conn, table)
    return conn.execute(
        f"MERGE INTO {table} t USING (SELECT 'victim' AS tenant) s ON t.tenant = s.tenant "
        "WHEN MATCHED THEN UPDATE SET type = 'x'"
    ).rowcount


def merge_insert(conn: Any, table: str) -> int:
    if not _needs(150000, conn):
        return insert(conn, table)
    columns, _, values = _VALUES[table.rpartition(".")[2]].partition(" VALUES ")
    try:
        with conn.transaction():
            return conn.execute(
                f"MERGE INTO {table} t USING (SELECT 1) s ON false "
                f"WHEN NOT MATCHED THEN INSERT {columns} VALUES {values}"
            ).rowcount
    except psycopg.errors.InsufficientPrivilege:
        return 0


def copy_out(conn: Any, table: str) -> int:
    """COPY of the whole table: every row of it has to be the reader's own."""
    with conn.cursor().copy(f"COPY {table} (tenant) TO STDOUT") as copy:
        return b"".join(bytes(part) for part in copy).split(b"\n").count(b"victim")


def copy_in(conn: Any, table: str) -> int:
    columns, _, values = _VALUES[table.rpartition(".")[2]].partition(" VALUES ")
    row = values.strip("()").replace("now()", "2024-01-01").replace("'", "").split(", ")
    try:
        with conn.transaction(), conn.cursor() as cursor:
            with cursor.copy(f"COPY {table} {columns} FROM STDIN") as copy:
                copy.write_row(row)
            return cursor.rowcount
    except psycopg.errors.FeatureNotSupported:  # "COPY FROM not supported with row-level security"
        return 0


def through_a_view(conn: Any, table: str) -> int:
    conn.execute(f"CREATE VIEW {table}_seen AS SELECT * FROM {table}")
    return len(conn.execute(f"SELECT 1 {_where(f'{table}_seen')}").fetchall())


def through_a_materialized_view(conn: Any, table: str) -> int:
    conn.execute(f"CREATE MATERIALIZED VIEW {table}_kept AS SELECT * FROM {table}")
    return len(conn.execute(f"SELECT 1 {_where(f'{table}_kept')}").fetchall())


def update_through_a_view(conn: Any, table: str) -> int:
    conn.execute(f"CREATE VIEW {table}_open AS SELECT * FROM {table}")
    return conn.execute(f"UPDATE {table}_open SET type = 'x' WHERE tenant = 'victim'").rowcount


def through_a_definer(conn: Any, table: str) -> int:
    """A function that runs as the owner of the tables."""
    name = table.replace(".", "_")
    conn.execute(
        f"CREATE FUNCTION {table.partition('.')[0]}.{name}() RETURNS bigint LANGUAGE sql "
        f"SECURITY DEFINER AS $$ SELECT count(*) {_where(table)} $$"
    )
    return conn.execute(f"SELECT {table.partition('.')[0]}.{name}()").fetchone()[0]


def leak_through_a_cheap_function(conn: Any, table: str) -> int:
    """A condition that the planner would love to test first, and that tells what it is shown."""
    name = f"{table}_leak"
    conn.execute(
        f"CREATE FUNCTION {name}(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS "
        "$$ BEGIN RAISE NOTICE 'saw %', $1; RETURN true; END $$"
    )
    heard: list[str] = []

    def hear(diagnostic: Any) -> None:
        heard.append(diagnostic.message_primary)

    conn.add_notice_handler(hear)
    try:
        conn.execute(f"SELECT 1 FROM {table} WHERE {name}(tenant)")
    finally:
        conn.remove_notice_handler(hear)
    return heard.count("saw victim")


def into_a_table_of_ones_own(conn: Any, table: str) -> int:
    conn.execute(f"CREATE TEMP TABLE loot AS SELECT * {_where(table)}")
    return conn.execute("SELECT count(*) FROM loot").fetchone()[0]


def through_a_cursor(conn: Any, table: str) -> int:
    with conn.cursor(name="held", withhold=False) as cursor:
        return len(cursor.execute(f"SELECT 1 {_where(table)}").fetchall())


def through_a_plan_of_the_victim(conn: Any, table: str) -> int:
    """A statement that was prepared and used with the victim pinned, then with whom it is now."""
    before = conn.execute("SELECT current_setting('langgraph.tenant', true)").fetchone()[0]
    pin(conn, "victim")
    conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    conn.execute(f"PREPARE peek AS SELECT 1 {_where(table)}")
    try:
        assert conn.execute("EXECUTE peek").fetchall()
        pin(conn, before or "")
        return len(conn.execute("EXECUTE peek").fetchall())
    finally:
        conn.execute("DEALLOCATE peek")


VERBS = [
    select,
    count,
    leak_through_an_error,
    update,
    steal,
    plant,
    delete,
    insert,
    upsert,
    insert_or_nothing,
    lock_rows,
    returning,
    delete_by_a_join,
    merge_delete,
    merge_update,
    merge_insert,
    copy_out,
    copy_in,
    through_a_view,
    through_a_materialized_view,
    update_through_a_view,
    through_a_definer,
    leak_through_a_cheap_function,
    into_a_table_of_ones_own,
    through_a_cursor,
    through_a_plan_of_the_victim,
]


@contextmanager
def security_off(app_dsn: str, schema: str) -> Iterator[None]:
    with psycopg.connect(app_dsn, autocommit=True) as conn:
        for table in TABLES:
            conn.execute(f"ALTER TABLE {schema}.{table} DISABLE ROW LEVEL SECURITY")
        try:
            yield
        finally:
            for table in TABLES:
                conn.execute(f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY")


def _attack(conn: Any, who: Callable[[Any], None], verb: Any, table: str) -> int:
    """What the attack got; nothing of it stays."""
    if who not in NESTED:
        who(conn)
    with conn.transaction(force_rollback=True):
        if who in NESTED:
            who(conn)
        return verb(conn, table)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("who", WHO, ids=lambda who: who.__name__)
def test_no_verb_reaches_another_tenant(app_dsn: str, schema: str, who: Any) -> None:
    """Neither without a tenant nor with another's, after errors and commits."""
    with psycopg.connect(app_dsn, autocommit=True) as conn:
        attacks = [(verb, f"{schema}.{table}") for verb in VERBS for table in TABLES]
        got = {(verb.__name__, table): _attack(conn, who, verb, table) for verb, table in attacks}
        assert {attack for attack, rows in got.items() if rows} == set()
        with security_off(app_dsn, schema):
            control = {
                (verb.__name__, table): _attack(conn, who, verb, table) for verb, table in attacks
            }
        assert {attack for attack, rows in control.items() if not rows} == set()


@pytest.mark.usefixtures("stored")
def test_copy_gives_nothing_without_a_tenant(app_dsn: str, schema: str) -> None:
    def dump(conn: Any) -> bytes:
        with conn.cursor().copy(
            f"COPY (SELECT blob FROM {schema}.agent_threads_blobs) TO STDOUT"
        ) as copy:
            return b"".join(bytes(part) for part in copy)

    with psycopg.connect(app_dsn, autocommit=True) as conn:
        assert dump(conn) == b""
        with security_off(app_dsn, schema):
            assert dump(conn).count(b"\n") == 2


@pytest.mark.usefixtures("stored")
def test_the_owner_is_not_exempt(app_dsn: str, schema: str) -> None:
    """FORCE is what binds the owner; without it the same query sees everything."""
    query = f"SELECT count(*) FROM {schema}.agent_threads"
    with psycopg.connect(app_dsn, autocommit=True) as conn:
        owner = conn.execute(
            "SELECT tableowner = current_user FROM pg_tables WHERE schemaname = %s", [schema]
        )
        assert owner.fetchone() == (True,)
        assert conn.execute(query).fetchone() == (0,)
        conn.execute(f"ALTER TABLE {schema}.agent_threads NO FORCE ROW LEVEL SECURITY")
        assert conn.execute(query).fetchone() == (2,)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("autocommit", [True, False])
def test_a_pooled_connection_comes_back_without_a_tenant(
    app_dsn: str, schema: str, autocommit: bool
) -> None:
    options = {"autocommit": autocommit}
    with ConnectionPool(app_dsn, min_size=1, max_size=1, kwargs=options) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, tenant="victim")
        for work in (
            lambda: saver.get_tuple(at("t")),
            lambda: put(saver, "t", 2),
            lambda: saver.prune(["t"]),
            lambda: [*saver.list(None)],
            lambda: saver.vacuum(10_000),
            lambda: saver.copy_thread("t", "never"),
            lambda: saver.delete_thread("never"),
        ):
            work()
            with pool.connection() as conn:
                assert select(conn, f"{schema}.agent_threads") == 0
        with security_off(app_dsn, schema), pool.connection() as conn:
            assert select(conn, f"{schema}.agent_threads") == 1


@pytest.mark.usefixtures("stored")
def test_parallel_tenants_on_one_pool_see_only_their_own(app_dsn: str, schema: str) -> None:
    """Queries without any filter, from eight threads on three connections."""
    with ConnectionPool(app_dsn, min_size=3, max_size=3) as pool:
        seen: dict[str, set[str]] = {"victim": set(), "attacker": set()}

        def look(tenant: str) -> None:
            for _ in range(25):
                with pool.connection() as conn, conn.transaction():
                    pin(conn, tenant)
                    rows = conn.execute(f"SELECT tenant FROM {schema}.agent_threads").fetchall()
                    seen[tenant] |= {name for (name,) in rows}

        def everybody() -> None:
            threads = [
                threading.Thread(target=look, args=(tenant,)) for tenant in [*seen, *seen] * 2
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        everybody()
        assert seen == {"victim": {"victim"}, "attacker": {"attacker"}}
        with security_off(app_dsn, schema):
            everybody()
        assert seen == {name: {"victim", "attacker"} for name in seen}


@pytest.mark.usefixtures("stored")
def test_no_verb_reaches_another_tenant_in_parallel_either(app_dsn: str, schema: str) -> None:
    """On one pool with the victim, who reads and saves all the time and misses nothing."""
    attacks = [(verb, f"{schema}.{table}") for verb in VERBS for table in TABLES]
    got: list[tuple[str, str]] = []
    done: list[str] = []
    stop = threading.Event()

    def attack(pool: Any, some: list[Any]) -> None:
        for who in NESTED:
            for verb, table in some:
                with pool.connection() as conn:
                    if _attack(conn, who, verb, table):
                        got.append((verb.__name__, table))
                    done.append(verb.__name__)

    def work(saver: Any) -> None:
        n = 10
        while not stop.is_set():
            put(saver, "t", n, {"log": [n]})
            assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"log": [n]}
            n += 1

    with ConnectionPool(app_dsn, min_size=4, max_size=4, kwargs={"autocommit": True}) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, tenant="victim")
        saver.setup()
        victim = threading.Thread(target=work, args=(saver,))
        # Each table's attacks on one thread: what they create has the table's name.
        attackers = [
            threading.Thread(
                target=attack, args=(pool, [one for one in attacks if one[1].endswith(f".{table}")])
            )
            for table in TABLES
        ]
        for thread in (victim, *attackers):
            thread.start()
        for thread in attackers:
            thread.join()
        stop.set()
        victim.join()
    assert len(done) == len(NESTED) * len(attacks)
    assert got == []


@pytest.mark.usefixtures("stored")
def test_emptying_a_whole_table_is_a_right_that_the_application_does_not_need(
    app_dsn: str, schema: str, superuser: Any
) -> None:
    """No policy holds for TRUNCATE: it is the grant that keeps an application role from it."""
    role = f"rows_of_{schema}"
    superuser.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD 'app'")
    try:
        superuser.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        superuser.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        )
        dsn = psycopg.conninfo.make_conninfo(app_dsn, user=role)
        with psycopg.connect(dsn, autocommit=True) as conn:
            for table in TABLES:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f"TRUNCATE {schema}.{table}")
                for change in ("DISABLE ROW LEVEL SECURITY", "NO FORCE ROW LEVEL SECURITY"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        conn.execute(f"ALTER TABLE {schema}.{table} {change}")
                assert _attack(conn, attacker, select, f"{schema}.{table}") == 0
            with TenantPostgresSaver.from_conn_string(dsn, schema=schema, tenant="victim") as saver:
                assert len([*saver.list(None)]) == 1
    finally:
        superuser.execute(f"DROP OWNED BY {role}")
        superuser.execute(f"DROP ROLE {role}")


@pytest.mark.usefixtures("stored")
def test_a_saver_whose_filter_is_forgotten_is_still_held_back(
    app_dsn: str, schema: str, make_saver: Any
) -> None:
    """The saver's own statements with every tenant filter cut out."""

    def forgetful(saver: Any) -> list[str]:
        render = saver.names.render

        def cut(template: str) -> str:
            text = render(template).replace("%(tenant)s::text", "tenant_of_row.tenant")
            return text.replace("WHERE c.tenant = tenant_of_row.tenant", "WHERE true")

        from langgraph_ephemeral_checkpointer.engine.plan import Statement
        from langgraph_ephemeral_checkpointer.tenancy.names import pin as pinned

        text = cut("SELECT c.state FROM {checkpoints} c WHERE c.tenant = %(tenant)s::text")
        _, rows = saver._perform([pinned("attacker"), Statement(text, {})])
        return rows

    with make_saver() as saver:
        saver.setup()
        assert len(forgetful(saver)) == 1
        with security_off(app_dsn, schema):
            assert len(forgetful(saver)) == 2
