"""``run`` as a process of its own, and what it says while it runs."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.program import command, environment


class Sidecar:
    """A running process; its messages are JSON lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, timeout: float = 30, **fields: Any) -> dict[str, Any]:
        """Wait for the next message that has all these fields."""
        while True:
            line = self._lines.get(timeout=timeout)
            assert line is not None, f"ended without {fields}: {self.said}"
            message = json.loads(line)
            self.said.append(message)
            if all(message.get(name) == value for name, value in fields.items()):
                return message

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and give the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(timeout=30)
        self._reader.join(timeout=10)
        while (line := self._lines.get(timeout=10)) is not None:
            self.said.append(json.loads(line))
        return status

    def get(self, port: int, path: str) -> tuple[int, str]:
        """Ask its HTTP side."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextmanager
def sidecar(*words: str, **changes: str) -> Iterator[Sidecar]:
    process = subprocess.Popen(
        command("run", "--log-format", "json", *words),
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Sidecar(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def metric(text: str, name: str) -> float | None:
    """Give the value of a metric, labels included in its name."""
    for line in text.splitlines():
        key, _, value = line.rpartition(" ")
        if key == name:
            return float(value)
    return None
