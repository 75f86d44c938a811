"""InMemorySaver: dictionaries of serialized values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.messages.documents import Document, open_value
from langgraph_ephemeral_checkpointer.messages.image import Place, ThreadImage
from langgraph_ephemeral_checkpointer.messages.scrubbing import REMOVE
from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage

_EMPTY = ("empty", b"")  # how the saver itself stores that a channel has no value


class MemoryStorage(MessageStorage):
    """Storage of an ``InMemorySaver``.

    It has no lock and no transactions: a value is only replaced by what it is without the
    messages, so a save that comes in between is neither lost nor torn.
    """

    def page(self, after: str | None, limit: int) -> list[str]:
        """The next thread ids, as text."""
        stored = list(self.saver.storage.items())  # reading leaves empty keys behind
        ids = sorted({str(key) for key, spaces in stored if any(list(spaces.values()))})
        return [thread_id for thread_id in ids if after is None or thread_id > after][:limit]

    def read(self, thread_id: str) -> ThreadImage:
        """Everything that is stored of a thread."""
        image = ThreadImage(thread_id)
        serde = self.saver.serde
        for place, key in self._blobs(thread_id).items():
            image.add_value(place, serde, *self.saver.blobs[key])
        for place, (key, row) in self._writes(thread_id).items():
            image.add_value(place, serde, *self.saver.writes[key][row][2])
        for ns, checkpoint_id, row in self._checkpoints(thread_id):
            checkpoint, metadata, parent = row
            image.add_checkpoint(
                ns,
                checkpoint_id,
                parent,
                open_value(serde, *checkpoint).tree,
                open_value(serde, *metadata).tree or {},
                {},
            )
        return image.finish()

    def write(self, image: ThreadImage, changes: Mapping[Place, Any]) -> None:
        """Write changes back; nothing else runs on this thread meanwhile."""
        if self.read(image.thread_id).fingerprint() != image.fingerprint():
            raise ThreadMovedError
        blobs, writes = self._blobs(image.thread_id), self._writes(image.thread_id)
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for place, tree in changes.items():
            if place.kind == "blob":
                self.saver.blobs[blobs[place]] = self._dump(image, place, tree)
            elif place.kind == "write":
                self._write_row(*writes[place], self._dump(image, place, tree))
            else:
                rows.setdefault((place.ns, place.holder), {})[place.kind] = tree
        for (ns, checkpoint_id), parts in rows.items():
            self._write_checkpoint(image.thread_id, ns, checkpoint_id, parts)

    def _dump(self, image: ThreadImage, place: Place, tree: Any) -> Any:
        return _EMPTY if tree is REMOVE else image.documents[place].close(tree)

    def _write_row(self, key: Any, row: Any, value: Any) -> None:
        if value is _EMPTY:
            self.saver.writes[key].pop(row, None)
        else:
            task, channel, _, *path = self.saver.writes[key][row]
            self.saver.writes[key][row] = (task, channel, value, *path)

    def _write_checkpoint(
        self, thread_id: str, ns: str, checkpoint_id: str, parts: Mapping[str, Any]
    ) -> None:
        for thread in self._keys(thread_id):
            rows = self.saver.storage[thread].get(ns, {})
            if checkpoint_id not in rows:
                continue
            checkpoint, metadata, parent = rows[checkpoint_id]
            if "sends" in parts:
                sends = [] if parts["sends"] is REMOVE else parts["sends"]
                checkpoint = _with(open_value(self.saver.serde, *checkpoint), pending_sends=sends)
            if "metadata" in parts:
                said = None if parts["metadata"] is REMOVE else parts["metadata"]
                metadata = _with(open_value(self.saver.serde, *metadata), writes=said)
            rows[checkpoint_id] = (checkpoint, metadata, parent)

    def _keys(self, thread_id: str) -> list[Any]:
        return [key for key in list(self.saver.storage) if str(key) == thread_id]

    def _checkpoints(self, thread_id: str) -> list[tuple[str, str, Any]]:
        return [
            (ns, checkpoint_id, row)
            for key in self._keys(thread_id)
            for ns, rows in list(self.saver.storage[key].items())
            for checkpoint_id, row in list(rows.items())
        ]

    def _blobs(self, thread_id: str) -> dict[Place, Any]:
        return {
            Place("blob", key[1], str(key[3]), key[2]): key
            for key in list(self.saver.blobs)
            if str(key[0]) == thread_id and self.saver.blobs[key][0] != "empty"
        }

    def _writes(self, thread_id: str) -> dict[Place, tuple[Any, Any]]:
        found = {}
        for key in list(self.saver.writes):
            if str(key[0]) != thread_id:
                continue
            for row, (task, channel, _, *path) in list(self.saver.writes[key].items()):
                place = Place("write", key[1], key[2], channel, task, row[1], *path[:1])
                found[place] = (key, row)
        return found


def _with(document: Document, **fields: Any) -> tuple[str, bytes]:
    return document.close({**document.tree, **fields})
