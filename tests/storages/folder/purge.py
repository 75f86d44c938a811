"""Purging messages: a thread as an image, and changes back into its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.messages.documents import open_value
from langgraph_ephemeral_checkpointer.messages.image import Place, ThreadImage
from langgraph_ephemeral_checkpointer.messages.scrubbing import REMOVE
from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage
from tests.storages.folder.access import Thread


class FolderMessages(MessageStorage):
    """How a purge reads and writes the files."""

    def page(self, after: str | None, limit: int) -> list[str]:
        """The next thread ids, in order."""
        threads = [self.saver.files.read(name) for name in self.saver.files.names()]
        ids = sorted(thread.id for thread in threads if thread and thread.rows)
        return [thread_id for thread_id in ids if after is None or thread_id > after][:limit]

    def read(self, thread_id: str) -> ThreadImage:
        """Everything that is stored of a thread."""
        thread = self.saver.files.thread(thread_id) or Thread(thread_id)
        image = _Image(thread)
        for place, key in _writes(thread).items():
            image.add_value(place, self.saver.serde, *thread.writes[key].value)
        for (ns, one), row in thread.rows.items():
            tree = open_value(self.saver.serde, *row.checkpoint).tree
            metadata = open_value(self.saver.serde, *row.metadata).tree
            image.add_checkpoint(ns, one, row.parent, tree, metadata, tree["channel_values"])
        return image.finish()

    def write(self, image: ThreadImage, changes: Mapping[Place, Any]) -> None:
        """Write changes back; the file must still be what was read."""
        assert isinstance(image, _Image)
        with self.saver.files.changing(image.thread_id) as thread:
            if thread != image.thread:
                raise ThreadMovedError
            writes = _writes(thread)
            rows: dict[tuple[str, str], dict[Place, Any]] = {}
            for place, tree in changes.items():
                if place.kind != "write":
                    rows.setdefault((place.ns, place.holder), {})[place] = tree
                elif tree is REMOVE:
                    del thread.writes[writes[place]]
                else:
                    write, value = thread.writes[writes[place]], image.documents[place].close(tree)
                    thread.writes[writes[place]] = write._replace(value=value)
            for key, parts in rows.items():
                self._write_row(thread, key, parts)

    def _write_row(self, thread: Thread, key: tuple[str, str], parts: Mapping[Place, Any]) -> None:
        row = thread.rows[key]
        checkpoint = open_value(self.saver.serde, *row.checkpoint)
        metadata = open_value(self.saver.serde, *row.metadata)
        for place, tree in parts.items():
            if place.kind == "sends":
                checkpoint.tree["pending_sends"] = [] if tree is REMOVE else tree
            elif place.kind == "metadata":
                metadata.tree["writes"] = None if tree is REMOVE else tree
            elif tree is REMOVE:
                del checkpoint.tree["channel_values"][place.channel]
            else:
                checkpoint.tree["channel_values"][place.channel] = tree
        thread.rows[key] = row._replace(
            checkpoint=checkpoint.close(checkpoint.tree), metadata=metadata.close(metadata.tree)
        )


class _Image(ThreadImage):
    """An image that remembers what it was made of."""

    def __init__(self, thread: Thread) -> None:
        super().__init__(thread.id)
        self.thread = thread


def _writes(thread: Thread) -> dict[Place, Any]:
    return {
        Place("write", key[0], key[1], write.channel, key[2], key[3], write.path): key
        for key, write in thread.writes.items()
    }
