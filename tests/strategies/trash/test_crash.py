"""A sweeper that is killed at any instant leaves every thread whole, alive or in the trash."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at

THREADS = 400
SWEEPER = """
import sys
from contextlib import ExitStack
from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
kind, where = sys.argv[1:]
if kind == "postgres":
    from langgraph.checkpoint.postgres import PostgresSaver as Saver
else:
    from langgraph.checkpoint.sqlite import SqliteSaver as Saver
with ExitStack() as stack:
    saver = stack.enter_context(Saver.from_conn_string(where))
    sweeper = TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=60), grace_seconds=3600, batch_size=7)
    print("ready", flush=True)
    sys.stdin.readline()
    sweeper.sweep()
    print("done", flush=True)
"""


def fill(backend):
    """Store threads of three checkpoints each, an hour old, with writes (and blobs)."""
    ids = [first_id_at(time.time() - 3600 + step)[:-1] + str(step) for step in range(3)]
    postgres = backend.name == "postgres"
    body = "'{\"v\": 4}', '{}'" if postgres else "x'80', x'7b7d'"
    with backend.connect() as conn:
        conn.execute("BEGIN")
        for number in range(THREADS):
            for step, checkpoint_id in enumerate(ids):
                parent = f"'{ids[step - 1]}'" if step else "NULL"
                conn.execute(
                    "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, "
                    "parent_checkpoint_id, checkpoint, metadata) "
                    f"VALUES ('t{number}', '', '{checkpoint_id}', {parent}, {body})"
                )
                conn.execute(
                    f"INSERT INTO {backend.tables[-1]} (thread_id, checkpoint_ns, checkpoint_id, "
                    f"task_id, idx, channel, type, {'blob' if postgres else 'value'}) "
                    f"VALUES ('t{number}', '', '{checkpoint_id}', 'task', 0, 'x', 'null', '')"
                )
            if postgres:
                conn.execute(
                    "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, "
                    f"type, blob) VALUES ('t{number}', '', 'x', '1', 'null', '')"
                )
        conn.execute("COMMIT")


def rows_by_thread(backend, prefix=""):
    found = Counter()
    for table in backend.tables:
        name = f"lgec_trash_{table.removeprefix('checkpoint_')}" if prefix else table
        found.update(
            {
                (table, thread_id): count
                for thread_id, count in backend.sql(
                    f"SELECT thread_id, count(*) FROM {name} GROUP BY thread_id"
                )
            }
        )
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_sweeper_leaves_each_thread_whole(backend, seed):
    with backend.open() as saver:
        TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=60), grace_seconds=3600).setup()
    fill(backend)
    whole = {table: count for (table, who), count in rows_by_thread(backend).items() if who == "t0"}
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEPER, backend.name, backend.where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(random.Random(seed).uniform(0.01, 0.25))
        process.kill()
    finally:
        process.communicate()
    if backend.name == "postgres":
        _wait_until_the_server_noticed(backend)
    alive, trashed = rows_by_thread(backend), rows_by_thread(backend, "trash")
    listed = {row[0] for row in backend.sql("SELECT thread_id FROM lgec_trash")}
    for number in range(THREADS):
        who = f"t{number}"
        here = {table: alive[table, who] for table in backend.tables}
        there = {table: trashed[table, who] for table in backend.tables}
        nothing = dict.fromkeys(backend.tables, 0)
        expected = (nothing, whole) if who in listed else (whole, nothing)
        assert (here, there) == expected
    with backend.open() as saver:
        sweeper = TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=60), grace_seconds=3600)
        assert len(sweeper.sweep().deleted_thread_ids) == THREADS - len(listed)
        assert len(sweeper.trash()) == THREADS


def _wait_until_the_server_noticed(backend):
    until = time.monotonic() + 20
    busy = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND state <> 'idle'"
    )
    while backend.sql(busy):
        assert time.monotonic() < until
        time.sleep(0.01)
