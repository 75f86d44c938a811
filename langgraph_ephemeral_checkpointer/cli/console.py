"""The two streams: data on one, messages on the other, and neither ever in the way."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TextIO

from langgraph_ephemeral_checkpointer.cli.failures import CommandError
from langgraph_ephemeral_checkpointer.common.durations import format_duration
from langgraph_ephemeral_checkpointer.common.secrets import redact

_CODES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}


class Console:
    """Write lines to standard output and messages to standard error.

    Characters that a stream cannot encode are written as backslash escapes. Messages are
    one line each and have their secrets removed.

    Args:
        stdout: For data; None if the process has none.
        stderr: For messages; None if the process has none.
        environ: The environment, for ``NO_COLOR`` and ``TERM``.
        debug: Show tracebacks.
    """

    def __init__(
        self,
        stdout: TextIO | None,
        stderr: TextIO | None,
        environ: Mapping[str, str],
        *,
        debug: bool = False,
    ) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._debug = debug
        self._secrets: set[str] = set()
        self._progress_shown = False
        self._lock = threading.Lock()
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        self.colour = not plain and _is_terminal(stdout)
        self.stderr_colour = not plain and _is_terminal(stderr)
        self.structured = False
        """Messages are JSON objects, for machines."""
        self._holding = threading.Lock()
        self._held: list[tuple[str, str, dict[str, Any]]] | None = None
        self.output_closed = stdout is None
        """Nobody reads standard output any more; what is written to it is dropped."""

    def hide(self, secrets: set[str]) -> None:
        """Keep texts out of everything that is written from now on, data excepted."""
        self._secrets |= secrets

    def redact(self, text: str) -> str:
        """Take secrets out of a text and make it one line."""
        # Twice: a secret may hold the spaces that are folded here.
        return redact(" ".join(redact(text, self._secrets).split()), self._secrets)

    def paint(self, text: str, style: str | None) -> str:
        """Colour a part of a line of data, where standard output is a terminal."""
        return _painted(text, style) if self.colour and style else text

    def quote(self, text: str) -> str:
        """Give a thread id in a form that cannot be mistaken and cannot move the cursor.

        An id that has anything else than visible characters and inner spaces in it, or
        that standard output cannot encode, is written as a JSON string.
        """
        encoding = getattr(self._stdout, "encoding", None) or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return json.dumps(text)
        plain = text.isprintable() and text.strip() == text and text[:1] not in ("", '"')
        return text if plain else json.dumps(text)

    def write(self, text: str) -> None:
        """Write text with its line ends to standard output.

        Raises:
            CommandError: It cannot be written, for instance because the disk is full.
        """
        with self._output() as stdout:
            stdout.write(_encodable(text, stdout))

    def line(self, text: str) -> None:
        """Write one line to standard output; raises as :meth:`write`."""
        self.write(f"{text}\n")

    def flush(self) -> None:
        """Send standard output on its way; raises as :meth:`write`."""
        with self._output() as stdout:
            stdout.flush()

    @contextmanager
    def _output(self) -> Iterator[TextIO]:
        # A null device stands in, so that a command may go on after its reader has left.
        if self._stdout is None or self.output_closed:
            with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - no path
                yield nowhere
            return
        try:
            yield self._stdout
        except BrokenPipeError:
            self._give_up_output()
        except OSError as error:
            self._give_up_output()
            raise CommandError(
                f"standard output cannot be written: {error.strerror or error}"
            ) from error

    def _give_up_output(self) -> None:
        self.output_closed = True
        # Python flushes standard output once more when it exits, and would complain then.
        with suppress(OSError, ValueError, AttributeError):
            assert self._stdout is not None  # noqa: S101 - for the type checker
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stdout.fileno())
            os.close(nowhere)

    def hold(self) -> None:
        """Hold messages back, until it is known how and whether they are wanted."""
        self._held = []

    def forget(self) -> None:
        """Drop the messages that are held back: nothing is done, so they are about nothing."""
        self._held = None

    def release(self, first: str | None = None, **fields: Any) -> None:
        """Write a message, if one is given, then those that were held back, and hold no more."""
        with self._holding:
            held, self._held = self._held or [], None
        if first is not None:
            self.message(first, **fields)
        for text, level, told in held:
            self.message(text, level=level, **told)

    def message(self, text: str, *, level: str = "info", **fields: Any) -> None:
        """Write a message to standard error, as one line.

        Args:
            text: For people.
            level: For machines, as are the other fields.
            fields: What the text says, by name.
        """
        with self._holding:  # drivers log from threads of their own
            if self._held is not None:
                self._held.append((text, level, fields))
                return
        if self.structured:
            self._to_stderr(self._record(level, text, fields))
        else:
            label = f"{level}: " if "logger" in fields else ""
            self._to_stderr(f"{label}{self.redact(text)}\n")

    def failure(self, text: str, **fields: Any) -> None:
        """Write the message of a failure to standard error, as one line."""
        self.release()
        if self.structured:
            self.message(text, level="error", **fields)
            return
        label = _painted("error:", "red") if self.stderr_colour else "error:"
        self._to_stderr(f"{label} {self.redact(text)}\n")

    def traceback(self, error: BaseException) -> None:
        """Write where an error comes from, under ``--debug``."""
        if not self._debug:
            return
        lines = "".join(traceback.format_exception(error)).split("\n")
        text = "".join(f"{redact(line, self._secrets)}\n" for line in lines)
        self._to_stderr(self._record("debug", text, {}) if self.structured else text)

    def _record(self, level: str, text: str, fields: Mapping[str, Any]) -> str:
        known = {"time": datetime.now(UTC).isoformat(), "level": level}
        message = redact(text, self._secrets)
        return f"{json.dumps({**known, 'message': message, **fields}, default=str)}\n"

    def _to_stderr(self, text: str) -> None:
        stderr = self._stderr
        if stderr is None:
            return
        with self._lock, suppress(OSError, ValueError):  # nobody can be told
            self._clear_progress(stderr)
            stderr.write(_encodable(text, stderr))
            stderr.flush()

    @contextmanager
    def progress(
        self, describe: Callable[[], str], *, after: float = 2.0, every: float = 0.5
    ) -> Iterator[None]:
        """Show that something takes its time, if standard error is a terminal.

        Args:
            describe: Gives the text to show; called from another thread.
            after: Seconds until it is first shown.
            every: Seconds between two updates.
        """
        if self._stderr is None or not _is_terminal(self._stderr):
            yield
            return
        done, started = threading.Event(), time.monotonic()

        def show() -> None:
            pause = after
            while not done.wait(pause):
                pause = every
                elapsed = format_duration(time.monotonic() - started)
                self._show_progress(f"{describe()} ({elapsed})")

        ticker = threading.Thread(target=show, name="progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()
            self._to_stderr("")

    def _show_progress(self, text: str) -> None:
        stderr = self._stderr
        with self._lock, suppress(OSError, ValueError):
            assert stderr is not None  # noqa: S101 - for the type checker
            stderr.write(f"\r{_encodable(text, stderr)}\x1b[K")
            stderr.flush()
            self._progress_shown = True

    def _clear_progress(self, stderr: TextIO) -> None:
        if self._progress_shown:
            stderr.write("\r\x1b[K")
            self._progress_shown = False

    @contextmanager
    def logging(self, name: str = "langgraph_ephemeral_checkpointer") -> Iterator[None]:
        """Show what a package logs as messages, from warnings on (all under ``--debug``).

        Args:
            name: Of its logger; this package where none is given.
        """
        logger = logging.getLogger(name)
        handler = _ToConsole(self, logging.DEBUG if self._debug else logging.WARNING)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


class _ToConsole(logging.Handler):
    def __init__(self, console: Console, level: int) -> None:
        super().__init__(level)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        cause = "" if error is None else f" ({type(error).__name__}: {error})"
        level, text = record.levelname.lower(), f"{record.getMessage()}{cause}"
        self._console.message(text, level=level, logger=record.name)
        if error is not None:
            self._console.traceback(error)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _painted(text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
