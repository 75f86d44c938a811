"""compact: the space of deleted threads goes back to the disk."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import namedtuple

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import first_id_at
from langgraph_ephemeral_checkpointer.strategies.sqlite import open as opening
from tests.support.program import HOUR, run, threads_in

MB = 1_000_000


@pytest.fixture
def large(tmp_path):
    """A file of ten threads of a megabyte each, nine of them expired."""
    path = tmp_path / "threads.db"
    import time

    with SqliteSaver.from_conn_string(str(path)) as saver:
        for number in range(10):
            checkpoint = empty_checkpoint()
            checkpoint["id"] = first_id_at(time.time() - (2 * HOUR if number else 0))
            checkpoint["channel_values"] = {"text": "x" * MB}
            saver.put(
                {"configurable": {"thread_id": f"t{number}", "checkpoint_ns": ""}},
                checkpoint, {}, {},
            )  # fmt: skip
    return path


def size(path):
    return sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))


def sweep(path, *more):
    return ["sweep", "--backend", "sqlite", "--dsn", str(path), "--idle-ttl", "1h", *more]


def compact(path, *more):
    return ["compact", "--dsn", str(path), *more]


def test_a_sweep_alone_leaves_the_file_as_large_as_it_was(call, large):
    before = size(large)
    assert call(*sweep(large)).status == 0
    assert size(large) >= before


def test_a_sweep_that_compacts_makes_the_file_small_its_log_included(call, large):
    """Also while an application has it open, so that the log is not removed at the end."""
    application = sqlite3.connect(large)
    application.execute("SELECT count(*) FROM checkpoints").fetchone()
    answer = call(*sweep(large, "--compact"))
    assert answer.status == 0
    assert large.with_name("threads.db-wal").exists()
    assert size(large) < 1.2 * MB
    application.close()
    assert answer.err.splitlines()[1].startswith("compacted: 1")
    assert threads_in(large) == {"t0"}


def test_a_dry_run_does_not_compact(call, large):
    before = large.read_bytes()
    assert call(*sweep(large, "--compact", "--dry-run")).status == 0
    assert large.read_bytes() == before


def test_the_command_tells_the_sizes_before_and_after(call, large, tmp_path):
    call(*sweep(large))
    before = size(large)
    done = run(*compact(large, "--json"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["bytes_before"] == before
    assert told["bytes_after"] == size(large) < 1.2 * MB
    again = call(*compact(large))
    assert again.out == "compacted: 1.0 MB before, 1.0 MB after\n"


def test_a_disk_without_room_is_noticed_before_anything_is_done(call, large, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(20 * MB, 19 * MB, MB))
    before = large.read_bytes()
    answer = call(*compact(large))
    assert answer.status == 1
    assert "has 1.0 MB free, and up to" in answer.err
    assert large.read_bytes() == before


def test_a_reader_of_old_pages_is_told_of(call, large, monkeypatch):
    monkeypatch.setattr(opening, "BUSY_TIMEOUT_SECONDS", 0.05)
    call(*sweep(large))
    reader = sqlite3.connect(large)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM checkpoints").fetchone()
    answer = call(*compact(large))
    assert answer.status == 1
    assert "another connection still reads the old pages" in answer.err
    reader.close()
    assert call(*compact(large)).status == 0
    assert size(large) < 1.2 * MB


def test_a_writer_is_told_of(call, large, monkeypatch):
    monkeypatch.setattr(opening, "BUSY_TIMEOUT_SECONDS", 0.05)
    writer = sqlite3.connect(large, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    answer = call(*compact(large))
    assert answer.status == 1
    assert "locked" in answer.err
    writer.close()


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "--backend", "postgres"],
        ["sweep", "--backend", "postgres", "--idle-ttl", "1h", "--compact"],
    ],
)
def test_only_sqlite_is_compacted(call, words):
    answer = call(*words)
    assert answer.status == 2
    assert "autovacuum" in answer.err
