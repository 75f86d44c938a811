"""The HTTP side of ``run``: metrics for Prometheus, and probes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langgraph_ephemeral_checkpointer.cli.failures import CommandError

Page = Callable[[], tuple[int, str, bytes]]
"""Gives the status, the type and the content of an answer."""


@contextmanager
def serving(host: str, port: int, pages: dict[str, Page]) -> Iterator[int]:
    """Answer GET requests from threads of their own while the block runs.

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
            page = pages.get(self.path.partition("?")[0], _not_found)
            status, kind, content = page()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: Any) -> None:
            """Say nothing: probes come every few seconds."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

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
