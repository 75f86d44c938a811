"""Opening a folder that the command line names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from langgraph_ephemeral_checkpointer.errors import StorageError
from langgraph_ephemeral_checkpointer.strategies.opening import Address, Saver
from tests.storages.folder.saver import FolderSaver


@contextmanager
def open_folder(address: Address) -> Iterator[Saver]:
    """Open the saver of a folder."""
    folder = Path(address.dsn.reveal())
    if not folder.is_dir():
        raise StorageError(f"{address.dsn.shown()}: no such folder; nothing was created")
    yield FolderSaver(folder)
