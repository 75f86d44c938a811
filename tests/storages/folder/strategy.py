"""FolderStrategy: what the storage can do, by the classes it derives from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.strategies import (
    Outcome,
    Page,
    PruneOutcome,
    Prunes,
    PurgesMessages,
    Recheck,
    Strategy,
    Wanted,
)
from tests.storages.folder.delete import delete
from tests.storages.folder.find import scan, waits
from tests.storages.folder.prune import prune
from tests.storages.folder.purge import FolderMessages


class FolderStrategy(Strategy, Prunes, PurgesMessages):
    """Sweep a ``FolderSaver``."""

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Page:
        """Read the next page of files."""
        return scan(self.checkpointer.files, wanted, after, limit)

    def find_interrupted(self, thread_ids: Sequence[str]) -> set[str]:
        """Look at the newest root checkpoint of each thread."""
        threads = [self.checkpointer.files.thread(thread_id) for thread_id in thread_ids]
        return {thread.id for thread in threads if thread and waits(thread)}

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Mapping[str, Outcome]:
        """Delete threads, one after the other."""
        return {one: delete(self.checkpointer.files, one, recheck) for one in thread_ids}

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Mapping[str, PruneOutcome]:
        """Trim threads, one after the other."""
        files = self.checkpointer.files
        return {one: prune(files, one, keep, dry_run=dry_run) for one in thread_ids}

    def message_storage(self) -> FolderMessages:
        """Return how a purge reads and writes the files."""
        return FolderMessages(self)
