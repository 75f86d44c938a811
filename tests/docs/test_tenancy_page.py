"""The roles of docs/tenancy.md: what it grants is enough, and what it shows is what one sees."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver

DOC = Path(__file__).parents[2] / "docs" / "tenancy.md"
FIRST_USE = DOC.read_text(encoding="utf-8").partition("## First use")[2].partition("\n## ")[0]
GRANTS = " ".join(re.findall(r"^    ((?:GRANT|    ON) .*)$", FIRST_USE, re.MULTILINE)).split(";")
SEEN = re.findall(r"^    ((?:SELECT|UPDATE) .*);\s+-- (.*)$", FIRST_USE, re.MULTILINE)


@pytest.fixture
def roles(superuser: Any, schema: str) -> Any:
    """Gives the names for the document's ``app`` and ``sweeper``."""
    names = {role: f"{role}_{time.time_ns()}" for role in ("app", "sweeper")}
    for name in names.values():
        superuser.execute(f"CREATE ROLE {name} LOGIN NOSUPERUSER")
    yield names
    for name in names.values():
        superuser.execute(f"DROP OWNED BY {name}")
        superuser.execute(f"DROP ROLE {name}")


def test_the_grants_are_enough_and_the_policies_hold(
    app_dsn: str, superuser: Any, schema: str, roles: dict[str, str]
) -> None:
    def connected_as(role: str) -> str:
        options = f"-csearch_path={schema}"
        return psycopg.conninfo.make_conninfo(app_dsn, user=roles[role], options=options)

    with TenantPostgresSaver.from_conn_string(app_dsn, schema=schema) as owner:
        owner.setup()
        policies = owner.ddl(maintenance_role=roles["sweeper"])[len(owner.ddl()) :]
        for statement in policies:
            owner.conn.execute(statement)
    assert len(GRANTS) == 4  # three, and what is behind the last semicolon
    superuser.execute(f"SET search_path = {schema}")
    for grant in GRANTS[:-1]:
        done = re.sub(r"\b(app|sweeper)\b", lambda found: roles[found[0]], grant)
        superuser.execute(done.replace("SCHEMA public", f"SCHEMA {schema}"))

    options = {"schema": schema, "tenant": "acme", "create_schema": False, "require_rls": True}
    with TenantPostgresSaver.from_conn_string(connected_as("app"), **options) as saver:
        where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        saver.put(where, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {})
        assert saver.get_tuple(where) is not None

    with psycopg.connect(connected_as("app"), autocommit=True) as conn:
        assert len(SEEN) == 4
        for statement, seen in SEEN:
            if seen.startswith("ERROR"):
                with pytest.raises(psycopg.Error, match=seen.removeprefix("ERROR: violates ")):
                    conn.execute(statement)
            else:
                (value,) = conn.execute(statement).fetchone()
                assert str(value) == seen.partition(":")[0]

    with TenantPostgresSaver.from_conn_string(
        connected_as("sweeper"), schema=schema, tenant=None
    ) as saver:
        policy = TTLPolicy(idle_ttl_seconds=60)
        result = TTLSweeper(saver, policy, clock=lambda: time.time() + 3600).sweep()
        assert result.by_tenant["acme"].deleted_thread_ids == ["t"]
