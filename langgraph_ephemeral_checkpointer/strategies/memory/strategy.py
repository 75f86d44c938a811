"""InMemorySaver: plain dictionaries, swept in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import (
    Outcome,
    Page,
    PruneOutcome,
    Recheck,
    Size,
    Strategy,
)
from langgraph_ephemeral_checkpointer.strategies.births import time_of_birth
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    FindsOrphans,
    MeasuresSizes,
    Prunes,
    PurgesMessages,
)
from langgraph_ephemeral_checkpointer.strategies.memory.birth import forget_memory, memory_birth_of
from langgraph_ephemeral_checkpointer.strategies.memory.orphans import MemoryOrphans
from langgraph_ephemeral_checkpointer.strategies.memory.prune import prune_memory
from langgraph_ephemeral_checkpointer.strategies.memory.purge import MemoryStorage
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan, OrphanPage
from langgraph_ephemeral_checkpointer.strategies.payload import first_and_last, time_of_checkpoint
from langgraph_ephemeral_checkpointer.strategies.rows import sizes_of


class MemoryStrategy(Strategy, Prunes, FindsOrphans, PurgesMessages, MeasuresSizes):
    """Sweep an ``InMemorySaver``.

    The saver has no lock. Every look at a dictionary is a copy made by one C call, so a
    graph in another thread cannot change it under an iteration. A thread is taken out by
    one ``pop``, and put back if what came out is not what was judged. Under ``asweep()``
    the steps run on the event loop, where no coroutine comes between.

    Threads saved under an int or a UUID mean the text of it: the keys ``5`` and ``"5"``
    are one thread.
    """

    blocks = False

    def __init__(self, checkpointer: Any) -> None:
        super().__init__(checkpointer)
        self._orphans = MemoryOrphans(checkpointer)

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Page:
        """Read the next page; the cursor holds the ids that the first page found."""
        ids, start = after or (list(self._keys_by_text()), 0)
        page = ids[start : start + limit]
        keys = self._keys_by_text(page)
        found = [facts for text in page if (facts := self._facts(text, keys.get(text, ())))]
        end = start + limit
        return Page(
            [facts for facts in found if wanted is None or wanted.matches(facts)],
            len(found),
            (ids, end) if end < len(ids) else None,
        )

    def find_interrupted(self, thread_ids: Sequence[str]) -> set[str]:
        """Look at the writes of each thread's newest root checkpoint."""
        keys = self._keys_by_text(thread_ids)
        return {text for text in thread_ids if self._waits(keys.get(text, ()))}

    def measure_threads(self, thread_ids: Sequence[str]) -> Mapping[str, Size]:
        """Add up the lengths of what is serialized."""
        saver, keys = self.checkpointer, self._keys_by_text(thread_ids)
        found: dict[str, list[list[Any]]] = {"checkpoints": [], "blobs": [], "writes": []}
        for text in keys:
            found["checkpoints"] += (
                [text, 1, _length(row[0]) + _length(row[1])]
                for _, _, row, _ in self._checkpoints(keys[text])
            )
        texts = {key: text for text, own in keys.items() for key in own}
        for entry, blob in list(saver.blobs.items()):
            if entry[0] in texts:
                found["blobs"].append([texts[entry[0]], 1, _length(blob)])
        for entry, writes in list(saver.writes.items()):
            if entry[0] in texts:
                lengths = [_length(write[2]) for write in list(writes.values())]
                found["writes"].append([texts[entry[0]], len(lengths), sum(lengths)])
        return sizes_of({table: _summed(rows) for table, rows in found.items()})

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Mapping[str, Outcome]:
        """Delete threads; see the class for what makes it whole."""
        outcomes: dict[str, Outcome] = {}
        keys = self._keys_by_text(thread_ids)
        rest = self._rest_of({key for found in keys.values() for key in found})
        for text in thread_ids:
            try:
                facts = self._facts(text, keys.get(text, ()), interrupts=True)
                why_kept = recheck(text, facts) if recheck else None
                if why_kept is None:
                    judged = facts.checkpoint_count if facts and recheck else None
                    why_kept = self._take_out(keys.get(text, ()), judged)
            except Exception as error:  # noqa: BLE001 - the threads before it are gone already
                outcomes[text] = Outcome(KeepReason.FAILED, f"{type(error).__name__}: {error}")
                continue
            if why_kept is None:
                for key in keys[text]:
                    for table, entry in rest.get(key, ()):
                        table.pop(entry, None)
                    forget_memory(self.checkpointer, key)
            outcomes[text] = Outcome(why_kept)
        return outcomes

    def prune_threads(
        self, thread_ids: Sequence[str], keep: int, *, dry_run: bool
    ) -> Mapping[str, PruneOutcome]:
        """Trim threads, one after the other."""
        outcomes: dict[str, PruneOutcome] = {}
        by_text = self._keys_by_text(thread_ids)
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

    def _rest_of(self, keys: Collection[Any]) -> dict[Any, list[tuple[dict[Any, Any], Any]]]:
        """List the writes and blobs of threads.

        In one pass for the whole batch, since they cannot be looked up by thread. And before any
        thread is taken out: what comes later belongs to a run that begins anew.
        """
        rest: dict[Any, list[tuple[dict[Any, Any], Any]]] = defaultdict(list)
        for table in (self.checkpointer.writes, self.checkpointer.blobs):
            for entry in list(table):
                if entry[0] in keys:
                    rest[entry[0]].append((table, entry))
        return rest

    def _take_out(self, keys: Sequence[Any], judged: int | None) -> KeepReason | None:
        storage = self.checkpointer.storage
        popped = {key: storage.pop(key) for key in keys if key in storage}
        if not popped:
            return KeepReason.GONE
        count = sum(len(rows) for thread in popped.values() for rows in list(thread.values()))
        if judged is None or count == judged:
            return None
        for key, thread in popped.items():
            for namespace, rows in thread.items():
                storage[key][namespace].update(rows)
        return KeepReason.WOKE_UP

    def _keys_by_text(self, texts: Sequence[str] | None = None) -> dict[str, tuple[Any, ...]]:
        """Map thread ids as text to the keys they are stored under."""
        storage = self.checkpointer.storage
        if texts is not None and all(type(key) is str for key in list(storage)):
            return {text: (text,) for text in texts if text in storage}
        found: dict[str, tuple[Any, ...]] = {}
        for key in list(storage):
            found[str(key)] = (*found.get(str(key), ()), key)
        return found

    def _checkpoints(self, keys: Sequence[Any]) -> list[tuple[str, str, tuple[Any, ...], Any]]:
        storage = self.checkpointer.storage
        return [
            (namespace, checkpoint_id, row, key)
            for key in keys
            for namespace, rows in list(storage.get(key, {}).items())
            for checkpoint_id, row in list(rows.items())
        ]

    def _facts(
        self, text: str, keys: Sequence[Any], *, interrupts: bool = False
    ) -> ThreadFacts | None:
        rows = self._checkpoints(keys)
        if not rows:  # reading an unknown thread leaves an empty key behind
            return None
        born_at, newest_at = first_and_last(
            [time_of_checkpoint(checkpoint_id, *row[0]) for _, checkpoint_id, row, _ in rows]
        )
        births = [time_of_birth(memory_birth_of(self.checkpointer, key)) for key in keys]
        if born_at is not None:
            born_at = min([born_at, *(birth for birth in births if birth is not None)])
        return ThreadFacts(
            thread_id=text,
            newest_at=newest_at,
            born_at=born_at,
            checkpoint_count=len(rows),
            root_checkpoint_count=sum(namespace == "" for namespace, *_ in rows),
            interrupted=self._waits(keys) if interrupts else None,
        )

    def _waits(self, keys: Sequence[Any]) -> bool:
        saver = self.checkpointer
        roots = [
            (checkpoint_id, key)
            for key in keys
            for checkpoint_id in list(saver.storage.get(key, {}).get("", {}))
        ]
        if not roots:
            return False
        head, key = max(roots, key=lambda root: root[0])
        writes = list(saver.writes.get((key, "", head), {}).values())
        return waits_for_human((task_id, channel) for task_id, channel, *_ in writes)


def _length(serialized: Any) -> int:
    """Give the length of what a serializer made: a type tag and bytes."""
    return len(serialized[1] or b"")


def _summed(rows: Iterable[Sequence[Any]]) -> list[tuple[str, int, int]]:
    totals: dict[str, tuple[int, int]] = {}
    for text, count, size in rows:
        counts, sizes = totals.get(text, (0, 0))
        totals[text] = counts + count, sizes + size
    return [(text, *total) for text, total in totals.items()]
