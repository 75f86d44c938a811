"""On Postgres a row that is hidden from the role that sweeps is not taken for an absent one."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import contextmanager
from itertools import combinations

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_ephemeral_checkpointer import (
    HiddenRowsError,
    NotSetUpError,
    StorageError,
    StorageUnusableError,
    TTLPolicy,
    TTLSweeper,
    forecast,
    thread_statuses,
)
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.retention import purge_messages
from langgraph_ephemeral_checkpointer.strategies import AsyncPostgresStrategy, PostgresStrategy
from langgraph_ephemeral_checkpointer.strategies.tenant.migrate import migrate_from_postgres
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support import graphs
from tests.support.pgbouncer import pgbouncer

DAY = 86400.0
TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
SUBSETS = [some for count in (1, 2, 3) for some in combinations(TABLES, count)]
IDLE = TTLPolicy(idle_ttl_seconds=DAY)
TRIMS = TTLPolicy(max_checkpoints_per_thread=1)


class Place:
    """A schema with tables of the stock saver, and a role that may read and write all of them.

    Attributes:
        owner: A connection of a superuser, in the schema.
        dsn: Of the superuser.
        role: The role's name.
        role_dsn: Of the role.
    """

    def __init__(self, owner, dsn, role, role_dsn, schema):
        self.owner, self.dsn, self.role, self.role_dsn = owner, dsn, role, role_dsn
        self.schema = schema

    def dump(self):
        """Every row of every table."""
        return {
            table: sorted(map(repr, self.owner.execute(f"SELECT * FROM {table}")))
            for table in TABLES
        }

    def __call__(self, *statements):
        for statement in statements:
            self.owner.execute(statement.format(role=self.role))

    @contextmanager
    def secured(self, tables, *policies):
        """Switch row security on, with these policies."""
        for table in tables:
            self(
                f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
                *(f"CREATE POLICY p{n} ON {table} {one}" for n, one in enumerate(policies)),
            )
        try:
            yield
        finally:
            for table in tables:
                self(
                    f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
                    *(f"DROP POLICY p{n} ON {table}" for n in range(len(policies))),
                )

    @contextmanager
    def saver(self):
        """The stock saver of the role."""
        with PostgresSaver.from_conn_string(self.role_dsn) as saver:
            yield saver


@pytest.fixture
def place(pg_dsn):
    name = f"hidden_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(pg_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN NOSUPERUSER NOBYPASSRLS")
        admin.execute(f"CREATE SCHEMA {name}")
        where = f"-csearch_path={name}"
        dsn = make_conninfo(pg_dsn, options=where)
        try:
            for table in TABLES:
                admin.execute(f"CREATE TABLE {name}.{table} (LIKE public.{table} INCLUDING ALL)")
            admin.execute(f"GRANT USAGE ON SCHEMA {name} TO {name}")
            admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {name} TO {name}")
            with psycopg.connect(dsn, autocommit=True) as owner:
                yield Place(owner, dsn, name, make_conninfo(dsn, user=name), name)
        finally:
            admin.execute(f"DROP SCHEMA {name} CASCADE")
            admin.execute(f"DROP OWNED BY {name}")
            admin.execute(f"DROP ROLE {name}")


@pytest.fixture
def waiting(place):
    """The place with threads of two real graphs: one waits for a human, one is done."""
    with PostgresSaver.from_conn_string(place.dsn) as saver:
        config = {"configurable": {"thread_id": "waits"}}
        graphs.approval(saver).invoke({"items": ["hello"]}, config)
        assert graphs.approval(saver).get_state(config).interrupts
        config = {"configurable": {"thread_id": "done"}}
        graphs.chat(saver).invoke({"messages": [("user", "hello")]}, config)
        graphs.chat(saver).invoke({"messages": [("user", "again")]}, config)
    return place


def later():
    """Two days from now."""
    return time.time() + 2 * DAY


def sweeper(saver, policy=IDLE, **options):
    return TTLSweeper(saver, policy, clock=later, **options)


DOES = {
    "sweep": lambda saver: sweeper(saver).sweep(),
    "sweep, reading first": lambda saver: sweeper(saver, on_before_delete=lambda *_: True).sweep(),
    "sweep, unsafe": lambda saver: sweeper(saver, safe_delete=False).sweep(),
    "sweep, longest overdue": lambda saver: sweeper(saver, max_deletes_per_sweep=1).sweep(),
    "sweep, one of several": lambda saver: sweeper(saver, enable_coordination=True).sweep(),
    "dry run": lambda saver: sweeper(saver).sweep(dry_run=True),
    "prune": lambda saver: sweeper(saver, TRIMS).sweep(),
    "prune of threads": lambda saver: PostgresStrategy(saver).prune_threads(
        ["waits", "done"], 1, dry_run=False
    ),
    "delete of threads": lambda saver: PostgresStrategy(saver).delete_threads(["waits"], None),
    "delete of unread threads": lambda saver: PostgresStrategy(saver).delete_unread(
        ["waits"], later()
    ),
    "orphans": lambda saver: sweeper(saver).orphans(),
    "delete of orphans": lambda saver: sweeper(saver).delete_orphans(),
    "purge": lambda saver: purge_messages(saver, older_than=DAY, clock=later),
    "dry purge": lambda saver: purge_messages(saver, older_than=DAY, clock=later, dry_run=True),
    "status": lambda saver: list(thread_statuses(saver, IDLE, clock=later)),
    "forecast": lambda saver: forecast(saver, [DAY]),
    "sizes": lambda saver: PostgresStrategy(saver).measure_threads(["waits"]),
    "interrupts": lambda saver: PostgresStrategy(saver).find_interrupted(["waits"]),
    "set-up": lambda saver: sweeper(saver).setup(),
}
POLICIES = {
    "no policy": (),
    "SELECT only": ("FOR SELECT USING (thread_id <> 'waits')",),
    "SELECT and UPDATE": (
        "FOR SELECT USING (thread_id <> 'waits')",
        "FOR UPDATE USING (thread_id <> 'waits')",
    ),
    "all of it": ("USING (true)",),
}


def refusals(place):
    """Try everything as the role; what each was refused with, once nothing has changed."""
    before, told = place.dump(), {}
    with place.saver() as saver:
        for name, do in DOES.items():
            try:
                do(saver)
            except HiddenRowsError as error:
                told[name] = str(error)
    assert list(told) == list(DOES)
    assert place.dump() == before
    return told.values()


@pytest.mark.parametrize("policies", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("tables", SUBSETS, ids="+".join)
def test_row_security_is_an_error_that_names_table_and_role(waiting, tables, policies):
    with waiting.secured(tables, *policies):
        for told in refusals(waiting):
            assert all(f"{waiting.schema}.{table}" in told for table in tables)
            assert repr(waiting.role) in told
            assert "BYPASSRLS" in told


def test_who_sees_every_row_sweeps_as_ever(waiting):
    """A superuser, a role with BYPASSRLS, the owner, and a member of the owner's role."""
    waiting.owner.execute(f"CREATE ROLE {waiting.role}_owner")
    try:
        ways = (
            (f"ALTER ROLE {waiting.role} BYPASSRLS", f"ALTER ROLE {waiting.role} NOBYPASSRLS"),
            (
                f"GRANT {waiting.role}_owner TO {waiting.role}",
                f"REVOKE {waiting.role}_owner FROM {waiting.role}",
            ),
        )
        for table in TABLES:
            waiting(f"ALTER TABLE {table} OWNER TO {waiting.role}_owner")
        with waiting.saver() as saver, waiting.secured(TABLES):
            for make, undo in ways:
                waiting(make)
                assert sweeper(saver).sweep(dry_run=True).deleted_thread_ids == ["done"]
                waiting(undo)
                with pytest.raises(HiddenRowsError):
                    sweeper(saver).sweep(dry_run=True)
            for table in TABLES:
                waiting(f"ALTER TABLE {table} OWNER TO {waiting.role}")
            waiting("ALTER TABLE checkpoint_writes FORCE ROW LEVEL SECURITY")
            with pytest.raises(HiddenRowsError, match=r"\.checkpoint_writes"):
                sweeper(saver).sweep()
            waiting("ALTER TABLE checkpoint_writes NO FORCE ROW LEVEL SECURITY")
            assert sweeper(saver).sweep().deleted_thread_ids == ["done"]
    finally:
        waiting.owner.execute(f"DROP OWNED BY {waiting.role}_owner CASCADE")
        waiting.owner.execute(f"DROP ROLE {waiting.role}_owner")


def test_row_security_that_is_switched_on_between_two_sweeps_stops_the_second(waiting):
    with waiting.saver() as saver:
        one = sweeper(saver)
        assert one.sweep(dry_run=True).deleted_thread_ids == ["done"]
        before = waiting.dump()
        with waiting.secured(["checkpoint_writes"]), pytest.raises(HiddenRowsError):
            one.sweep()
        assert waiting.dump() == before
        assert one.sweep().deleted_thread_ids == ["done"]


def test_row_security_that_is_switched_on_within_a_sweep_stops_it(waiting):
    before = waiting.dump()

    def secure(*_):
        waiting(
            "ALTER TABLE checkpoint_writes ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE checkpoints ENABLE ROW LEVEL SECURITY",
        )
        return True

    with waiting.saver() as saver:
        result = sweeper(saver, on_before_delete=secure).sweep()
    assert result.deleted_thread_ids == []
    assert "row security on" in result.errors[""]
    assert waiting.role in result.errors[""]
    assert waiting.dump() == before


def test_row_security_that_is_switched_on_within_a_transaction_is_an_error(waiting):
    """A role loses BYPASSRLS between two statements, for which no lock on a table is needed."""

    def plan():
        yield Statement("SELECT 1")
        waiting(f"ALTER ROLE {waiting.role} NOBYPASSRLS")
        return (yield Statement("SELECT count(*) FROM checkpoint_writes"))

    waiting(f"ALTER ROLE {waiting.role} BYPASSRLS")
    with waiting.saver() as saver, waiting.secured(TABLES):
        for run in (PostgresStrategy(saver).query, PostgresStrategy(saver).transact):
            waiting(f"ALTER ROLE {waiting.role} BYPASSRLS")
            with pytest.raises(StorageError, match="row security"):
                run(plan())


def test_the_setting_ends_with_the_transaction(waiting):
    with waiting.saver() as saver:
        sweeper(saver).sweep(dry_run=True)
        assert saver.conn.execute("SHOW row_security").fetchone()["row_security"] == "on"


@pytest.mark.parametrize("tables", SUBSETS, ids="+".join)
async def test_every_way_to_connect_is_told(waiting, tables):
    plain = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    dsn, size = waiting.role_dsn, {"min_size": 1, "max_size": 2, "open": False}
    with waiting.secured(tables):
        with (
            ConnectionPool(dsn, kwargs=plain, **size) as pool,
            PostgresSaver.from_conn_string(dsn, pipeline=True) as piped,
        ):
            for saver in (PostgresSaver(pool), piped):
                with pytest.raises(HiddenRowsError):
                    await asyncio.to_thread(sweeper(saver).sweep)
        async with (
            AsyncConnectionPool(dsn, kwargs=plain, **size) as apool,
            AsyncPostgresSaver.from_conn_string(dsn) as alone,
            AsyncPostgresSaver.from_conn_string(dsn, pipeline=True) as apiped,
        ):
            for saver in (AsyncPostgresSaver(apool), alone, apiped):
                with pytest.raises(HiddenRowsError):
                    await sweeper(saver).asweep()
                with pytest.raises(HiddenRowsError):
                    await AsyncPostgresStrategy(saver).prune_threads(["done"], 1, dry_run=False)


def test_through_a_pooler_in_transaction_mode_it_is_told(waiting):
    # The pooler drops options, so that the role finds the schema by itself.
    waiting(f"ALTER ROLE {{role}} SET search_path = {waiting.schema}")
    before = waiting.dump()
    with pgbouncer(waiting.role_dsn) as dsn, PostgresSaver.from_conn_string(dsn) as saver:
        assert sweeper(saver).sweep(dry_run=True).deleted_thread_ids == ["done"]
        with waiting.secured(["checkpoint_writes"]):
            for options in ({}, {"enable_coordination": True}):
                with pytest.raises(HiddenRowsError):
                    sweeper(saver, **options).sweep()
                assert waiting.dump() == before


READS_TRASH = {
    "trash": lambda one: one.trash(),
    "restore": lambda one: one.restore("done"),
    "empty": lambda one: one.empty_trash(),
    "sweep": lambda one: one.sweep(),
}
TRASH = READS_TRASH | {
    "set-up": lambda one: one.setup(),
    "teardown": lambda one: one.teardown(),
    "forced teardown": lambda one: one.teardown(force=True),
    "statements": lambda one: one.ddl(),
    "erase": lambda one: one.sweep(no_trash=True),
}


@pytest.fixture
def trashed(waiting):
    """The place with one of the threads in the trash, which the role may read and write."""
    with PostgresSaver.from_conn_string(waiting.dsn) as saver:
        sweeper(saver).setup()
        assert sweeper(saver, grace_seconds=9 * DAY).sweep().deleted_thread_ids == ["done"]
    waiting(f"GRANT ALL ON ALL TABLES IN SCHEMA {waiting.schema} TO {{role}}")
    return waiting


def kept(place):
    return place.owner.execute("SELECT * FROM lgec_trash, lgec_trash_checkpoints").fetchall()


@pytest.mark.parametrize("do", TRASH.values(), ids=TRASH)
def test_the_trash_of_tables_that_hide_rows_is_left_as_it_is(trashed, do):
    before, inside = trashed.dump(), kept(trashed)
    with trashed.saver() as saver:
        one = sweeper(saver, grace_seconds=9 * DAY)
        assert [entry.thread_id for entry in one.trash()] == ["done"]
        for tables in SUBSETS:
            with trashed.secured(tables), pytest.raises(HiddenRowsError):
                do(one)
    assert trashed.dump() == before
    assert kept(trashed) == inside


@pytest.mark.parametrize("do", READS_TRASH.values(), ids=READS_TRASH)
def test_a_trash_that_hides_rows_is_no_empty_one(trashed, do):
    before, inside = trashed.dump(), kept(trashed)
    with (
        trashed.saver() as saver,
        trashed.secured(["lgec_trash", "lgec_restored"]),
        pytest.raises(StorageError, match="row security"),
    ):
        do(sweeper(saver, grace_seconds=9 * DAY))
    assert trashed.dump() == before
    assert kept(trashed) == inside


@pytest.mark.parametrize("table", ["lgec_trash", "lgec_trash_blobs", "checkpoint_blobs"])
def test_nothing_goes_where_the_triggers_would_not_see_it(waiting, table):
    """They run with the rights of who set the trash up; forced row security holds for an owner."""
    for one in TABLES:
        waiting(f"ALTER TABLE {one} OWNER TO {{role}}")
    waiting(f"GRANT CREATE ON SCHEMA {waiting.schema} TO {{role}}")
    with waiting.saver() as saver:
        sweeper(saver).setup()
    before = waiting.dump()
    waiting(
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
    )
    with PostgresSaver.from_conn_string(waiting.dsn) as saver:  # sees everything
        one = sweeper(saver, grace_seconds=DAY)
        for do in (one.sweep, one.setup):
            with pytest.raises(NotSetUpError, match=f"row security on {table}") as told:
                do()
            assert repr(waiting.role) in str(told.value)
        assert waiting.dump() == before
        waiting(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
        one.setup()  # gives the trash of that table row security as well
        assert one.sweep().deleted_thread_ids == ["done"]


def test_tenants_live_by_row_security_and_are_swept(waiting):
    waiting(f"GRANT CREATE ON SCHEMA {waiting.schema} TO {{role}}")
    with TenantPostgresSaver.from_conn_string(
        waiting.role_dsn, schema=waiting.schema, tenant="acme", require_rls=True
    ) as saver:
        graphs.chat(saver).invoke(
            {"messages": [("user", "hello")]}, {"configurable": {"thread_id": "of acme"}}
        )
        assert sweeper(saver, enable_coordination=True).sweep().deleted_thread_ids == ["of acme"]


def test_threads_move_in_from_where_nothing_is_hidden_alone(waiting):
    target = f"in_{waiting.schema}"
    waiting(f"CREATE SCHEMA {target}")
    try:
        with (
            TenantPostgresSaver.from_conn_string(waiting.dsn, schema=target) as tenants,
            waiting.saver() as saver,
        ):
            for tables in SUBSETS:
                with waiting.secured(tables), pytest.raises(HiddenRowsError) as told:
                    migrate_from_postgres(saver, tenants)
                assert f"{waiting.schema}.{tables[0]}" in str(told.value)
            assert sorted(migrate_from_postgres(saver, tenants).copied) == ["done", "waits"]
    finally:
        waiting(f"DROP SCHEMA {target} CASCADE")


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_may_not_be_read_is_one_error(waiting, table):
    waiting(f"REVOKE SELECT ON {table} FROM {{role}}")
    for told in refusals(waiting):
        assert f"permission denied: role '{waiting.role}' has no right SELECT" in told
        assert f"{waiting.schema}.{table}" in told


def test_values_need_not_be_readable_for_a_sweep(waiting):
    waiting(
        "REVOKE SELECT ON checkpoint_blobs FROM {role}",
        "GRANT SELECT (thread_id, checkpoint_ns, channel, version) ON checkpoint_blobs TO {role}",
    )
    with waiting.saver() as saver:
        assert sweeper(saver).sweep().deleted_thread_ids == ["done"]


@pytest.mark.parametrize("kind", ["", "WITH (security_barrier)"], ids=["view", "barrier"])
@pytest.mark.parametrize("table", TABLES)
def test_a_view_in_the_place_of_a_table_is_refused(waiting, kind, table):
    waiting(
        f"ALTER TABLE {table} RENAME TO hidden",
        f"CREATE VIEW {table} {kind} AS SELECT * FROM hidden WHERE thread_id <> 'waits'",
        f"GRANT ALL ON {table} TO {{role}}",
    )
    before = waiting.owner.execute("SELECT * FROM hidden ORDER BY 1, 2, 3, 4, 5").fetchall()
    for told in refusals(waiting):
        assert f"{waiting.schema}.{table} is a view" in told
    assert waiting.owner.execute("SELECT * FROM hidden ORDER BY 1, 2, 3, 4, 5").fetchall() == before


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_two_schemas_are_not_taken_for_one_set(waiting, table):
    """As where a table of that name lies before the saver's own on the search path."""
    before = f"{waiting.schema}_before"
    waiting(f"CREATE SCHEMA {before}", f"CREATE TABLE {before}.{table} (LIKE {table})")
    try:
        waiting(
            f"GRANT ALL ON SCHEMA {before} TO {{role}}",
            f"GRANT ALL ON {before}.{table} TO {{role}}",
        )
        waiting.role_dsn = make_conninfo(
            waiting.role_dsn, options=f"-csearch_path={before},{waiting.schema}"
        )
        for told in refusals(waiting):
            assert f"{before}.{table}" in told
            assert f"{waiting.schema}." in told
    finally:
        waiting(f"DROP SCHEMA {before} CASCADE")


def test_a_schema_that_may_not_be_used_is_no_reason_to_make_tables(waiting):
    waiting(f"REVOKE USAGE ON SCHEMA {waiting.schema} FROM {{role}}")
    with waiting.saver() as saver, pytest.raises(StorageUnusableError, match="USAGE"):
        sweeper(saver).sweep()


def test_row_security_of_a_partition_hides_nothing_from_who_reads_the_table(waiting):
    for table in TABLES:
        waiting(
            f"ALTER TABLE {table} RENAME TO {table}_all",
            f"CREATE TABLE {table} (LIKE {table}_all INCLUDING DEFAULTS INCLUDING INDEXES) "
            "PARTITION BY LIST (thread_id)",
            f"ALTER TABLE {table} ATTACH PARTITION {table}_all DEFAULT",
            f"ALTER TABLE {table}_all ENABLE ROW LEVEL SECURITY",
            f"GRANT ALL ON {table} TO {{role}}",
        )
    with waiting.saver() as saver:
        assert sweeper(saver).sweep().deleted_thread_ids == ["done"]
        with waiting.secured(["checkpoint_writes"]), pytest.raises(HiddenRowsError):
            sweeper(saver).sweep()


def test_a_trigger_of_the_users_own_that_meets_row_security_is_told_how_to_go_on(waiting):
    waiting(
        "CREATE TABLE log (thread_id text)",
        "ALTER TABLE log ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON log USING (true)",
        "GRANT ALL ON log TO {role}",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS "
        "'BEGIN INSERT INTO log VALUES (OLD.thread_id); RETURN OLD; END'",
        "CREATE TRIGGER note BEFORE DELETE ON checkpoints FOR EACH ROW EXECUTE FUNCTION note()",
    )
    with waiting.saver() as saver:
        result = sweeper(saver).sweep()
        assert "SET row_security = on" in result.errors["done"]
        assert '"log"' in result.errors["done"]
        waiting("ALTER FUNCTION note() SET row_security = on")
        assert sweeper(saver).sweep().deleted_thread_ids == ["done"]
    assert waiting.owner.execute("SELECT DISTINCT thread_id FROM log").fetchall() == [("done",)]


def test_names_with_quotes_are_told_as_they_are(waiting):
    odd = f"o'dd \"{waiting.role}"
    waiting.owner.execute(
        sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(
            sql.Identifier(waiting.schema), sql.Identifier(odd)
        )
    )
    waiting.owner.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(odd)))
    try:
        with waiting.saver() as saver, waiting.secured(["checkpoint_writes"]):
            saver.conn.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(odd)))
            with pytest.raises(HiddenRowsError) as told:
                sweeper(saver).sweep()
        quoted = sql.Identifier(odd).as_string(None)
        assert f"on {quoted}.checkpoint_writes can hide" in str(told.value)
    finally:
        waiting.owner.execute(
            sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(
                sql.Identifier(odd), sql.Identifier(waiting.schema)
            )
        )
