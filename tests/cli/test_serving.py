"""The HTTP side of run answers probes whatever its clients do."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from langgraph_ephemeral_checkpointer.cli.serving import serving

PAGES = {"/healthz": lambda: (200, "text/plain", b"ok\n")}


def ask(port, method="GET", path="/healthz"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Length"), answer.read()
    finally:
        connection.close()


def test_head_is_answered_like_get_without_the_content():
    with serving("127.0.0.1", 0, PAGES) as port:
        assert ask(port) == (200, "3", b"ok\n")
        assert ask(port, "HEAD") == (200, "3", b"")
        assert ask(port, "HEAD", "/no")[0] == 404


def test_connections_that_say_nothing_are_bounded_and_keep_no_probe_out():
    with ExitStack() as stack, serving("127.0.0.1", 0, PAGES) as port:
        before = threading.active_count()
        for _ in range(80):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        began = time.monotonic()
        assert ask(port)[0] == 200
        assert time.monotonic() - began < 5
        assert threading.active_count() - before < 50


@pytest.fixture
def no_descriptors():
    """Take every descriptor that the process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []

    def take():
        limit = len([*Path("/proc/self/fd").iterdir()]) + 8
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return

    def give():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while taken:
            os.close(taken.pop())

    yield take, give
    give()


def test_it_does_not_spin_where_no_descriptor_is_left_and_answers_again_after(no_descriptors):
    take, give = no_descriptors
    with serving("127.0.0.1", 0, PAGES) as port:
        client = socket.socket()
        take()
        client.connect(("127.0.0.1", port))  # the kernel takes it, accept() cannot
        used = time.process_time()
        began = time.monotonic()
        while time.monotonic() - began < 1:
            threading.Event().wait(0.25)
        assert time.process_time() - used < 0.15
        give()
        client.close()
        assert ask(port)[0] == 200
