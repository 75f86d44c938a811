"""A real pgbouncer in transaction mode, in front of the suite's Postgres."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def pgbouncer(dsn: str, *, pool_size: int = 5) -> Iterator[str]:
    """Start a pooler in transaction mode in front of ``dsn``; give a DSN that goes through it."""
    server = conninfo_to_dict(dsn)
    port = _free_port()
    target = " ".join(
        f"{ours}={server[theirs]}"
        for ours, theirs in (("host", "host"), ("port", "port"), ("user", "user"))
        if server.get(theirs)
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        config = Path(folder) / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = {target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {port}\nauth_type = any\npool_mode = transaction\n"
            f"default_pool_size = {pool_size}\nmax_client_conn = 200\nunix_socket_dir =\n"
            "ignore_startup_parameters = extra_float_digits,options\n"
        )
        config.chmod(0o644)
        command = ["pgbouncer", "-q", str(config)]
        if os.geteuid() == 0:  # it refuses to run as root
            socket_folder = Path(str(server.get("host", "")))
            user = socket_folder.owner() if socket_folder.is_dir() else "nobody"
            command[1:1] = ["-u", user]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        through = make_conninfo(
            "", host="127.0.0.1", port=port, user=server["user"], dbname=server["dbname"]
        )
        try:
            _wait_until_it_answers(through, process)
            yield through
        finally:
            process.terminate()
            process.wait(10)


def _wait_until_it_answers(dsn: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
