"""Orphans in an InMemorySaver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_id
from langgraph_ephemeral_checkpointer.langgraph_names import TASKS
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan
from langgraph_ephemeral_checkpointer.strategies.payload import decoded_checkpoint

Key = tuple[Any, ...]


class MemoryOrphans:
    """Find and remove orphans; remembers between looks which blobs it saw unreferenced.

    Args:
        saver: The ``InMemorySaver``.
    """

    def __init__(self, saver: Any) -> None:
        self._saver = saver
        self._suspects: dict[Key, float] = {}

    def find(self, before: float, now: float) -> list[Orphan]:
        """Look at everything.

        Args:
            before: Ids of this moment and later are young, in seconds since the epoch.
            now: The time of this look.
        """
        found = [self._writes(key) for key in self._loose_writes(before)]
        suspects = {key: self._suspects.get(key, now) for key in self._loose_blobs(before)}
        self._suspects = suspects
        found += [
            Orphan("blobs", str(key[0]), key[1], key[2], str(key[3]), 1)
            for key, seen in suspects.items()
            if seen < before
        ]
        return found

    def delete(self, orphans: Sequence[Orphan], before: float) -> int:
        """Remove what is still an orphan, and count the rows."""
        wanted = {(o.kind, o.thread_id, o.checkpoint_ns, o.name, o.version) for o in orphans}
        removed = 0
        for key in self._loose_writes(before):
            if ("writes", str(key[0]), key[1], key[2], "") in wanted:
                removed += len(self._saver.writes.pop(key, ()))
        for key in self._loose_blobs(before):
            if ("blobs", str(key[0]), key[1], key[2], str(key[3])) in wanted:
                removed += self._saver.blobs.pop(key, None) is not None
                self._suspects.pop(key, None)
        return removed

    def _writes(self, key: Key) -> Orphan:
        rows = len(self._saver.writes.get(key, ()))
        return Orphan("writes", str(key[0]), key[1], key[2], "", rows)

    def _loose_writes(self, before: float) -> list[Key]:
        storage = self._saver.storage
        loose = []
        for key, writes in list(self._saver.writes.items()):
            thread_id, namespace, checkpoint_id = key
            stored = storage.get(thread_id, {}).get(namespace, {})
            if not writes or checkpoint_id in stored or not _is_before(checkpoint_id, before):
                continue
            parents = {row[2] for row in list(stored.values())}
            sends = any(write[1] == TASKS for write in list(writes.values()))
            if not (sends and checkpoint_id in parents):
                loose.append(key)
        return loose

    def _loose_blobs(self, before: float) -> list[Key]:
        by_namespace: dict[Key, list[Key]] = defaultdict(list)
        for key in list(self._saver.blobs):
            by_namespace[key[:2]].append(key)
        quiet = {thread for thread, _ in by_namespace if self._has_only_old(thread, before)}
        # In one pass for all of them, since writes cannot be looked up by thread.
        quiet -= {
            key[0]
            for key in list(self._saver.writes)
            if key[0] in quiet and not _is_before(key[2], before)
        }
        return [
            key
            for (thread_id, namespace), keys in by_namespace.items()
            if thread_id in quiet and (used := self._used(thread_id, namespace)) is not None
            for key in keys
            if (key[2], str(key[3])) not in used
        ]

    def _has_only_old(self, thread_id: Any, before: float) -> bool:
        """Say whether every checkpoint of a thread is old; the newest, which tells, comes first."""
        return all(
            _is_before(checkpoint_id, before)
            for rows in list(self._saver.storage.get(thread_id, {}).values())
            for checkpoint_id in reversed(list(rows))
        )

    def _used(self, thread_id: Any, namespace: str) -> set[tuple[str, str]] | None:
        """Give the channels and versions that are referenced; None where one cannot be read."""
        used: set[tuple[str, str]] = set()
        for row in list(self._saver.storage.get(thread_id, {}).get(namespace, {}).values()):
            checkpoint = decoded_checkpoint(*row[0])
            if checkpoint is None:
                return None
            versions = checkpoint.get("channel_versions", {})
            used.update((channel, str(version)) for channel, version in versions.items())
        return used


def _is_before(checkpoint_id: str, moment: float) -> bool:
    time = time_of_id(checkpoint_id)
    return time is not None and time < moment
