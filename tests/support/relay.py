"""A TCP relay in front of a server, which counts how often the client waits for it."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Relay:
    """Passes bytes on, and counts round trips.

    A round trip begins with the first message a client sends after it was answered. It is
    answered only after it asked to be, with a Query, a Sync or a Flush message: what a
    server sends before is its buffer running over. A Flush right behind a Sync, which
    psycopg sends, waits for nothing new.
    """

    def __init__(self, dsn: str) -> None:
        self._server = conninfo_to_dict(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.trips = 0
        port = self._listener.getsockname()[1]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")
        self._sockets: list[socket.socket] = [self._listener]

    def _connect(self) -> socket.socket:
        host, port = str(self._server.get("host", "")), self._server.get("port") or 5432
        if not host.startswith("/"):
            return socket.create_connection((host, int(port)))
        found = socket.socket(socket.AF_UNIX)
        found.connect(str(Path(host) / f".s.PGSQL.{port}"))
        return found

    def serve(self) -> None:
        """Take connections until the listener is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            self._sockets += [client, server]
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: Any, server: Any) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        seen = bytearray()
        head = 0  # the startup message has no type byte
        answered, asked = True, False
        try:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is client:
                        seen += data
                        while len(seen) >= head + 4:
                            end = head + int.from_bytes(seen[head : head + 4])
                            if len(seen) < end:
                                break
                            kind = bytes(seen[:head])
                            if answered and kind != b"H":
                                self.trips += 1
                                answered = False
                            asked |= kind in {b"", b"Q", b"S", b"H"}
                            del seen[:end]
                            head = 1
                        server.sendall(data)
                    else:
                        answered |= asked
                        asked = False
                        client.sendall(data)
        except (OSError, ValueError):
            return
        finally:
            client.close()
            server.close()

    def close(self) -> None:
        """Stop listening, and drop every connection."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def relay(dsn: str) -> Iterator[Relay]:
    """A relay in front of ``dsn`` while the block lasts."""
    made = Relay(dsn)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join(5)


class Calls:
    """The calls that a run makes of a saver, each of which is one round trip if it can be.

    They come from several threads, so that no call can be told from the others on the wire.
    """

    def __init__(self, saver: Any, wire: Relay) -> None:
        self._wire = wire
        self._before = wire.trips
        self.puts = self.others = 0
        for name in ("_save", "_write", "_load", "_history"):
            setattr(saver, name, self._counted(getattr(saver, name), name == "_save"))

    def _counted(self, call: Any, is_put: bool) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.puts += is_put
            self.others += not is_put
            return call(*args, **kwargs)

        return counted

    @property
    def trips_of_puts(self) -> int:
        return self._wire.trips - self._before - self.others
