"""The audit log: no delete without a line on disk before it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer import (
    AuditError,
    AuditLog,
    StorageError,
    StorageUnavailableError,
    TTLPolicy,
    TTLSweeper,
)
from langgraph_ephemeral_checkpointer.strategies import MemoryStrategy
from tests.support import backends
from tests.support.program import environment, put, threads_in
from tests.support.tenant_graphs import put as put_tenants_thread

DAY = 86_400.0
POLICY = TTLPolicy(idle_ttl_seconds=DAY)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(path):
    return [(one["event"], one["thread"]) for one in lines(path)]


@pytest.mark.parametrize("backend", backends.ONE_EACH, indirect=True, ids="-".join)
async def test_each_thread_has_a_line_before_its_delete_and_one_after(backend, tmp_path):
    now = time.time()
    await backend.put("old", now - 3 * DAY)
    await backend.put("old", now - 2 * DAY, ns="sub")
    await backend.put("young", now)
    stored = backend.storage.rows("old")
    path = tmp_path / "audit.jsonl"
    result = await backend.sweep(POLICY, audit_log=AuditLog(path), clock=lambda: now)
    assert result.deleted_thread_ids == ["old"]
    intent, deleted = lines(path)
    assert (intent.pop("event"), deleted.pop("event")) == ("intent", "deleted")
    assert intent.pop("time") <= deleted.pop("time")
    assert intent == deleted
    assert (intent["thread"], intent["rule"], intent["tenant"]) == ("old", "idle_ttl", None)
    assert intent["idle_seconds"] == pytest.approx(2 * DAY, abs=1)
    assert intent["age_seconds"] == pytest.approx(3 * DAY, abs=1)
    assert intent["version"]
    if backend.kind.startswith("foreign"):
        assert intent["rows"] is None  # the saver's own methods do not tell
    else:
        assert sorted(intent["rows"].values()) == sorted(len(rows) for rows in stored.values())


@pytest.mark.parametrize("backend", [("memory", "sweep")], indirect=True, ids="-".join)
async def test_a_dry_run_writes_no_line(backend, tmp_path):
    await backend.put("old", time.time() - 2 * DAY)
    result = await backend.sweep(POLICY, audit_log=AuditLog(tmp_path / "a"), dry_run=True)
    assert result.deleted_thread_ids == ["old"]
    assert not (tmp_path / "a").exists()


class Watched(MemoryStrategy):
    """Note what is on disk when a delete begins, and do something else instead of it."""

    path = None
    seen = None
    error = None

    def delete_threads(self, thread_ids, recheck):
        self.seen = events(self.path)
        if self.error:
            raise self.error
        return super().delete_threads(thread_ids, recheck)


@pytest.fixture
def watched(tmp_path):
    saver = InMemorySaver()
    put(saver, ["a", "b"], age_seconds=2 * DAY)
    strategy = Watched(saver)
    strategy.path = tmp_path / "audit.jsonl"
    return strategy


def sweep(strategy, **options):
    log = AuditLog(strategy.path)
    return TTLSweeper(
        strategy.checkpointer, POLICY, strategy=strategy, audit_log=log, **options
    ).sweep()


def test_the_intents_of_a_batch_are_on_disk_when_its_delete_begins(watched):
    sweep(watched)
    assert watched.seen == [("intent", "a"), ("intent", "b")]
    assert events(watched.path)[2:] == [("deleted", "a"), ("deleted", "b")]


def test_a_thread_that_is_kept_after_all_is_said_to_be(watched):
    watched.error = StorageError("not these")
    result = sweep(watched)
    assert result.deleted_thread_ids == []
    assert [one[0] for one in events(watched.path)] == ["intent", "intent", "kept", "kept"]
    assert lines(watched.path)[-1]["why"] == "failed"


def test_a_storage_that_goes_away_leaves_unknown_outcomes(watched):
    watched.error = StorageUnavailableError("gone")
    sweep(watched)
    assert [one[0] for one in events(watched.path)] == ["intent"] * 2 + ["unknown"] * 2


def test_a_veto_leaves_no_line(watched):
    sweep(watched, on_before_delete=lambda thread_id, *_: thread_id != "a")
    assert events(watched.path) == [("intent", "b"), ("deleted", "b")]


def test_where_the_log_cannot_be_written_nothing_is_deleted(watched, tmp_path):
    watched.path = tmp_path / "no such folder" / "audit.jsonl"
    with pytest.raises(AuditError, match="nothing is deleted"):
        sweep(watched)
    assert set(watched.checkpointer.storage) == {"a", "b"}


def test_a_cancelled_sweep_still_says_what_its_last_batch_did(watched):
    async def scenario():
        log = AuditLog(watched.path)
        sweeper = TTLSweeper(
            watched.checkpointer, POLICY, strategy=watched, audit_log=log, batch_size=1
        )
        task = asyncio.ensure_future(sweeper.asweep())
        own, watched.delete_threads = watched.delete_threads, None

        def delete(*args):
            task.cancel()
            return own(*args)

        watched.delete_threads = delete
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert events(watched.path) == [("intent", "a"), ("deleted", "a")]
    assert set(watched.checkpointer.storage) == {"b"}


def test_a_line_that_a_crash_cut_short_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_text('{"event": "inte')
    AuditLog(path).write([{"event": "intent"}])
    torn, whole = path.read_text().splitlines()
    assert torn == '{"event": "inte'
    assert json.loads(whole)["event"] == "intent"


def test_the_file_is_for_its_owner_only_and_survives_rotation(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, clock=lambda: 0)
    log.write([{"n": 1}])
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    path.rename(tmp_path / "audit.jsonl.1")
    log.write([{"n": 2}])
    assert lines(path) == [{"time": "1970-01-01T00:00:00+00:00", "n": 2}]


def test_a_device_may_be_the_log():
    AuditLog(os.devnull).write([{"event": "intent"}])


def test_ids_are_hashed_with_and_without_a_key(tmp_path):
    plain = AuditLog(tmp_path / "a", hash_ids=True)
    keyed = AuditLog(tmp_path / "a", hash_ids=True, hash_key=b"k")
    names = {plain.name_of("alice"), keyed.name_of("alice"), keyed.name_of("bob\ud800")}
    assert len(names) == 3
    assert all(len(name) == 32 and "alice" not in name for name in names)
    assert AuditLog(tmp_path / "a").name_of("alice") == "alice"


def test_tenants_are_hashed_as_threads_are(make_saver, tmp_path):
    hashed, plain = AuditLog(tmp_path / "h", hash_ids=True), AuditLog(tmp_path / "p")
    with make_saver(tenant="acme corp") as saver:
        put_tenants_thread(saver, "t", 1)
        sweeper = TTLSweeper(saver, POLICY, audit_log=hashed)
        assert sweeper.sweep().deleted_thread_ids == ["t"]
        put_tenants_thread(saver, "t", 1)
        assert TTLSweeper(saver, POLICY, audit_log=plain).sweep().deleted_thread_ids == ["t"]
    assert {line["tenant"] for line in lines(tmp_path / "h")} == {hashed.name_of("acme corp")}
    assert "acme" not in (tmp_path / "h").read_text()
    assert '"tenant": "acme corp"' in (tmp_path / "p").read_text()


def test_where_there_are_no_tenants_none_is_hashed(tmp_path):
    log = AuditLog(tmp_path / "h", hash_ids=True)
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        put(saver, ["a"], age_seconds=2 * DAY)
        TTLSweeper(saver, POLICY, audit_log=log).sweep()
    assert '"tenant": null' in (tmp_path / "h").read_text()


CRASH = """
import os, sqlite3, sys
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_ephemeral_checkpointer import AuditLog, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.strategies import SqliteStrategy
path, log, when = sys.argv[1:]

class Crashing(SqliteStrategy):
    def delete_threads(self, *args):
        if when == "before":
            os._exit(9)
        super().delete_threads(*args)
        os._exit(9)

saver = SqliteSaver(sqlite3.connect(path, check_same_thread=False))
TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=86400), strategy=Crashing(saver), batch_size=2,
           audit_log=AuditLog(log)).sweep()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_leaves_no_unlogged_delete(tmp_path, when):
    path, log = tmp_path / "threads.db", tmp_path / "audit.jsonl"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, ["a", "b", "c"], age_seconds=2 * DAY)
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(path), str(log), when], env=environment(), check=False
    )
    assert done.returncode == 9
    gone = {"a", "b", "c"} - threads_in(path)
    assert gone == (set() if when == "before" else {"a", "b"})
    assert events(log) == [("intent", "a"), ("intent", "b")]
    connection = sqlite3.connect(path, check_same_thread=False)
    TTLSweeper(SqliteSaver(connection), POLICY, audit_log=AuditLog(log)).sweep()
    connection.close()
    assert threads_in(path) == set()
    assert {name for event, name in events(log) if event == "deleted"} >= {"a", "b", "c"} - gone
