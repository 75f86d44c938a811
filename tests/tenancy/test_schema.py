"""The tables: made once, proven at first use, and refused when they are not ours."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import psycopg
import pytest
from psycopg import sql

from langgraph_ephemeral_checkpointer.errors import (
    RowSecurityError,
    SchemaMismatchError,
    SchemaMissingError,
)
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from tests.support.tenant_graphs import at, put

TABLES = ("agent_threads", "agent_threads_blobs", "agent_threads_writes")


def _run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


def _made(superuser: Any, schema: str) -> set[str]:
    rows = superuser.execute(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE nspname = %s AND relkind = 'r'",
        [schema],
    )
    return {name for (name,) in rows}


def test_setup_makes_everything_and_may_be_called_twice(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    with make_saver() as saver:
        saver.setup()
        saver.setup()
    with make_saver() as again:
        again.setup()
        put(again, "t", 1)
    assert _made(superuser, schema) == set(TABLES)


async def test_a_role_that_may_not_make_the_tables_is_told_who_shall(
    app_dsn: str, superuser: Any, schema: str
) -> None:
    superuser.execute(f"CREATE SCHEMA {schema}")
    said = r"do not exist, and this role may not make them \(permission denied.* ddl\(\)"
    with (
        TenantPostgresSaver.from_conn_string(app_dsn, tenant="acme", schema=schema) as saver,
        pytest.raises(SchemaMissingError, match=said),
    ):
        put(saver, "t", 1)
    async with AsyncTenantPostgresSaver.from_conn_string(app_dsn, schema=schema) as saver:
        with pytest.raises(SchemaMissingError, match=said):
            await saver.setup()
    assert _made(superuser, schema) == set()


def test_setup_inside_a_transaction_belongs_to_it(
    app_dsn: str, superuser: Any, schema: str
) -> None:
    with psycopg.connect(app_dsn) as conn:
        with conn.transaction(force_rollback=True):
            TenantPostgresSaver(conn, schema=schema).setup()
            assert conn.execute(
                "SELECT count(*) FROM pg_tables WHERE schemaname = %s", [schema]
            ).fetchone() == (3,)
        assert _made(superuser, schema) == set()
        with conn.transaction():
            saver = TenantPostgresSaver(conn, schema=schema)
            saver.setup()
            put(saver, "t", 1)
    assert _made(superuser, schema) == set(TABLES)


DAMAGES = [
    "ALTER TABLE {t} DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE {t} NO FORCE ROW LEVEL SECURITY",
    "CREATE POLICY everything ON {t} USING (true)",
    "CREATE POLICY reading ON {t} FOR SELECT USING (true)",
    "DROP POLICY langgraph_tenant ON {t}",
    "DROP POLICY langgraph_tenant ON {t}; CREATE POLICY langgraph_tenant ON {t} USING (true)",
    "ALTER POLICY langgraph_tenant ON {t} WITH CHECK (true)",
    (
        "ALTER POLICY langgraph_tenant ON {t} USING "
        "(tenant = current_setting('langgraph.tenant', true) OR tenant = 'x')"
    ),
    "ALTER POLICY langgraph_tenant ON {t} TO CURRENT_USER",
    "CREATE POLICY langgraph_maintenance ON {t} USING (true)",
    "ALTER TABLE {t} DROP CONSTRAINT {p}; ALTER TABLE {t} ADD PRIMARY KEY (thread_id, tenant)",
    "ALTER TABLE {t} DROP CONSTRAINT {p}",
    "ALTER TABLE {t} ALTER thread_id TYPE varchar(10)",
    'ALTER TABLE {t} ALTER thread_id TYPE text COLLATE "POSIX"',
    "ALTER TABLE {t} DROP COLUMN type",
    "ALTER TABLE {t} ADD extra text NOT NULL DEFAULT ''; ALTER TABLE {t} ALTER extra DROP DEFAULT",
    "ALTER TABLE {t} RENAME TO other; CREATE VIEW {t} AS SELECT * FROM {s}.other",
]
# Each damage on one table, and the switched-off security on every one.
_CASES = {(damage, TABLES[n % 3]) for n, damage in enumerate(DAMAGES)}
_CASES |= {(damage, table) for damage in DAMAGES[:3] for table in TABLES}


@pytest.mark.parametrize(("damage", "table"), sorted(_CASES))
def test_a_table_that_is_not_as_it_must_be_is_refused(
    make_saver: Any, app_dsn: str, schema: str, damage: str, table: str, superuser: Any
) -> None:
    with make_saver() as saver:
        put(saver, "t", 1)
    _run(app_dsn, damage.format(t=f"{schema}.{table}", p=f"{table}_pkey", s=schema))
    with make_saver() as saver, pytest.raises(SchemaMismatchError, match=table):
        put(saver, "t", 2)
    row = superuser.execute(f"SELECT count(*) FROM {schema}.agent_threads").fetchone()
    assert row in {(1,), (0,)}  # the view shows none


@pytest.mark.parametrize(
    "harmless",
    [
        "ALTER TABLE {t} ADD note text",
        "ALTER TABLE {t} ADD created timestamptz NOT NULL DEFAULT now()",
        "CREATE POLICY narrow ON {t} AS RESTRICTIVE USING (thread_id <> 'secret')",
        "CREATE INDEX ON {t} (thread_id)",
    ],
)
def test_a_table_with_something_harmless_added_is_accepted(
    make_saver: Any, app_dsn: str, schema: str, harmless: str
) -> None:
    with make_saver() as saver:
        saver.setup()
    _run(app_dsn, *(harmless.format(t=f"{schema}.{table}") for table in TABLES))
    with make_saver() as saver:
        put(saver, "t", 1)
        assert saver.get_tuple(at("t")) is not None


def test_a_table_whose_making_was_interrupted_is_not_accepted(
    make_saver: Any, app_dsn: str, schema: str
) -> None:
    with make_saver() as saver:
        statements = saver.ddl()
    _run(app_dsn, *statements[:2])  # the schema and the naked table
    with make_saver() as saver, pytest.raises(SchemaMismatchError, match="Row-Level Security"):
        saver.setup()


def test_missing_tables_are_added_beside_the_right_ones(
    make_saver: Any, app_dsn: str, schema: str, superuser: Any
) -> None:
    with make_saver() as saver:
        saver.setup()
    _run(app_dsn, f"DROP TABLE {schema}.agent_threads_blobs")
    with make_saver() as saver:
        put(saver, "t", 1)
        assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"log": [1]}
    assert _made(superuser, schema) == set(TABLES)


def test_create_schema_false_never_makes_anything(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    with (
        make_saver(create_schema=False) as saver,
        pytest.raises(SchemaMissingError, match=r"ddl\(\)"),
    ):
        put(saver, "t", 1)
    assert _made(superuser, schema) == set()


def test_a_role_with_rows_rights_alone_works_on_migrated_tables(
    make_saver: Any, app_dsn: str, schema: str, superuser: Any
) -> None:
    with make_saver() as saver:
        _run(app_dsn, *saver.ddl())
    role = f"rows_only_{schema}"
    superuser.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS")
    try:
        superuser.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        superuser.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        )
        dsn = psycopg.conninfo.make_conninfo(app_dsn, user=role)
        with TenantPostgresSaver.from_conn_string(dsn, schema=schema, keep_checkpoints=1) as saver:
            put(saver, "t", 1)
            put(saver, "t", 2)
            assert len([*saver.list(None)]) == 1
            assert saver.forget_tenant("default") == 1
    finally:
        superuser.execute(f"DROP OWNED BY {role}")
        superuser.execute(f"DROP ROLE {role}")


_RACER = """
import sys
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
with TenantPostgresSaver.from_conn_string(sys.argv[1], schema=sys.argv[2]) as saver:
    print("ready", flush=True)
    sys.stdin.readline()
    saver.setup()
print("done")
"""


def test_six_processes_make_the_schema_at_the_same_moment(
    app_dsn: str, schema: str, superuser: Any
) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, app_dsn, schema],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    for racer in racers:
        out, err = racer.communicate(timeout=60)
        assert (racer.returncode, out) == (0, "done\n"), err
    assert _made(superuser, schema) == set(TABLES)


@pytest.mark.parametrize(
    "table",
    [
        "Mixed Case",
        'quo"te',
        "per%cent",
        "per%scent%%(a)s",
        "semi;colon--",
        "br{ace}s",
        "ünïcode",
        "select",
        "x" * 56,
    ],
)
def test_any_legal_table_name_works(make_saver: Any, table: str) -> None:
    with make_saver(table=table, keep_checkpoints=1) as saver:
        put(saver, "t", 1)
        put(saver, "t", 2)
        saver.put_writes(at("t", id_=saver.get_tuple(at("t")).checkpoint["id"]), [("a", 1)], "k")
        saver.copy_thread("t", "u")
        saver.prune(["t"])
        assert len([*saver.list(None)]) == 2
        assert saver.get_delta_channel_history(config=at("t"), channels=["log"])
        assert saver.vacuum(1) == 2
        assert saver.forget_tenant("default") == 0


@pytest.mark.parametrize("table", ["", "x" * 57, "ü" * 29, "a\0b"])
def test_a_name_that_postgres_would_cut_off_is_refused_before_any_ddl(
    app_dsn: str, table: str
) -> None:
    with psycopg.connect(app_dsn) as conn:
        conn.close()
        with pytest.raises(ValueError, match=r"name"):
            TenantPostgresSaver(conn, table=table)
        with pytest.raises(TypeError, match=r"name"):
            TenantPostgresSaver(conn, schema=7)  # type: ignore[arg-type]


def test_a_role_that_makes_rls_void_is_warned_of_or_refused(
    postgres_database: str, schema: str, caplog: Any
) -> None:
    options = {"schema": schema}
    with TenantPostgresSaver.from_conn_string(postgres_database, **options) as saver:
        saver.setup()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "BYPASSRLS" in caplog.text
    with (
        TenantPostgresSaver.from_conn_string(
            postgres_database, require_rls=True, **options
        ) as saver,
        pytest.raises(RowSecurityError, match="superuser"),
    ):
        put(saver, "t", 1)


def test_only_the_maintenance_role_sees_every_tenant(
    app_dsn: str, schema: str, superuser: Any, make_saver: Any
) -> None:
    role = f"sweeper_{schema}"
    superuser.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS")
    try:
        with make_saver() as saver:
            made, everything = saver.ddl(), saver.ddl(maintenance_role=role)
            assert everything[: len(made)] == made
            _run(app_dsn, *made)
            _run(app_dsn, *everything[len(made) :])  # as where the tables have been there before
            for tenant in ("a", "b"):
                with saver.tenant_scope(tenant):
                    put(saver, "t", 1)
                    assert saver.tenants() == [tenant]
            assert saver.tenants() == []
            with pytest.raises(ValueError, match="PUBLIC"):
                saver.ddl(maintenance_role="public")
        superuser.execute(
            sql.SQL(
                "GRANT USAGE ON SCHEMA {0} TO {1}; GRANT SELECT, DELETE ON ALL TABLES IN "
                "SCHEMA {0} TO {1}"
            ).format(sql.Identifier(schema), sql.Identifier(role))
        )
        dsn = psycopg.conninfo.make_conninfo(app_dsn, user=role)
        with TenantPostgresSaver.from_conn_string(dsn, schema=schema, tenant=None) as saver:
            assert saver.tenants() == ["a", "b"]
            assert saver.forget_tenant("a") == 1  # its statements still say whose rows go
            assert saver.tenants() == ["b"]
    finally:
        superuser.execute(f"DROP OWNED BY {role}")
        superuser.execute(f"DROP ROLE {role}")
