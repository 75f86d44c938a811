"""A purge whose process is killed: each thread is done or untouched, and the next one ends it."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_ephemeral_checkpointer.retention import purge_messages

MONTH = timedelta(days=30)
THREADS = [f"t{n}" for n in range(12)]
KILLED_AT = 5

PURGE = """
import os, signal, sys, time
from datetime import timedelta
from langgraph.checkpoint.{module} import {name}
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.retention import purge_messages
from langgraph_ephemeral_checkpointer.strategies.{module} import purge

write, calls = purge._write, []

def killing(*args):
    calls.append(args)
    step = write(*args)
    answer = None
    for count in range(10**6):
        try:
            statement = step.send(answer)
        except StopIteration:
            return
        answer = yield statement
        if len(calls) == {at} and count == 3:
            os.kill(os.getpid(), signal.SIGKILL)

purge._write = killing
with {name}.from_conn_string(sys.argv[1]) as saver:
    purge_messages(saver, timedelta(days=30), clock=lambda: time.time() + 40 * 86400)
"""


def _config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


@pytest.mark.parametrize("saver_type", [SqliteSaver, PostgresSaver])
def test_a_purge_killed_inside_a_transaction_is_ended_by_the_next_one(
    saver_type, tmp_path, request
):
    module = "sqlite" if saver_type is SqliteSaver else "postgres"
    dsn = str(tmp_path / "x.db") if module == "sqlite" else request.getfixturevalue("pg_dsn")
    with saver_type.from_conn_string(dsn) as saver:
        saver.setup()
        builder = StateGraph(MessagesState).add_edge(START, "answer")
        builder.add_node("answer", lambda state: {"messages": [AIMessage("re OLDWORD")]})
        graph: Any = builder.compile(checkpointer=saver)

        def length(thread_id: str) -> int:
            return len(graph.get_state(_config(thread_id)).values["messages"])

        for thread_id in THREADS:
            graph.invoke({"messages": [("user", "OLDWORD")]}, _config(thread_id))
        script = PURGE.format(module=module, name=saver_type.__name__, at=KILLED_AT)
        done = subprocess.run(
            [sys.executable, "-c", script, dsn], timeout=60, check=False, capture_output=True
        )
        assert done.returncode == -9, done.stderr
        lengths = [length(thread_id) for thread_id in sorted(THREADS)]
        assert lengths == [0] * (KILLED_AT - 1) + [2] * (len(THREADS) - KILLED_AT + 1)

        result = purge_messages(saver, MONTH, clock=lambda: time.time() + 40 * 86400)

        assert result.purged_thread_ids == sorted(THREADS)[KILLED_AT - 1 :]
        assert result.errors == {}
        assert "OLDWORD" not in repr(list(saver.list(None)))
        graph.invoke({"messages": [("user", "NEXT")]}, _config("t0"))
