"""Giving the space of deleted threads in an SQLite file back to the disk.

A delete leaves free pages in the file, for later threads to use. ``VACUUM`` writes the file
anew without them. In WAL mode all of that goes through the log first, so the file is only
small again once the log has been carried over, and the log only once it is truncated.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph_ephemeral_checkpointer.errors import StorageError, StorageUnavailableError
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import errors_mapped

_LOGS = ("", "-wal", "-journal")


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction has done.

    Attributes:
        bytes_before: Size of the file with its logs before it.
        bytes_after: The same after it.
    """

    bytes_before: int
    bytes_after: int

    def text(self) -> str:
        """Give the sizes as a line."""
        return (
            f"compacted: {format_bytes(self.bytes_before)} before, "
            f"{format_bytes(self.bytes_after)} after"
        )


def compact_sqlite(saver: Any) -> Compaction:
    """Compact the file of a ``SqliteSaver``, on its connection and under its lock.

    Other connections wait meanwhile, and their busy timeout counts.

    Args:
        saver: An open ``SqliteSaver``.

    Returns:
        The sizes before and after.

    Raises:
        StorageError: Too little space on the disk, or a database in memory; nothing was done.
        StorageUnavailableError: Others are reading or writing. After a VACUUM that is done
            but not carried over from the log, the next compaction or checkpoint does that.
    """
    with errors_mapped(), saver.lock:
        connection: sqlite3.Connection = saver.conn
        path = _path(connection)
        before = _size(path)
        _check_space(connection, path)
        connection.execute("VACUUM")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StorageUnavailableError(
                f"{str(path)!r} was compacted, but another connection still reads the old pages, "
                "so the file cannot shrink yet; try again when it is done"
            )
        return Compaction(before, _size(path))


def _path(connection: sqlite3.Connection) -> Path:
    for _, name, path in connection.execute("PRAGMA database_list").fetchall():
        if name == "main" and path:
            return Path(path)
    raise StorageError("a database in memory cannot be compacted; only a file can")


def _size(path: Path) -> int:
    files = (path.with_name(path.name + end) for end in _LOGS)
    return sum(file.stat().st_size for file in files if file.exists())


def _check_space(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse where the disk would be full before the file is small.

    VACUUM builds a copy among the temporary files, then writes it through the log
    (https://www.sqlite.org/lang_vacuum.html: up to twice the size of the file).
    """
    pages, free, page_size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    needed = (pages - free) * page_size
    folder, temporary = path.parent, Path(tempfile.gettempdir())
    same_disk = folder.stat().st_dev == temporary.stat().st_dev
    for where, wanted in ((folder, needed * (2 if same_disk else 1)), (temporary, needed)):
        left = shutil.disk_usage(where).free
        if left < wanted:
            raise StorageError(
                f"not compacted: {str(where)!r} has {format_bytes(left)} free, and up to "
                f"{format_bytes(wanted)} are needed for a moment; nothing was changed"
            )


def format_bytes(size: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
