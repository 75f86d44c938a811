"""A relay that makes a server on this machine as slow to reach as one that is far away."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Trips:
    """Counts round trips: how often a client spoke again after the server had answered.

    Attributes:
        count: So many, over all connections.
    """

    def __init__(self) -> None:
        self.count = 0
        self._answered = True

    def asked(self) -> None:
        """Note that the client has sent something."""
        self.count += self._answered
        self._answered = False

    def answered(self) -> None:
        """Note that the server has."""
        self._answered = True


@contextmanager
def far_away(dsn: str, delay: float) -> Iterator[tuple[str, Trips]]:
    """Give a DSN by which whatever a client sends arrives ``delay`` seconds later.

    What is sent while something is on its way is not held up by it, as on a real line, so a
    call takes longer by ``delay`` for each round trip. The trips are counted too, as long as
    one connection at a time is in use.
    """
    trips = Trips()
    where = conninfo_to_dict(dsn)
    host, port = str(where["host"]), where.get("port") or 5432
    listener = socket.create_server(("127.0.0.1", 0))
    open_ = [listener]

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if host.startswith("/"):
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(Path(host) / f".s.PGSQL.{port}"))
            else:
                server = socket.create_connection((host, int(port)))
            open_.extend((client, server))
            line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            for target, args in (
                (_receive, (client, line, delay, trips)),
                (_deliver, (line, server)),
                (_pass_on, (server, client, trips)),
            ):
                threading.Thread(target=target, args=args, daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        port_here = listener.getsockname()[1]
        yield make_conninfo(dsn, host="127.0.0.1", port=port_here, sslmode="disable"), trips
    finally:
        for one in open_:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        thread.join(5)


def _receive(
    source: socket.socket,
    line: queue.SimpleQueue[tuple[float, bytes]],
    delay: float,
    trips: Trips,
) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            trips.asked()
            line.put((time.perf_counter() + delay, data))
    line.put((0.0, b""))


def _deliver(line: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
    with suppress(OSError):
        while True:
            due, data = line.get()
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            time.sleep(max(0.0, due - time.perf_counter()))
            target.sendall(data)


def _pass_on(source: socket.socket, target: socket.socket, trips: Trips) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            trips.answered()
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
