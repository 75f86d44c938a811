"""A storage is added by one folder and one row: everything then works on it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_ephemeral_checkpointer import (
    KeepReason,
    TTLPolicy,
    TTLSweeper,
    thread_statuses,
)
from langgraph_ephemeral_checkpointer.retention import RetainedCheckpointer, purge_messages
from langgraph_ephemeral_checkpointer.testing import check_strategy, save_thread
from tests.storages.folder import FolderSaver, FolderStrategy
from tests.support import graphs

ROOT = Path(__file__).parents[2]
DAY = 86_400


@pytest.fixture
def saver(tmp_path):
    return FolderSaver(tmp_path)


def config(thread_id):
    return {"configurable": {"thread_id": thread_id}}


def say(graph, thread_id, *texts):
    for text in texts:
        graph.invoke({"messages": [HumanMessage(text)]}, config(thread_id))


def test_it_passes_the_kit(tmp_path):
    def make_saver():
        return FolderSaver(Path(tempfile.mkdtemp(dir=tmp_path)))

    report = check_strategy(make_saver)
    assert report.notes == ()
    tried = {one.split(" ")[0] for one in report.passed}
    assert {"prune_keeps_the_newest", "a_purge_gives_way_to_a_save"} <= tried
    assert {one.split(" ")[0] for one in report.not_applicable} == {
        "a_trash_must_be_set_up",
        "trash_gives_back_what_was_deleted",
        "orphans_are_found_and_deleted",
        "an_orphan_that_got_its_checkpoint_stays",
        "sizes_are_told_of_each_thread",
        "a_lock_can_be_taken_again",
        "tenants_are_kept_apart",
        "unread_threads_are_deleted_only_where_sure",
    }


def test_a_sweep_deletes_idle_threads_of_real_graphs(saver):
    say(graphs.chat(saver), "idle", "hello")
    graphs.approval(saver).invoke({"items": []}, config("waits"))
    save_thread(saver, "fresh", [time.time() + DAY])
    sweeper = TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=3600), clock=lambda: time.time() + DAY)
    assert isinstance(sweeper.strategy, FolderStrategy)
    assert sweeper.sweep(dry_run=True).deleted_thread_ids == ["idle"]
    result = sweeper.sweep()
    assert result.deleted_thread_ids == ["idle"]
    assert result.kept == {"waits": KeepReason.INTERRUPTED}
    assert {one.thread_id for one in thread_statuses(saver, sweeper._settings.policy)} == {
        "waits",
        "fresh",
    }


async def test_a_sweep_from_an_event_loop_does_the_same(saver):
    save_thread(saver, "idle", [0.0])
    result = await TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=3600)).asweep()
    assert result.deleted_thread_ids == ["idle"]


@pytest.mark.parametrize("shape", ["chat", "nested"])
def test_a_pruned_thread_goes_on_as_before(saver, shape):
    graph = getattr(graphs, shape)(saver)
    for turn in range(3):
        said = {"messages": [HumanMessage(f"{turn}")]} if shape == "chat" else {"items": []}
        graph.invoke(said, config("long"))
    before = graph.get_state(config("long"), subgraphs=True)
    policy = TTLPolicy(max_checkpoints_per_thread=2)
    result = TTLSweeper(saver, policy).sweep()
    assert result.errors == {}
    assert result.pruned_checkpoint_count > 0
    assert (
        len(
            [*saver.list({"configurable": {**config("long")["configurable"], "checkpoint_ns": ""}})]
        )
        == 2
    )
    assert graph.get_state(config("long"), subgraphs=True) == before
    graph.invoke(said, config("long"))


def test_old_messages_are_purged_beside_a_graph(saver):
    clock = [1_750_000_000.0]
    retained = RetainedCheckpointer(saver, max_age=timedelta(days=30), clock=lambda: clock[0])
    graph = graphs.chat(retained)
    say(graph, "thread", "old")
    clock[0] += 20 * DAY
    say(graph, "thread", "new")
    clock[0] += 15 * DAY
    result = purge_messages(saver, timedelta(days=30), clock=lambda: clock[0])
    assert result.purged_thread_ids == ["thread"]
    left = graph.get_state(config("thread")).values["messages"]
    assert [message.content for message in left] == ["new", "certainly"]
    assert not any("old" in str(found) for found in saver.list(config("thread")))
    say(graph, "thread", "newest")
    assert isinstance(graph.get_state(config("thread")).values["messages"][-1], AIMessage)


def test_a_row_of_the_table_opens_it_on_the_command_line(saver, tmp_path):
    save_thread(saver, "idle", [0.0])
    save_thread(saver, "fresh", [time.time()])
    code = textwrap.dedent(
        f"""
        import sys
        from langgraph_ephemeral_checkpointer.strategies import registry

        registry.STORAGES += (
            registry.Storage(
                name="folder",
                strategies={{
                    "tests.storages.folder.saver.FolderSaver": (
                        "tests.storages.folder.strategy:FolderStrategy"
                    )
                }},
                opener="tests.storages.folder.open:open_folder",
            ),
        )
        from langgraph_ephemeral_checkpointer.cli.main import main

        where = ["--backend", "folder", "--dsn", {str(tmp_path)!r}]
        sys.exit(
            main(["status", *where, "--idle-ttl", "1h"])
            or main(["sweep", *where, "--idle-ttl", "1h", "--max-checkpoints", "5"])
            or main(["run", *where, "--idle-ttl", "1h", "--once"])
            or main(["purge-messages", *where, "--older-than", "30d"])
        )
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "deleted 1 thread" in done.stdout
    assert [found.config["configurable"]["thread_id"] for found in saver.list(None)] == ["fresh"]
