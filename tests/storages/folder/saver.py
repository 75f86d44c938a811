"""FolderSaver: a checkpointer that keeps each thread as a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
)

from tests.storages.folder.access import Files, Row, Thread, Write


class FolderSaver(BaseCheckpointSaver[int]):
    """Keep threads as files in a folder.

    Args:
        folder: An existing folder that holds nothing else.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.files = Files(folder)

    def put(self, config, checkpoint, metadata, new_versions):
        thread_id, ns, parent = _where(config)
        row = Row(parent, self.serde.dumps_typed(checkpoint), self.serde.dumps_typed(metadata))
        with self.files.changing(thread_id) as thread:
            thread.rows[ns, checkpoint["id"]] = row
        return _config(thread_id, ns, checkpoint["id"])

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        thread_id, ns, checkpoint_id = _where(config)
        with self.files.changing(thread_id) as thread:
            for number, (channel, value) in enumerate(writes):
                key = (ns, checkpoint_id, task_id, WRITES_IDX_MAP.get(channel, number))
                if key[3] < 0 or key not in thread.writes:
                    thread.writes[key] = Write(channel, self.serde.dumps_typed(value), task_path)

    def get_tuple(self, config):
        thread_id, ns, checkpoint_id = _where(config)
        thread = self.files.thread(thread_id) or Thread(thread_id)
        checkpoint_id = checkpoint_id or max(thread.ids(ns), default=None)
        return (
            self._tuple(thread, ns, checkpoint_id) if (ns, checkpoint_id) in thread.rows else None
        )

    def list(self, config, *, filter=None, before=None, limit=None) -> Iterator[CheckpointTuple]:  # noqa: A002
        where = config["configurable"] if config else {}
        for found in self._of(config):
            metadata = found.metadata
            if (
                where.get("checkpoint_ns")
                not in (None, found.config["configurable"]["checkpoint_ns"])
                or get_checkpoint_id(config or {"configurable": {}})
                not in (None, found.checkpoint["id"])
                or (before and found.checkpoint["id"] >= str(get_checkpoint_id(before)))
                or any(metadata.get(key) != value for key, value in (filter or {}).items())
            ):
                continue
            if limit is not None:
                if limit <= 0:
                    return
                limit -= 1
            yield found

    def delete_thread(self, thread_id: str) -> None:
        with self.files.changing(str(thread_id)) as thread:
            thread.rows.clear()
            thread.writes.clear()

    def _of(self, config: Any) -> Iterator[CheckpointTuple]:
        """Every checkpoint of one thread, or of all; the newest of each come first."""
        threads = (
            [self.files.thread(_where(config)[0])]
            if config
            else [self.files.read(name) for name in self.files.names()]
        )
        for thread in threads:
            for ns, checkpoint_id in sorted(
                thread.rows if thread else (), key=lambda key: key[1], reverse=True
            ):
                yield self._tuple(thread, ns, checkpoint_id)

    def _tuple(self, thread: Thread, ns: str, checkpoint_id: str) -> CheckpointTuple:
        row = thread.rows[ns, checkpoint_id]
        return CheckpointTuple(
            _config(thread.id, ns, checkpoint_id),
            self.serde.loads_typed(row.checkpoint),
            self.serde.loads_typed(row.metadata),
            _config(thread.id, ns, row.parent) if row.parent else None,
            [
                (key[2], write.channel, self.serde.loads_typed(write.value))
                for key, write in sorted(thread.writes.items())
                if key[:2] == (ns, checkpoint_id)
            ],
        )


def _where(config: Any) -> tuple[str, str, Any]:
    where = config["configurable"]
    return str(where["thread_id"]), where.get("checkpoint_ns", ""), get_checkpoint_id(config)


def _config(thread_id: str, ns: str, checkpoint_id: str) -> Any:
    where = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
    return {"configurable": where}
