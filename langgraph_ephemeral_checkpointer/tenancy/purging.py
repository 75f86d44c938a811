"""How a purge of old messages reads a tenant's threads and writes them back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import psycopg

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.messages.documents import (
    Document,
    UnreadableValueError,
    open_value,
)
from langgraph_ephemeral_checkpointer.messages.image import Place, ThreadImage
from langgraph_ephemeral_checkpointer.messages.scrubbing import REMOVE
from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage, count_removed
from langgraph_ephemeral_checkpointer.tenancy.names import Names, pin
from langgraph_ephemeral_checkpointer.tenancy.plans import Step, Transaction
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch

_THREAD = "tenant = %(tenant)s::text AND thread_id = %(thread_id)s::text"
_PAGE = """
SELECT DISTINCT thread_id FROM {checkpoints}
WHERE tenant = %(tenant)s::text AND thread_id > %(after)s::text
ORDER BY thread_id LIMIT %(limit)s::bigint
"""
_CHECKPOINTS = f"""
SELECT checkpoint_ns, checkpoint_id, parent_id, type, state FROM {{checkpoints}} WHERE {_THREAD}
"""
_BLOBS = f"SELECT checkpoint_ns, channel, version, type, blob FROM {{blobs}} WHERE {_THREAD}"
_WRITES = f"""
SELECT checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, blob
FROM {{writes}} WHERE {_THREAD}
"""
_IDS = f"SELECT checkpoint_ns, checkpoint_id FROM {{checkpoints}} WHERE {_THREAD}"
_COUNT_WRITES = f"SELECT count(*) FROM {{writes}} WHERE {_THREAD}"

_ROW = f"{_THREAD} AND checkpoint_ns = %(ns)s::text"
_STATE_KEY = f"{_ROW} AND checkpoint_id = %(holder)s::text AND sha256(state) = %(seen)s::bytea"
_BLOB_KEY = (
    f"{_ROW} AND channel = %(channel)s::text AND version = %(holder)s::text"
    " AND sha256(blob) = %(seen)s::bytea"
)
_WRITE_KEY = (
    f"{_ROW} AND checkpoint_id = %(holder)s::text AND task_id = %(task)s::text"
    " AND idx = %(idx)s::integer AND sha256(blob) = %(seen)s::bytea"
)
# A value is only replaced while it is what was read; its hash tells without sending it back.
_SET_STATE = (
    f"UPDATE {{checkpoints}} SET type = %(type)s::text, state = %(data)s::bytea WHERE {_STATE_KEY}"
)
_SET = {
    "blob": f"UPDATE {{blobs}} SET type = %(type)s::text, blob = %(data)s::bytea WHERE {_BLOB_KEY}",
    "write": f"UPDATE {{writes}} SET type = %(type)s::text, blob = %(data)s::bytea"
    f" WHERE {_WRITE_KEY}",
}
# A checkpoint goes on to name the channel as one it holds. Only what a step leaves behind is
# emptied, which nothing is rebuilt from; and a run that has the value still in hand goes on,
# instead of taking the thread for deleted and storing everything again.
_REMOVE = {
    "blob": f"DELETE FROM {{blobs}} WHERE {_BLOB_KEY}",
    "write": f"DELETE FROM {{writes}} WHERE {_WRITE_KEY}",
}
# Writes of a task are stored without the thread's lock. Where one of them and a purge wait for
# each other, the purge gives way, and before the database would choose the victim.
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s::text, true)"
_PATIENCE = "500ms"


class TenantAccess:
    """Reaches the tables through a tenant saver, on its connection or pool.

    Args:
        saver: The saver.
        runs_sync: Whether its methods are plain functions.
    """

    def __init__(self, saver: Any, *, runs_sync: bool) -> None:
        self.checkpointer = saver
        self.runs_sync = runs_sync
        self.blocks = runs_sync

    def perform(self, step: Step) -> Any:
        """Carry out one step on the calling thread."""
        return self.checkpointer.run_plan(step)

    async def aperform(self, step: Step) -> Any:
        """Carry out one step on the running event loop."""
        return await self.checkpointer.run_plan(step)


class _Image(ThreadImage):
    """An image that remembers the rows it was made of."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id)
        self.states: dict[tuple[str, str], tuple[Document, bytes]] = {}
        self.hashes: dict[Place, bytes] = {}
        self.write_count = 0


class TenantStorage(MessageStorage):
    """Storage of one tenant.

    Args:
        access: How the saver is reached.
        tenant: Whose threads.
    """

    def __init__(self, access: TenantAccess, tenant: str) -> None:
        super().__init__(access)
        self._names: Names = self.saver.names
        self.tenant = tenant

    def page(self, after: str | None, limit: int) -> Plan[Step, list[str]]:
        """The next thread ids."""
        params = {"tenant": self.tenant, "after": after or "", "limit": limit}
        _, rows = yield [pin(self.tenant), self._names.statement(_PAGE, params)]
        return [thread_id for (thread_id,) in rows]

    def read(self, thread_id: str) -> Plan[Step, ThreadImage]:
        """Everything that is stored of a thread, in one round trip and without its lock."""
        image, serde = _Image(thread_id), self.saver.serde
        # Checkpoints first: every blob that one names was committed with it, and a save in
        # between shows as a write or a checkpoint too many, and is noticed when writing.
        _, rows, blobs, writes = yield [
            pin(self.tenant),
            *(self._statement(text, thread_id) for text in (_CHECKPOINTS, _BLOBS, _WRITES)),
        ]
        for ns, channel, version, kind, data in blobs:
            _add(image, Place("blob", ns, version, channel), serde, kind, data)
        for ns, checkpoint_id, task, idx, path, channel, kind, data in writes:
            place = Place("write", ns, checkpoint_id, channel, task, idx, path)
            _add(image, place, serde, kind, data)
            image.write_count += 1
        for ns, checkpoint_id, parent, kind, data in rows:
            document = open_value(serde, kind, data)
            image.states[ns, checkpoint_id] = (document, _hash(data))
            checkpoint, metadata = _pair(document.tree)
            inline = checkpoint.get("channel_values") or {}
            image.add_checkpoint(ns, checkpoint_id, parent, checkpoint, metadata, inline)
        return image.finish()

    def write(self, image: ThreadImage, changes: Mapping[Place, Any]) -> Plan[Step, None]:
        """Write changes back in one transaction, under the thread's lock."""
        assert isinstance(image, _Image)  # noqa: S101 - it came from read()
        yield Transaction(self._write(image, changes))

    def _write(self, image: _Image, changes: Mapping[Place, Any]) -> Plan[Batch, None]:
        lock = self._names.lock(self.tenant, image.thread_id)
        *_, patience = yield [*lock, Statement("SELECT current_setting('lock_timeout')")]
        try:
            _, *counts, ids, writes, _ = yield [
                Statement(_LOCK_TIMEOUT, (_PATIENCE,)),
                *self._statements(image, changes),
                # After the changes: a task's writes take no lock, and an interrupt that was
                # added meanwhile makes the exchange one that stays. What comes after this is
                # added without reading what is changed here, as if it came after the commit.
                self._statement(_IDS, image.thread_id),
                self._statement(_COUNT_WRITES, image.thread_id),
                Statement(_LOCK_TIMEOUT, (patience[0][0],)),
            ]
        except psycopg.errors.LockNotAvailable as error:
            raise ThreadMovedError from error
        if any(count != 1 for count in counts):
            raise ThreadMovedError
        if {tuple(row) for row in ids} != image.checkpoints.keys():
            raise ThreadMovedError
        if writes[0][0] != image.write_count - count_removed(changes):
            raise ThreadMovedError

    def _statements(self, image: _Image, changes: Mapping[Place, Any]) -> list[Statement]:
        states: dict[tuple[str, str], dict[Place, Any]] = {}
        statements = []
        for place, tree in changes.items():
            if place.kind not in _SET:
                states.setdefault((place.ns, place.holder), {})[place] = tree
                continue
            key = {
                "ns": place.ns,
                "holder": place.holder,
                "channel": place.channel,
                "task": place.task,
                "idx": place.idx,
                "seen": image.hashes[place],
            }
            if tree is REMOVE:
                text = _REMOVE[place.kind]
            else:
                text = _SET[place.kind]
                key["type"], key["data"] = image.documents[place].close(tree)
            statements.append(self._statement(text, image.thread_id, key))
        for (ns, holder), parts in states.items():
            document, seen = image.states[ns, holder]
            kind, data = document.close(_state(document.tree, parts))
            key = {"ns": ns, "holder": holder, "seen": seen, "type": kind, "data": data}
            statements.append(self._statement(_SET_STATE, image.thread_id, key))
        return statements

    def _statement(
        self, text: str, thread_id: str, more: Mapping[str, Any] | None = None
    ) -> Statement:
        params = {"tenant": self.tenant, "thread_id": thread_id, **(more or {})}
        return self._names.statement(text, params, fetch=more is None)


def _add(image: _Image, place: Place, serde: Any, kind: str, data: bytes) -> None:
    image.hashes[place] = _hash(data)
    image.add_value(place, serde, kind, data)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _pair(tree: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checkpoint and the metadata in a row's state."""
    if not isinstance(tree, (list, tuple)) or len(tree) != 2 or not isinstance(tree[0], dict):
        raise UnreadableValueError(
            "a checkpoint's state is no pair of a checkpoint and its metadata; it was left as it is"
        )
    return tree[0], tree[1] or {}


def _state(tree: Any, parts: Mapping[Place, Any]) -> Any:
    """The pair of checkpoint and metadata that a row holds, with the parts that change."""
    checkpoint, metadata = _pair(tree)
    checkpoint = {**checkpoint, "channel_values": dict(checkpoint.get("channel_values") or {})}
    metadata = dict(metadata)
    for place, new in parts.items():
        if place.kind == "sends":
            checkpoint["pending_sends"] = [] if new is REMOVE else new
        elif place.kind == "metadata":
            metadata["writes"] = None if new is REMOVE else new
        elif new is REMOVE:
            del checkpoint["channel_values"][place.channel]
        else:
            checkpoint["channel_values"][place.channel] = new
    return type(tree)((checkpoint, metadata))
