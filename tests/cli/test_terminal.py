"""The two streams, on a terminal and off it; closed pipes, full disks, and Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.main import main
from tests.support.program import HOUR, command, environment, put, run, threads_in

RULE = ["--idle-ttl", "1h"]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A file of more threads than any pipe holds lines."""
    path = tmp_path_factory.mktemp("many") / "many.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, [f"thread-{number:04}" for number in range(3000)], age_seconds=2 * HOUR)
    return path


def words(name, path, *more):
    return [name, "--backend", "sqlite", "--dsn", str(path), *RULE, *more]


def piped(*argv):
    return subprocess.Popen(
        command(*argv),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def everything_from(terminal):
    seen = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # everybody else has closed it
            part = b""
        if not part:
            os.close(terminal)
            return seen.decode()
        seen += part


@pytest.fixture
def on_terminal(monkeypatch):
    """Run main() with its streams on a pseudo-terminal, and give what appears there."""

    def on_terminal(*argv, **environ):
        for name, value in {"TERM": "xterm", "NO_COLOR": "", **environ}.items():
            monkeypatch.setenv(name, value)
        ours, theirs = pty.openpty()
        with open(theirs, "w") as stream, monkeypatch.context() as patched:  # noqa: PTH123
            patched.setattr(sys, "stdout", stream)
            patched.setattr(sys, "stderr", stream)
            main(list(argv))
        return everything_from(ours)

    return on_terminal


def test_a_process_on_a_terminal_shows_colours(file):
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        command(*words("status", file)),
        env=environment(TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    assert "\x1b[31mexpired: idle_ttl\x1b[0m" in everything_from(ours)
    assert done.wait(timeout=60) == 0


def test_a_terminal_gets_colours(on_terminal, file):
    assert "\x1b[31mexpired: idle_ttl\x1b[0m" in on_terminal(*words("status", file))
    assert "\x1b[33mkept\x1b[0m" in on_terminal(*words("sweep", file, "--dry-run"))
    assert "\x1b[1mUsage:\x1b[0m" in on_terminal("--help")
    assert "\x1b[31merror:\x1b[0m" in on_terminal("nonsense")


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_gets_none_where_none_are_wanted(on_terminal, file, plain):
    for argv in (words("status", file), words("sweep", file), ["--help"], ["nonsense"]):
        seen = on_terminal(*argv, **plain)
        assert seen
        assert "\x1b" not in seen


def test_no_colours_off_a_terminal(call, file, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for argv in (words("status", file), words("sweep", file), ["--help"], ["nonsense"]):
        answer = call(*argv)
        assert answer.out + answer.err
        assert "\x1b" not in answer.out + answer.err


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_status_into_head_is_quiet(many, more):
    with piped(*words("status", many, *more)) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_status_into_head_in_a_shell(many, tmp_path):
    shell = " ".join(command(*words("status", many)))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell} | head -1"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[0] == "IDLE"


def test_a_sweep_whose_reader_leaves_is_done_all_the_same(many, tmp_path):
    copy = tmp_path / "copy.db"
    copy.write_bytes(many.read_bytes())
    with piped(*words("sweep", copy)) as process:
        process.stdout.close()
        assert process.stderr.read() == "rules: every thread: deleted when idle for 1 hour\n"
    assert process.returncode == 0
    assert threads_in(copy) == set()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_streams_that_are_not_there_are_no_failure(file, closed):
    shell = " ".join(command(*words("status", file)))
    done = subprocess.run(
        ["bash", "-c", f"{shell} {closed}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


FULL = Path("/dev/full")

if FULL.exists():

    @pytest.mark.parametrize("argv", [["status"], ["--help"]], ids=" ".join)
    def test_a_full_disk_is_a_failure_in_one_line(file, argv):
        if argv != ["--help"]:
            argv = [*words(argv[0], file), *argv[1:]]
        with FULL.open("w") as out:
            done = subprocess.run(
                command(*argv),
                env=environment(),
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("error: standard output cannot be written")
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


ASCII = {"PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("argv", [["sweep", "--help"], ["nönsense"]], ids=" ".join)
def test_an_ascii_terminal_can_show_everything(tmp_path, argv):
    answer = run(*argv, cwd=tmp_path, **ASCII)
    assert answer.returncode in (0, 2)
    assert "Traceback" not in answer.stderr
    assert (answer.stdout + answer.stderr).isascii()


def test_an_ascii_terminal_can_show_ids_and_paths(tmp_path):
    path = tmp_path / "fädchen.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, ["fädchen", "bad"], age_seconds=2 * HOUR)
        saver.conn.execute(
            "CREATE TRIGGER no BEFORE DELETE ON checkpoints WHEN old.thread_id = 'bad' "
            "BEGIN SELECT raise(ABORT, 'nicht schön'); END"
        )
    swept = run(*words("sweep", path), cwd=tmp_path, **ASCII)
    assert swept.returncode == 1
    assert r"nicht sch\xf6n" in swept.stdout
    assert r'"f\u00e4dchen"' in swept.stdout
    gone = run(*words("sweep", tmp_path / "ä.db"), cwd=tmp_path, **ASCII)
    assert gone.returncode == 1
    assert "no such file" in gone.stderr
    assert "Traceback" not in gone.stderr


def interrupted_when(process, dsn):
    """Send Ctrl-C to a process once it waits for a lock in the database."""
    waiting = """
        SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND application_name = 'langgraph-ephemeral-checkpointer'
    """
    deadline = time.monotonic() + 30
    with psycopg.connect(dsn, autocommit=True) as connection:
        while connection.execute(waiting).fetchone() == (0,):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("name", "locked"),
    [("status", "checkpoints"), ("sweep", "checkpoints"), ("sweep", "checkpoint_blobs")],
)
def test_ctrl_c_ends_at_once_with_status_130_and_undoes_the_batch(pg_dsn, name, locked):
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        put(saver, [f"thread-{number}" for number in range(100)], age_seconds=2 * HOUR)
    with psycopg.connect(pg_dsn) as rival:
        rival.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
        with piped(name, "--backend", "postgres", "--dsn", pg_dsn, *RULE) as process:
            _, err = interrupted_when(process, pg_dsn)
        rival.rollback()
        assert process.returncode == 130
        assert err.splitlines()[-1] == "error: interrupted"
        assert "Traceback" not in err
        assert rival.execute("SELECT count(*) FROM checkpoints").fetchone() == (100,)


class Terminal(io.StringIO):
    """A terminal that tells when something was written to it."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        done = super().write(text)
        self.written.set()
        return done


def test_what_takes_long_shows_progress_on_a_terminal_and_cleans_up():
    terminal = Terminal()
    console = Console(io.StringIO(), terminal, {})
    with console.progress(lambda: "sweeping, 7 threads deleted", after=0.001, every=0.001):
        assert terminal.written.wait(10)
        console.message("warning: one line")
    seen = terminal.getvalue()
    assert seen.startswith("\rsweeping, 7 threads deleted (0s)\x1b[K")
    assert "\r\x1b[Kwarning: one line\n" in seen
    assert seen.endswith(("\r\x1b[K", "warning: one line\n"))


def test_what_is_quick_or_off_a_terminal_shows_no_progress():
    terminal = Terminal()
    with Console(None, terminal, {}).progress(lambda: "never", after=60):
        pass
    assert terminal.getvalue() == ""
    plain = io.StringIO()
    with Console(None, plain, {}).progress(lambda: "never", after=0, every=0.001):
        assert not [thread for thread in threading.enumerate() if thread.name == "progress"]
    assert plain.getvalue() == ""


def test_starting_costs_no_drivers_and_makes_no_noise(tmp_path):
    """Help must not need psycopg, and must not wait for it."""
    program = (
        "import sys; from langgraph_ephemeral_checkpointer.cli.main import main; "
        "status = main(['sweep', '--help']); "
        "sys.exit(status or any(name in sys.modules for name in ('psycopg', 'aiosqlite')))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


_WHILE_LOADING = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
runpy.run_module("langgraph_ephemeral_checkpointer", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "module",
    [
        "langgraph_ephemeral_checkpointer.cli.main",
        "clypi",
        "pydantic.types",
        "langgraph.checkpoint.base",
    ],
)
def test_ctrl_c_while_libraries_are_loaded_shows_no_traceback(module):
    told = subprocess.run(
        [sys.executable, "-c", _WHILE_LOADING, "help", module],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout, told.stderr) == (130, "", "error: interrupted\n")
