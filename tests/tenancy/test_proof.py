"""Tables that others have a hand in are refused by name at first use, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from langgraph_ephemeral_checkpointer.errors import RowSecurityError, SchemaMismatchError
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from tests.support.tenant_graphs import META, at, checkpoint, put

TABLES = ("agent_threads", "agent_threads_blobs", "agent_threads_writes")


@pytest.fixture
def other(app_dsn: str, superuser: Any, schema: str) -> Iterator[str]:
    """The DSN of a role that may make things in the schema, which is not its own."""
    role = f"other_{schema}"
    superuser.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD 'app'")
    try:
        superuser.execute(f"CREATE SCHEMA {schema}; GRANT ALL ON SCHEMA {schema} TO PUBLIC")
        yield psycopg.conninfo.make_conninfo(app_dsn, user=role)
    finally:
        superuser.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def _run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


def _make(saver: Any, dsn: str, schema: str) -> None:
    """The tables, as a migration makes them."""
    _run(dsn, *saver.ddl()[1:], f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO PUBLIC")


SPY = """
CREATE FUNCTION {s}.spy() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$BEGIN NEW.type := 'stolen'; RETURN NEW; END$$;
CREATE TRIGGER spy BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {s}.spy()
"""
PEEK = """
CREATE FUNCTION {s}.peek(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
$$BEGIN RAISE EXCEPTION 'planted'; END$$;
"""
# What the owner of a table can hang on it that runs as whoever saves.
ATTACHED = {
    "the trigger spy": SPY,
    "column extra": PEEK
    + "ALTER TABLE {t} ADD extra text; ALTER TABLE {t} ALTER extra SET DEFAULT {s}.peek('')",
    "column made": PEEK
    + "ALTER TABLE {t} ADD made text GENERATED ALWAYS AS ({s}.peek(thread_id)) STORED",
    "constraint looked": PEEK
    + "ALTER TABLE {t} ADD CONSTRAINT looked CHECK ({s}.peek(thread_id) = '')",
    "index .*looked": PEEK + "CREATE INDEX looked ON {t} ({s}.peek(thread_id))",
    "condition of the index .*looked": PEEK
    + "CREATE INDEX looked ON {t} (thread_id) WHERE {s}.peek(thread_id) = ''",
    "policy narrow": PEEK + "CREATE POLICY narrow ON {t} AS RESTRICTIVE USING ({s}.peek('') = '')",
}
# What no owner may have: it takes rows, or shows them, past the table, its key or its policies.
ODD = {
    "the rule quiet": "CREATE RULE quiet AS ON INSERT TO {t} DO INSTEAD NOTHING",
    "unique index .*once.*two tenants for one": "CREATE UNIQUE INDEX once ON {t} (thread_id)",
    "unique index .*covering": "CREATE UNIQUE INDEX covering ON {t} (thread_id) INCLUDE (tenant)",
    "unique index .*lower": "CREATE UNIQUE INDEX lower ON {t} (lower(thread_id))",
    "child.*part of it": "CREATE TABLE {s}.child () INHERITS ({t})",
    "parent.*of which it is a part": "CREATE TABLE {s}.parent (thread_id text); "
    'ALTER TABLE {s}.parent ALTER thread_id TYPE text COLLATE "C", ALTER thread_id SET NOT NULL; '
    "ALTER TABLE {t} INHERIT {s}.parent",
}


@pytest.mark.parametrize("said", ATTACHED)
def test_what_another_role_hung_on_its_tables_is_refused(
    make_saver: Any, other: str, superuser: Any, schema: str, said: str
) -> None:
    """Made before the saver came, in a schema that they own as well."""
    superuser.execute(f"ALTER SCHEMA {schema} OWNER TO other_{schema}")
    with make_saver() as saver:
        _make(saver, other, schema)
        for table in TABLES[:1]:
            _run(other, ATTACHED[said].format(t=f"{schema}.{table}", s=schema))
        with pytest.raises(SchemaMismatchError, match=said):
            put(saver, "t", 1)
    assert superuser.execute(f"SELECT count(*) FROM {schema}.agent_threads").fetchone() == (0,)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("said", ODD)
def test_what_undoes_the_table_is_refused_whoever_owns_it(
    make_saver: Any, app_dsn: str, schema: str, said: str, table: str
) -> None:
    with make_saver() as saver:
        saver.setup()
    _run(app_dsn, ODD[said].format(t=f"{schema}.{table}", s=schema))
    for create_schema in (True, False):
        with (
            make_saver(create_schema=create_schema) as saver,
            pytest.raises(SchemaMismatchError, match=said),
        ):
            put(saver, "t", 1)


def test_tables_of_a_role_that_owns_nothing_else_are_refused(
    make_saver: Any, other: str, schema: str, superuser: Any
) -> None:
    """Whoever made them first would see every tenant: an owner can switch policies off."""
    with make_saver() as saver:
        _make(saver, other, schema)
        with pytest.raises(SchemaMismatchError, match=f"belongs to role 'other_{schema}'"):
            put(saver, "t", 1)
    superuser.execute(f"ALTER TABLE {schema}.agent_threads OWNER TO CURRENT_USER")
    with (
        make_saver() as saver,
        pytest.raises(SchemaMismatchError, match="agent_threads_blobs is not a table"),
    ):
        put(saver, "t", 1)


def _owns_the_schema(superuser: Any, schema: str, role: str) -> None:
    superuser.execute(f"ALTER SCHEMA {schema} OWNER TO {role}")


def _has_the_application_as_a_member(superuser: Any, schema: str, role: str) -> None:
    app = superuser.execute("SELECT current_setting('lgec.app')").fetchone()[0]
    superuser.execute(f'GRANT {role} TO "{app}"')


def _is_a_superuser(superuser: Any, schema: str, role: str) -> None:
    superuser.execute(f"ALTER ROLE {role} SUPERUSER")


@pytest.mark.parametrize(
    "owner", [_owns_the_schema, _has_the_application_as_a_member, _is_a_superuser]
)
def test_tables_that_a_migration_made_as_their_owner_are_accepted(
    make_saver: Any,
    other: str,
    app_dsn: str,
    schema: str,
    superuser: Any,
    owner: Callable[..., None],
) -> None:
    app = psycopg.conninfo.conninfo_to_dict(app_dsn)["user"]
    superuser.execute("SELECT set_config('lgec.app', %s, false)", [app])
    owner(superuser, schema, f"other_{schema}")
    with make_saver(require_rls=True) as saver:
        _make(saver, other, schema)
        put(saver, "t", 1)
        assert saver.get_tuple(at("t")) is not None


def test_with_create_schema_false_they_are_the_callers_own_whoever_owns_them(
    make_saver: Any, other: str, schema: str
) -> None:
    """With what the owner hung on them; not with what a third role did."""
    audited = "CREATE FUNCTION {s}.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS "
    audited += "$$BEGIN RETURN NEW; END$$; CREATE TRIGGER note BEFORE INSERT ON {t} FOR EACH ROW "
    audited += "EXECUTE FUNCTION {s}.note(); ALTER TABLE {t} ADD at timestamptz DEFAULT now()"
    with make_saver(create_schema=False) as saver:
        _make(saver, other, schema)
        _run(other, audited.format(t=f"{schema}.agent_threads", s=schema))
        put(saver, "t", 1)


def test_a_trigger_whose_function_is_another_roles_is_refused(
    make_saver: Any, other: str, schema: str
) -> None:
    """On tables of one's own, by the right TRIGGER."""
    with make_saver() as saver:
        saver.setup()
        saver.conn.execute(f"GRANT TRIGGER ON {schema}.agent_threads TO PUBLIC")
    _run(other, SPY.format(t=f"{schema}.agent_threads", s=schema))
    for create_schema in (True, False):
        with (
            make_saver(create_schema=create_schema) as saver,
            pytest.raises(SchemaMismatchError, match="the trigger spy"),
        ):
            put(saver, "t", 1)


@pytest.mark.parametrize("table", TABLES)
async def test_the_maintenance_policy_is_not_for_a_role_that_must_have_row_security(
    make_saver: Any, app_dsn: str, schema: str, table: str, superuser: Any
) -> None:
    """Whether the policy names the role, or one that it is a member of."""
    app = psycopg.conninfo.conninfo_to_dict(app_dsn)["user"]
    with make_saver() as saver:
        statements = saver.ddl(maintenance_role=app)
        _run(app_dsn, *statements[:-3])
        _run(app_dsn, *(one for one in statements[-3:] if f'"{table}"' in one))
    with (
        make_saver(require_rls=True) as saver,
        pytest.raises(RowSecurityError, match="maintenance"),
    ):
        put(saver, "t", 1)
    async with AsyncTenantPostgresSaver.from_conn_string(
        app_dsn, schema=schema, require_rls=True
    ) as saver:
        with pytest.raises(RowSecurityError, match="maintenance"):
            await saver.aput(at("t"), checkpoint(1), META, {})
    assert superuser.execute(f"SELECT count(*) FROM {schema}.agent_threads").fetchone() == (0,)
    with make_saver() as saver:  # the sweeper of all tenants
        put(saver, "t", 1)


def test_the_maintenance_policy_of_another_role_is_no_hindrance(
    make_saver: Any, maintenance_dsn: str, schema: str
) -> None:
    with make_saver(require_rls=True) as saver:
        put(saver, "t", 1)
    with TenantPostgresSaver.from_conn_string(maintenance_dsn, schema=schema) as saver:
        assert saver.tenants() == ["default"]


def test_partitions_are_proven_as_well(make_saver: Any, app_dsn: str, schema: str) -> None:
    table = f"{schema}.agent_threads"
    with make_saver() as saver:
        made = [one.replace("\n)", "\n) PARTITION BY LIST (tenant)") for one in saver.ddl()]
        _run(app_dsn, *made)
        for name in TABLES:
            _run(app_dsn, f"CREATE TABLE {schema}.{name}_p PARTITION OF {schema}.{name} DEFAULT")
        put(saver, "t", 1)
    _run(app_dsn, f"CREATE UNIQUE INDEX once ON {table}_p (thread_id)")
    with make_saver() as saver, pytest.raises(SchemaMismatchError, match="once"):
        put(saver, "t", 2)
