"""A support desk in miniature: real conversations in an SQLite file, some of them old.

Run it with ``make demo``. It works in a temporary directory and removes it at the end.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import groupby

from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_id
from langgraph_ephemeral_checkpointer.testing import checkpoint_id_at

FILE = "support.sqlite"
DAY = 24 * 3600
MODEL = FakeListChatModel(responses=["Have you tried turning it off and on again?"])


def answer(state: MessagesState) -> dict:
    """Let the model answer."""
    return {"messages": [MODEL.invoke(state["messages"])]}


def refund(state: MessagesState) -> dict:
    """Ask a human before money is paid back."""
    verdict = interrupt("Pay 20 euros back?")
    return {"messages": [("ai", f"A colleague said: {verdict}")]}


def route(state: MessagesState) -> str:
    """Send questions about money to a human."""
    return "refund" if "refund" in state["messages"][-1].content else "answer"


def build(saver: SqliteSaver):
    """Build the application."""
    graph = StateGraph(MessagesState).add_node(answer).add_node(refund)
    graph.add_conditional_edges(START, route, ["answer", "refund"])
    return graph.add_edge("answer", END).add_edge("refund", END).compile(checkpointer=saver)


def make_older(saver: SqliteSaver, thread_id: str, seconds: float) -> None:
    """Store a thread again, as if it had been saved that much earlier.

    A checkpoint's time is in its id, so each gets a new one.
    """
    history = list(saver.list({"configurable": {"thread_id": thread_id}}))[::-1]
    saver.delete_thread(thread_id)
    ids = {
        found.checkpoint["id"]: checkpoint_id_at(time_of_id(found.checkpoint["id"]) - seconds, n)
        for n, found in enumerate(history)
    }
    for found in history:
        where = {"thread_id": thread_id, "checkpoint_ns": ""}
        if found.parent_config is not None:
            where["checkpoint_id"] = ids[found.parent_config["configurable"]["checkpoint_id"]]
        checkpoint = {**found.checkpoint, "id": ids[found.checkpoint["id"]]}
        versions = checkpoint["channel_versions"]
        config = saver.put({"configurable": where}, checkpoint, found.metadata, versions)
        for task, writes in groupby(found.pending_writes, lambda write: write[0]):
            saver.put_writes(config, [write[1:] for write in writes], task)


def fill() -> None:
    """Let some customers talk, and let time pass for some of them."""
    talks = {
        "anna": ("My screen is black.", 40 * DAY),
        "ben": ("The printer beeps.", 9 * DAY),
        "carla": ("I want a refund!", 12 * DAY),
        "dora": ("Where is the manual?", 2 * DAY),
        "emil": ("It works now, thanks.", 0),
    }
    with SqliteSaver.from_conn_string(FILE) as saver:
        app = build(saver)
        for customer, (text, age) in talks.items():
            app.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": customer}})
            make_older(saver, customer, age)


def show(*arguments: str) -> None:
    """Run the command line as a user would, and show what was typed."""
    print(f"\n$ {shlex.join(['langgraph-ephemeral-checkpointer', *arguments])}", flush=True)
    command = [sys.executable, "-m", "langgraph_ephemeral_checkpointer", *arguments]
    subprocess.run(command, check=True, stderr=subprocess.STDOUT)  # noqa: S603 - our own command


def main() -> None:
    """Fill the file, then look, try, sweep, and look again."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        fill()
        print(f"Five conversations are in {FILE}; carla's waits for a human.", flush=True)
        where = ("--backend", "sqlite", "--dsn", FILE, "--idle-ttl", "7d")
        show("status", *where)
        show("sweep", *where, "--dry-run")
        show("sweep", *where)
        show("status", *where)
        os.chdir("/")
    print(f"\nDone in {time.perf_counter() - started:.1f} s.")


if __name__ == "__main__":
    main()
