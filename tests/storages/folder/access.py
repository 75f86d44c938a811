"""The files: one for each thread, read whole and replaced whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import NamedTuple, TypeAlias

import ormsgpack

Typed: TypeAlias = tuple[str, bytes]
"""What a serializer makes: a type tag and bytes."""


class Row(NamedTuple):
    """A checkpoint; its values are inside of it."""

    parent: str | None
    checkpoint: Typed
    metadata: Typed


class Write(NamedTuple):
    """What a task wrote."""

    channel: str
    value: Typed
    path: str


@dataclass
class Thread:
    """Everything that is stored of a thread."""

    id: str
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    """By namespace and checkpoint id."""
    writes: dict[tuple[str, str, str, int], Write] = field(default_factory=dict)
    """By namespace, checkpoint id, task id and index."""
    birth: tuple[str, str] | None = None
    """Of a trimmed thread: its oldest root checkpoint, and what that says of the first one."""

    def ids(self, namespace: str = "") -> list[str]:
        """The checkpoints of a namespace, oldest first."""
        return sorted(one for ns, one in self.rows if ns == namespace)

    def packed(self) -> bytes:
        """The bytes of its file."""
        rows = [[*key, *row] for key, row in self.rows.items()]
        writes = [[*key, *write] for key, write in self.writes.items()]
        return ormsgpack.packb([self.id, rows, writes, self.birth])


class Files:
    """A folder of threads. Only one thread of one process works on a file at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = RLock()

    def names(self) -> list[str]:
        """The names of the files, in order. They are hashes: an id may hold any character."""
        return sorted(one.name for one in self.folder.glob("*.thread"))

    def read(self, name: str) -> Thread | None:
        """Read a file; None where there is none."""
        try:
            packed = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        thread_id, rows, writes, birth = ormsgpack.unpackb(packed)
        return Thread(
            thread_id,
            {(ns, one): Row(parent, tuple(c), tuple(m)) for ns, one, parent, c, m in rows},
            {
                (ns, one, task, index): Write(channel, tuple(value), path)
                for ns, one, task, index, channel, value, path in writes
            },
            birth and tuple(birth),
        )

    def thread(self, thread_id: str) -> Thread | None:
        """Read a thread."""
        return self.read(name_of(thread_id))

    @contextmanager
    def changing(self, thread_id: str) -> Iterator[Thread]:
        """Change a thread: all of what is done in the block is stored, or nothing."""
        with self._lock:
            thread = self.thread(thread_id) or Thread(thread_id)
            yield thread
            file = self.folder / name_of(thread_id)
            if not thread.rows and not thread.writes:
                file.unlink(missing_ok=True)
                return
            new = file.with_suffix(".new")
            new.write_bytes(thread.packed())
            new.replace(file)


def name_of(thread_id: str) -> str:
    """The name of a thread's file."""
    return f"{hashlib.sha256(thread_id.encode()).hexdigest()}.thread"
