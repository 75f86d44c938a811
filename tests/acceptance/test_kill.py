"""A process that is killed in the middle of a sweep leaves whole threads; the next finishes."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from langgraph_ephemeral_checkpointer import TTLPolicy

DAY = 86400.0
NOW = 1_750_000_000.0
OLD = NOW - 10 * DAY
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
IDS = [f"t{n:02}" for n in range(12)]

SWEEP = """
    import os, signal, sys
    from contextlib import ExitStack
    from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper, strategies
    from langgraph_ephemeral_checkpointer.engine.plan import Statement

    kind, where, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if kind == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver as Saver
        from langgraph_ephemeral_checkpointer.strategies.sqlite import access
    else:
        from langgraph.checkpoint.postgres import PostgresSaver as Saver
        from langgraph_ephemeral_checkpointer.strategies.postgres import access

    # Counts the deletes of the sweep, and dies before one of them.
    drive, seen = access.drive, 0

    def counted(plan, perform):
        def step(statement):
            global seen
            seen += "DELETE FROM" in str(statement.sql)
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return perform(statement)
        return drive(plan, step)

    access.drive = counted
    with ExitStack() as stack:
        saver = stack.enter_context(Saver.from_conn_string(where))
        sweeper = TTLSweeper(
            saver, TTLPolicy(idle_ttl_seconds={day}), clock=lambda: {now}, batch_size=3
        )
        print(len(sweeper.sweep().deleted_thread_ids))
"""


def _run(kind, where, kill_at):
    code = textwrap.dedent(SWEEP).format(day=DAY, now=NOW)
    return subprocess.run(
        [sys.executable, "-c", code, kind, where, str(kill_at)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "backend", [("sqlite", "sweep"), ("pg-connection", "sweep")], ids="-".join, indirect=True
)
@pytest.mark.parametrize("nth", [1, 2, 3], ids="delete {}".format)
async def test_kill_9_in_the_middle_of_a_delete(backend, nth):
    """On SQLite in the second batch: before its first delete, between two, or after the last.

    A batch on Postgres is one statement: there it is before that of the second to fourth batch.
    """
    for thread_id in IDS:
        await backend.plant(thread_id, OLD)
    whole = backend.count(IDS[0])
    on_sqlite = backend.kind == "sqlite"
    where = backend.storage.path if on_sqlite else backend.storage.dsn
    deletes = len(whole) if on_sqlite else 1
    done = _run(backend.kind, where, deletes + nth)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = {one: backend.count(one) for one in IDS if backend.has(one)}
    assert all(count == whole for count in left.values())
    committed = 1 + (nth - 1) // deletes
    assert len(left) == len(IDS) - 3 * committed
    result = await backend.sweep(POLICY, clock=lambda: NOW)
    assert result.deleted_thread_ids == list(left)
    assert backend.storage.threads() == set()
