"""Trimming threads of an InMemorySaver, in its own dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from langgraph_ephemeral_checkpointer.decisions import survivors as rule
from langgraph_ephemeral_checkpointer.decisions.survivors import (
    Contents,
    Key,
    LeaveWholeError,
    Need,
    Row,
    Survivors,
)
from langgraph_ephemeral_checkpointer.langgraph_names import ROOT, SOURCE
from langgraph_ephemeral_checkpointer.strategies import raw
from langgraph_ephemeral_checkpointer.strategies.base import PruneOutcome
from langgraph_ephemeral_checkpointer.strategies.births import birth_of, has_time
from langgraph_ephemeral_checkpointer.strategies.memory.birth import mark_memory, memory_birth_of


def prune_memory(
    saver: Any, thread_ids: Iterable[Hashable], keep: int, *, dry_run: bool = False
) -> dict[Any, PruneOutcome]:
    """Trim threads of an InMemorySaver to their newest root checkpoints.

    The saver has no lock. Everything here goes by copies of its dictionaries and by exact
    keys, so what a run saves meanwhile in another thread is neither seen nor removed.

    Args:
        saver: The InMemorySaver.
        thread_ids: The threads, as the saver's own keys.
        keep: How many of the newest root checkpoints to keep, at least 1.
        dry_run: Remove nothing, and say what would be.

    Returns:
        What was done, for every thread given.
    """
    return {thread_id: _prune_thread(saver, thread_id, keep, dry_run) for thread_id in thread_ids}


def _prune_thread(saver: Any, thread_id: Hashable, keep: int, dry_run: bool) -> PruneOutcome:
    thread = _Thread(saver, thread_id)
    if len(thread.spaces.get(ROOT, ())) <= keep:
        return PruneOutcome()
    try:
        found = rule.survivors_of(thread.rows(), thread.read, keep)
        if found is None:
            return PruneOutcome()
        gone = thread.going(found)
        freed = thread.freed(gone)
        birth = memory_birth_of(saver, thread_id) or thread.birth()
    except LeaveWholeError as error:
        return PruneOutcome(left_whole=str(error))
    if dry_run:
        return PruneOutcome(len(gone))
    removed = sum(_remove(saver, thread_id, key) for key in gone)
    for blob in freed:
        saver.blobs.pop(blob, None)
    oldest = min(found.kept[ROOT])
    if oldest != min(thread.spaces[ROOT]):
        mark_memory(saver, thread_id, oldest, birth)
    return PruneOutcome(removed)


def _remove(saver: Any, thread_id: Hashable, key: Key) -> bool:
    namespace, checkpoint_id = key
    spaces = saver.storage.get(thread_id, {})
    space = spaces.get(namespace, {})
    there = space.pop(checkpoint_id, None) is not None
    if not space:
        spaces.pop(namespace, None)
    saver.writes.pop((thread_id, namespace, checkpoint_id), None)
    return there


class _Thread:
    """One thread's rows as they were when it was looked at."""

    def __init__(self, saver: Any, thread_id: Hashable) -> None:
        self.saver = saver
        self.thread_id = thread_id
        self.spaces: dict[str, dict[str, Any]] = {
            namespace: dict(space)
            for namespace, space in list(saver.storage.get(thread_id, {}).items())
        }
        self._checkpoints: dict[Key, Any] = {}

    def rows(self) -> list[Row]:
        return [
            Row(namespace, checkpoint_id, parent, metadata.get(SOURCE), raw.callers(metadata))
            for namespace, space in self.spaces.items()
            for checkpoint_id, (_, stored, parent) in space.items()
            for metadata in [raw.mapping(raw.unpack(*stored), "the metadata")]
        ]

    def read(self, need: Need) -> dict[Key, Contents]:
        keys = set(need.keys) | {
            (namespace, checkpoint_id)
            for namespace in need.namespaces
            for checkpoint_id in self.spaces.get(namespace, ())
        }
        return {key: self._contents(key) for key in keys}

    def going(self, found: Survivors) -> list[Key]:
        return [
            (namespace, checkpoint_id)
            for namespace, kept in found.kept.items()
            for checkpoint_id in self.spaces.get(namespace, ())
            if checkpoint_id not in kept
        ]

    def freed(self, gone: Iterable[Key]) -> list[tuple[Hashable, str, str, Any]]:
        """Return the keys of the blobs that only checkpoints that go refer to."""
        going = set(gone)
        return [
            (self.thread_id, namespace, channel, version)
            for namespace in {namespace for namespace, _ in going}
            for channel, version in rule.freed_versions(
                self._named(namespace, lambda key: key in going),
                self._named(namespace, lambda key: key not in going),
            )
        ]

    def birth(self) -> str:
        first = min(self.spaces[ROOT])
        ts = None if has_time(first) else self._checkpoint((ROOT, first)).get("ts")
        return birth_of(first, ts)

    def _named(self, namespace: str, which: Callable[[Key], bool]) -> set[tuple[str, Any]]:
        return {
            item
            for checkpoint_id in self.spaces[namespace]
            if which((namespace, checkpoint_id))
            for item in self._versions((namespace, checkpoint_id)).items()
        }

    def _contents(self, key: Key) -> Contents:
        _, metadata, parent = self.spaces[key[0]][key[1]]
        versions = self._versions(key)
        stored, snapshots = set(), set()
        for channel, version in versions.items():
            blob = self.saver.blobs.get((self.thread_id, key[0], channel, version))
            if blob is not None and blob[0] != "empty":
                stored.add(channel)
                if raw.holds_snapshot(*blob):
                    snapshots.add(channel)
        return raw.contents(
            parent,
            raw.mapping(raw.unpack(*metadata), "the metadata"),
            versions,
            frozenset(stored),
            frozenset(snapshots),
        )

    def _versions(self, key: Key) -> Any:
        return raw.mapping(self._checkpoint(key).get("channel_versions"), "channel_versions")

    def _checkpoint(self, key: Key) -> Any:
        if key not in self._checkpoints:
            stored = self.spaces[key[0]][key[1]][0]
            self._checkpoints[key] = raw.mapping(raw.unpack(*stored), "the checkpoint")
        return self._checkpoints[key]
