"""What the documentation shows is well typed; mypy checks this file as a user's own."""

from __future__ import annotations

import inspect
import time
from datetime import timedelta

from langgraph.checkpoint.memory import InMemorySaver
from psycopg import Connection

from langgraph_ephemeral_checkpointer import PolicyOverride, SweepResult, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.retention import (
    PurgeResult,
    RetainedCheckpointer,
    apurge_messages,
    purge_messages,
)
from langgraph_ephemeral_checkpointer.tenancy import AsyncTenantPostgresSaver, TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy.base import Options, TenantSaver
from langgraph_ephemeral_checkpointer.testing import save_thread


def test_durations_are_numbers_or_timedeltas() -> None:
    policy = TTLPolicy(
        idle_ttl_seconds=timedelta(days=7),
        hard_age_ttl_seconds=0.5,
        max_checkpoints_per_thread=3,
        interrupted_ttl_seconds=60,
    )
    seconds: float | None = policy.idle_ttl_seconds
    assert seconds == 7 * 24 * 3600


def mistyped_options(conn: Connection) -> None:
    """Each is an error for a type checker, which finds it strange where it is none."""
    TenantPostgresSaver(conn, tabel="threads")  # type: ignore[call-arg]
    TenantPostgresSaver(conn, keep_checkpoints="3")  # type: ignore[arg-type]
    TenantPostgresSaver.from_conn_string("", schema=None)  # type: ignore[arg-type]
    AsyncTenantPostgresSaver.from_conn_string("", tennant="acme")  # type: ignore[call-arg]


def test_type_checkers_know_the_options_of_the_tenant_savers() -> None:
    taken = inspect.signature(TenantSaver.__init__).parameters.keys() - {"self"}
    assert Options.__annotations__.keys() == taken


def test_callbacks_of_every_documented_shape_are_accepted() -> None:
    told: list[str] = []

    def resolve(thread_id: str) -> TTLPolicy | PolicyOverride:
        return PolicyOverride.USE_DEFAULT if thread_id == "a" else PolicyOverride.EXEMPT

    def before(thread_id: str, policy: TTLPolicy, reason: str) -> bool:
        return policy.idle_ttl_seconds == 60 and reason == "idle_ttl" and thread_id != "b"

    def after(thread_id: str, reason: str) -> None:
        told.append(f"{thread_id}: {reason}")

    def complete(result: SweepResult) -> None:
        told.extend(result.kept)

    saver = InMemorySaver()
    save_thread(saver, "a", [time.time() - 3600])
    sweeper = TTLSweeper(
        saver,
        TTLPolicy(60),
        policy_resolver=resolve,
        on_before_delete=before,
        on_after_delete=after,
        on_sweep_complete=complete,
    )
    assert sweeper.sweep().deleted_thread_ids == ["a"]
    assert told == ["a: idle_ttl"]


def test_asynchronous_callbacks_are_accepted() -> None:
    async def before(_thread_id: str, _policy: TTLPolicy, _reason: str) -> bool:
        return True

    async def complete(_result: SweepResult) -> None:
        return None

    TTLSweeper(InMemorySaver(), TTLPolicy(60), on_before_delete=before, on_sweep_complete=complete)


async def test_a_purge_answers_with_its_result() -> None:
    saver = RetainedCheckpointer(InMemorySaver(), max_age=timedelta(days=30))
    results: list[PurgeResult] = [
        purge_messages(saver, older_than=timedelta(days=30)),
        await apurge_messages(saver, 3600),
    ]
    assert [result.message_count for result in results] == [0, 0]
