"""InMemorySaver: plain dictionaries, swept in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.expiry import Wanted
from langgraph_ephemeral_checkpointer.strategies.base import (
    Outcome,
    Page,
    PruneOutcome,
    Recheck,
    Size,
    Strategy,
)
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    FindsOrphans,
    MeasuresSizes,
    Prunes,
    PurgesMessages,
)
from langgraph_ephemeral_checkpointer.strategies.memory import delete, find, sizes
from langgraph_ephemeral_checkpointer.strategies.memory.access import keys_by_text
from langgraph_ephemeral_checkpointer.strategies.memory.orphans import MemoryOrphans
from langgraph_ephemeral_checkpointer.strategies.memory.prune import prune_memory
from langgraph_ephemeral_checkpointer.strategies.memory.purge import MemoryStorage
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanPage


class MemoryStrategy(Strategy, Prunes, FindsOrphans, PurgesMessages, MeasuresSizes):
    """Sweep an ``InMemorySaver``.

    The saver has no lock; :mod:`.access` and :mod:`.delete` say how threads are read and taken
    out beside a graph in another thread. Under ``asweep()`` the steps run on the event loop, where
    no coroutine comes between.

    Threads saved under an int or a UUID mean the text of it: the keys ``5`` and ``"5"``
    are one thread.
    """

    blocks = False

    def __init__(self, checkpointer: Any) -> None:
        super().__init__(checkpointer)
        self._orphans = MemoryOrphans(checkpointer)

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Page:
        """Read the next page; the cursor holds the ids that the first page found."""
        return find.scan(self.checkpointer, wanted, after, limit)

    def find_interrupted(self, thread_ids: Sequence[str]) -> set[str]:
        """Look at the writes of each thread's newest root checkpoint."""
        return find.find_interrupted(self.checkpointer, thread_ids)

    def measure_threads(self, thread_ids: Sequence[str]) -> Mapping[str, Size]:
        """Add up the lengths of what is serialized."""
        return sizes.measure(self.checkpointer, thread_ids)

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Mapping[str, Outcome]:
        """Delete threads; see :mod:`.delete` for what makes it whole."""
        return delete.delete_threads(self.checkpointer, thread_ids, recheck)

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Mapping[str, PruneOutcome]:
        """Trim threads, one after the other."""
        outcomes: dict[str, PruneOutcome] = {}
        by_text = keys_by_text(self.checkpointer, thread_ids)
        for text in thread_ids:
            keys = by_text.get(text, ())
            if len(keys) == 1:
                done = prune_memory(self.checkpointer, keys, keep, dry_run=dry_run)
                outcomes[text] = done[keys[0]]
            elif keys:
                outcomes[text] = PruneOutcome(left_whole=f"it is stored under {len(keys)} keys")
        return outcomes

    def find_orphans(self, before: float, now: float, after: Any, limit: int) -> OrphanPage:
        """Look through everything at once."""
        return OrphanPage(self._orphans.find(before, now))

    def delete_orphans(self, orphans: Sequence[Orphan], before: float) -> int:
        """Remove what is still an orphan."""
        return self._orphans.delete(orphans, before)

    def message_storage(self) -> MemoryStorage:
        """Return how a purge reads and writes the dictionaries."""
        return MemoryStorage(self)
