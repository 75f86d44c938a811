"""The HTTP side of ``run``: metrics for Prometheus, and probes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langgraph_ephemeral_checkpointer.cli.failures import CommandError

MOST_CONNECTIONS = 32
"""At a time; the oldest makes room for a new one, so that who keeps many keeps no probe out."""
_PAUSE_SECONDS = 0.2

Page = Callable[[], tuple[int, str, bytes]]
"""Gives the status, the type and the content of an answer."""


@contextmanager
def serving(host: str, port: int, pages: dict[str, Page]) -> Iterator[int]:
    """Answer GET and HEAD requests from threads of their own while the block runs.

    Args:
        host: The address to listen on.
        port: 0 is any that is free.
        pages: What to answer, by path.

    Returns:
        The port.

    Raises:
        CommandError: The port is taken, or the address is not of this machine.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # of a client that says nothing

        def do_GET(self) -> None:
            self.wfile.write(self._head())

        def do_HEAD(self) -> None:
            self._head()

        def _head(self) -> bytes:
            page = pages.get(self.path.partition("?")[0], _not_found)
            status, kind, content = page()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return content

        def log_message(self, *_args: Any) -> None:
            """Say nothing: probes come every few seconds."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        request_queue_size = 64

        def __init__(self, *args: Any) -> None:
            self._open: dict[socket.socket, None] = {}
            self._guard = threading.Lock()
            super().__init__(*args)

        def get_request(self) -> tuple[socket.socket, Any]:
            try:
                return super().get_request()
            except OSError:  # no descriptor is left: the client stays in the queue
                time.sleep(_PAUSE_SECONDS)
                raise

        def process_request(self, request: Any, client_address: Any) -> None:
            with self._guard:
                if len(self._open) >= MOST_CONNECTIONS:
                    with suppress(OSError):
                        oldest = next(iter(self._open))
                        del self._open[oldest]
                        oldest.shutdown(socket.SHUT_RDWR)
                self._open[request] = None
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            with self._guard:
                self._open.pop(request, None)
            super().shutdown_request(request)

        def handle_error(self, *_args: Any) -> None:
            """Say nothing of clients that hang up."""

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host}:{port} for --metrics-port: {error.strerror or error}"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _not_found() -> tuple[int, str, bytes]:
    return 404, "text/plain", b"there are /metrics, /healthz and /readyz\n"
