"""Savers from PyPI, swept through GenericStrategy or a few lines on top of it."""

from __future__ import annotations

import tempfile
import time
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Annotated, TypedDict

import lmdb
import pytest
import redis
from langgraph.checkpoint.inspeximus import InspeximusSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from langgraph_checkpoint_lmdb import LMDBSaver
from langgraph_checkpoint_objectstorage import ObjectStorageSaver
from langgraph_checkpoint_plainredis import AsyncRedisSaver, RedisSaver

from langgraph_ephemeral_checkpointer import (
    AsyncRequiredError,
    KeepReason,
    StorageError,
    TTLPolicy,
    TTLSweeper,
    UnsupportedCheckpointerError,
)
from langgraph_ephemeral_checkpointer.strategies import GenericStrategy
from langgraph_ephemeral_checkpointer.testing import (
    CONTRACT,
    BrokenContractError,
    StrategyContract,
    check_strategy,
    save_thread,
)

# Some of these savers leave lock files and event loops open; that is not what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

IDLE = TTLPolicy(idle_ttl_seconds=3600)


# Redis: lists every thread, in either colour


class _Redis(StrategyContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_socket):
        self.socket = str(redis_socket)

    def flush(self):
        with redis.Redis(unix_socket_path=self.socket) as client:
            client.flushall()


class TestRedisSaver(_Redis):
    @contextmanager
    def make_saver(self):
        self.flush()
        with redis.Redis(unix_socket_path=self.socket) as client:
            yield RedisSaver(client)


class TestAsyncRedisSaver(_Redis):
    @asynccontextmanager
    async def make_saver(self):
        self.flush()
        async with redis.asyncio.Redis(unix_socket_path=self.socket) as client:
            yield AsyncRedisSaver(client)


async def test_a_saver_that_only_raises_in_one_colour_is_swept_in_both_where_it_can(redis_socket):
    with redis.Redis(unix_socket_path=str(redis_socket)) as client:
        client.flushall()
        saver = RedisSaver(client)
        save_thread(saver, "old", [time.time() - 7200])
        assert (await TTLSweeper(saver, IDLE).asweep()).deleted_thread_ids == ["old"]
    async with redis.asyncio.Redis(unix_socket_path=str(redis_socket)) as client:
        with pytest.raises(
            AsyncRequiredError, match=r"AsyncRedisSaver is asynchronous.*asweep\(\)"
        ):
            TTLSweeper(AsyncRedisSaver(client), IDLE).sweep()


class State(TypedDict):
    words: Annotated[list[str], lambda old, new: old + new]


def _ask(state: State) -> State:
    return {"words": [interrupt("go on?")]}


def test_real_graphs_on_redis_expire_and_the_waiting_one_goes_on(redis_socket):
    with redis.Redis(unix_socket_path=str(redis_socket)) as client:
        client.flushall()
        saver = RedisSaver(client)
        echo = StateGraph(State).add_node("echo", lambda state: {"words": ["echo"]})
        talk = echo.add_edge(START, "echo").add_edge("echo", END).compile(checkpointer=saver)
        ask = StateGraph(State).add_node("ask", _ask).add_edge(START, "ask")
        question = ask.compile(checkpointer=saver)
        talk.invoke({"words": ["hi"]}, {"configurable": {"thread_id": "talk"}})
        waiting = {"configurable": {"thread_id": "waiting"}}
        question.invoke({"words": ["hi"]}, waiting)
        later = TTLSweeper(saver, IDLE, clock=lambda: time.time() + 7200)
        result = later.sweep()
        assert result.deleted_thread_ids == ["talk"]
        assert result.kept == {"waiting": KeepReason.INTERRUPTED}
        assert talk.get_state({"configurable": {"thread_id": "talk"}}).values == {}
        assert question.invoke(Command(resume="yes"), waiting)["words"] == ["hi", "yes"]


# inspeximus: lists every thread, but of one thread only the root namespace


class ListsTheWholeThread(GenericStrategy):
    def list_checkpoints(self, thread_id=None):
        for found in super().list_checkpoints():
            if thread_id is None or found.config["configurable"]["thread_id"] == thread_id:
                yield found

    async def alist_checkpoints(self, thread_id=None):
        for found in self.list_checkpoints(thread_id):
            yield found


def inspeximus():
    return InspeximusSaver(path=str(Path(tempfile.mkdtemp()) / "threads.jsonl"))


class TestInspeximusSaver(StrategyContract):
    def make_saver(self):
        return inspeximus()

    def make_strategy(self, saver):
        return ListsTheWholeThread(saver)


def test_the_kit_tells_that_inspeximus_lists_a_thread_only_in_part():
    with pytest.raises(BrokenContractError) as caught:
        check_strategy(inspeximus)
    assert set(caught.value.broken) == {
        f"{rule} [{colour}]"
        for rule in ("recheck_is_asked_with_fresh_facts", "still_expired_decides_as_documented")
        for colour in ("sweep", "asweep")
    }


# Object storage: cannot list all threads, so a few lines find them in its files


def objects():
    return ObjectStorageSaver.from_conn_string(f"file://{tempfile.mkdtemp()}")


def test_a_saver_that_cannot_list_all_threads_is_a_clear_error_and_nothing_is_deleted():
    saver = objects()
    save_thread(saver, "old", [time.time() - 7200])
    with pytest.raises(
        StorageError, match=r"ObjectStorageSaver cannot list .* nothing was deleted"
    ):
        TTLSweeper(saver, IDLE).sweep()
    assert saver.get_tuple({"configurable": {"thread_id": "old"}}) is not None


class WalksTheFiles(GenericStrategy):
    def list_checkpoints(self, thread_id=None):
        root = Path(self.checkpointer.root)
        for folder in sorted(root.glob("*/**/checkpoints")):
            thread, *rest = folder.relative_to(root).parts[:-1]
            if thread_id is None or thread == thread_id:
                where = {"thread_id": thread, "checkpoint_ns": "/".join(rest)}
                yield from self.checkpointer.list({"configurable": where})

    async def alist_checkpoints(self, thread_id=None):
        for found in self.list_checkpoints(thread_id):
            yield found


def test_object_storage_keeps_the_contract_once_a_strategy_walks_its_files():
    report = check_strategy(objects, WalksTheFiles)
    assert len(report.passed) == 2 * len([one for one in CONTRACT if one.needs is None])
    assert "thread id 'a/b' not tried" in "".join(report.notes)


# LMDB: cannot delete a thread


def test_a_saver_that_cannot_delete_threads_is_refused_at_construction(tmp_path):
    with closing(lmdb.open(str(tmp_path), max_dbs=4)) as environment:
        saver = LMDBSaver(environment)
        save_thread(saver, "old", [time.time() - 7200])
        with pytest.raises(UnsupportedCheckpointerError, match="LMDBSaver implements neither"):
            TTLSweeper(saver, IDLE)
        assert saver.get_tuple({"configurable": {"thread_id": "old"}}) is not None
