"""The audit log: a line on disk for each thread before it is deleted or trimmed, and one after.

Each line is a JSON object. ``event`` tells what it says:

``intent``
    The thread is about to be deleted or trimmed. Written and fsynced before the
    transaction begins, so no delete is ever unlogged.
``deleted``, ``pruned``
    It is done and committed.
``kept``
    Nothing was done; ``why`` is a ``KeepReason``, or what went wrong.
``unknown``
    The storage went away during the transaction, so it may or may not be committed.

An ``intent`` that no other line with the same ``id`` follows is like ``unknown``: the process
ended in between. Whether the thread is still there tells which; if it is, the next sweep
logs it again under another ``id``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts
from langgraph_ephemeral_checkpointer.engine.steps import Record
from langgraph_ephemeral_checkpointer.errors import RetentionError
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, PruneOutcome, Strategy
from langgraph_ephemeral_checkpointer.sweeps.asking import sizes_of, tenant_of
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps

_NEW_FILE = 0o600  # thread ids may be personal data
_HASH_CHARACTERS = 32


class AuditError(RetentionError):
    """The audit log cannot be written, so nothing more is deleted."""


class AuditLog:
    """A file to which lines are only ever added.

    It is opened for each write, so a log that is renamed or removed meanwhile (logrotate) is
    made anew.

    Args:
        path: The file; made if it does not exist, readable for its owner only.
        hash_ids: Write a hash of each thread id and tenant instead of it. Without a key, whoever
            can guess one can find it in the log.
        hash_key: Makes it a keyed hash (HMAC-SHA-256).
        clock: The time in seconds since the epoch.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        hash_ids: bool = False,
        hash_key: bytes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(path)
        self._hash_ids = hash_ids
        self._hash_key = hash_key
        self._clock = clock

    def name_of(self, name: str) -> str:
        """Give a thread id or a tenant as it is written."""
        if not self._hash_ids:
            return name
        encoded = name.encode(errors="surrogatepass")
        if self._hash_key:
            digest = hmac.new(self._hash_key, encoded, hashlib.sha256).hexdigest()
        else:
            digest = hashlib.sha256(encoded).hexdigest()
        return digest[:_HASH_CHARACTERS]

    def write(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add a line for each entry, and return once they are on the disk.

        Raises:
            AuditError: They may not be.
        """
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat()
        text = "".join(f"{json.dumps({'time': now, **entry})}\n" for entry in entries).encode()
        if not text:
            return
        try:
            is_new = not self._path.exists()
            file = os.open(self._path, _FLAGS, _NEW_FILE)
            try:
                _append(file, text)
            finally:
                os.close(file)
            if is_new:
                _sync_folder(self._path.parent)
        except (OSError, ValueError) as error:
            raise AuditError(
                f"the audit log {str(self._path)!r} cannot be written ({error}); without it "
                "nothing is deleted"
            ) from error


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)


def _append(file: int, text: bytes) -> None:
    found = os.fstat(file)
    is_file = stat.S_ISREG(found.st_mode)  # a pipe or a device has no end to look at or to sync
    size = found.st_size if is_file else 0
    if size:
        os.lseek(file, size - 1, os.SEEK_SET)
        # A crash may have cut the last line short: it must not swallow the next one.
        if os.read(file, 1) != b"\n":
            text = b"\n" + text
    while text:
        text = text[os.write(file, text) :]
    if is_file:
        os.fsync(file)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SweepAudit:
    """What one sweep writes to the log; nothing where there is none.

    Args:
        log: The log, or None.
        strategy: The storage, asked how many rows each thread has.
        now: The time of the sweep, in seconds since the epoch.
    """

    def __init__(self, log: AuditLog | None, strategy: Strategy, now: float) -> None:
        self._log = log
        self._strategy = strategy
        self._now = now
        self._open: dict[str, dict[str, Any]] = {}

    def intend(self, action: str, threads: Sequence[tuple[ThreadFacts, str]]) -> Steps[None]:
        """Say what is about to be done to threads, each with the rule that wants it."""
        if self._log is None:
            return
        ids = [facts.thread_id for facts, _ in threads]
        sizes = yield from sizes_of(self._strategy, ids)
        batch = uuid.uuid4().hex
        tenant = tenant_of(self._strategy)
        for facts, rule in threads:
            size = sizes.get(facts.thread_id)
            self._open[facts.thread_id] = {
                "id": batch,
                "action": action,
                "thread": self._log.name_of(facts.thread_id),
                "tenant": None if tenant is None else self._log.name_of(tenant),
                "rule": rule,
                "idle_seconds": self._since(facts.newest_at),
                "age_seconds": self._since(facts.born_at),
                "rows": None if size is None else dict(size.rows),
                "version": version(),
            }
        yield Record(
            partial(self._log.write, [{"event": "intent", **one} for one in self._open.values()])
        )

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else round(self._now - moment, 3)

    def deleted(self, outcomes: Mapping[str, Outcome]) -> Steps[None]:
        """Say what became of the threads that were to be deleted."""
        for thread_id, entry in self._open.items():
            outcome = outcomes.get(thread_id) or Outcome(KeepReason.FAILED)
            if outcome.kept is None:
                entry["event"] = "deleted"
                entry["rows"] = dict(outcome.rows) or entry["rows"]
            else:
                entry |= {"event": "kept", "why": outcome.kept}
        yield from self._close()

    def pruned(self, outcomes: Mapping[str, PruneOutcome]) -> Steps[None]:
        """Say what became of the threads that were to be trimmed."""
        for thread_id, entry in self._open.items():
            outcome = outcomes.get(thread_id) or PruneOutcome(left_whole="failed")
            if outcome.left_whole is None:
                entry |= {"event": "pruned", "removed_checkpoints": outcome.removed_checkpoints}
            else:
                entry |= {"event": "kept", "why": outcome.left_whole}
        yield from self._close()

    def lost(self) -> Steps[None]:
        """Say that nobody knows what became of the threads."""
        for entry in self._open.values():
            entry["event"] = "unknown"
        yield from self._close()

    def _close(self) -> Steps[None]:
        entries, self._open = list(self._open.values()), {}
        if self._log is not None and entries:
            yield Record(partial(self._log.write, entries))


def version() -> str:
    """Give the version of this package, or a note that it is not installed."""
    try:
        return metadata.version("langgraph-ephemeral-checkpointer")
    except metadata.PackageNotFoundError:
        return "(not installed)"
