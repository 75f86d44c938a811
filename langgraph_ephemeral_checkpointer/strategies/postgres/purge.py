"""PostgresSaver and AsyncPostgresSaver: channel values in a table of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from psycopg.errors import LockNotAvailable

from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan, Statement
from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.messages.image import Place, ThreadImage
from langgraph_ephemeral_checkpointer.messages.scrubbing import REMOVE
from langgraph_ephemeral_checkpointer.messages.storage import (
    MessageStorage,
    Transactions,
    count_removed,
)

_PAGE = "SELECT DISTINCT thread_id FROM checkpoints{where} ORDER BY thread_id LIMIT %s"
# The planner takes DISTINCT over the whole primary key for a sort of the whole table unless
# it may stop early; with LIMIT it walks the index.
_CHECKPOINTS = """
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata
    FROM checkpoints WHERE thread_id = %s
"""
_BLOBS = """
    SELECT checkpoint_ns, channel, version, type, blob
    FROM checkpoint_blobs WHERE thread_id = %s AND type <> 'empty'
"""
# Tables that LangGraph.js made have no task_path; there the name is that of the empty text.
_WRITES = """
    SELECT found.* FROM (VALUES ('')) AS absent (task_path), LATERAL (
        SELECT checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, blob
        FROM checkpoint_writes WHERE thread_id = %s
    ) AS found
"""
# As the sweeper does it: the purge gives way before the graph could become a deadlock's victim.
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', '500ms', true)"
_IDS = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = %s"
_COUNT_WRITES = "SELECT count(*) FROM checkpoint_writes WHERE thread_id = %s"

_BLOB_KEY = "thread_id = %s AND checkpoint_ns = %s AND channel = %s AND version = %s"
_ROW_KEY = "thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
_WRITE_KEY = f"{_ROW_KEY} AND task_id = %s AND idx = %s"
# A value is only replaced while it is what was read; its hash tells without sending it back.
_SET_BLOB = (
    f"UPDATE checkpoint_blobs SET type = %s, blob = %s WHERE {_BLOB_KEY} AND sha256(blob) = %s"
)
_SET_WRITE = (
    f"UPDATE checkpoint_writes SET type = %s, blob = %s WHERE {_WRITE_KEY} AND sha256(blob) = %s"
)
_DELETE_WRITE = f"DELETE FROM checkpoint_writes WHERE {_WRITE_KEY} AND sha256(blob) = %s"
_SET_INLINE = (
    f"UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, %s, %s::jsonb) WHERE {_ROW_KEY}"
)
_DROP_INLINE = f"UPDATE checkpoints SET checkpoint = checkpoint #- %s WHERE {_ROW_KEY}"
_SET_METADATA = (
    f"UPDATE checkpoints SET metadata = jsonb_set(metadata, '{{writes}}', %s::jsonb) "
    f"WHERE {_ROW_KEY}"
)


class _Image(ThreadImage):
    """An image that remembers the hashes of the values it was made of."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id)
        self.hashes: dict[Place, bytes] = {}
        self.write_count = 0


class PostgresStorage(MessageStorage):
    """Storage of both Postgres savers, on their connection or pool."""

    def __init__(self, strategy: Transactions) -> None:
        super().__init__(strategy)
        self._strategy = strategy

    def page(self, after: str | None, limit: int) -> Maybe[list[str]]:
        """The next thread ids."""
        return self._strategy.query(_page(after, limit))

    def read(self, thread_id: str) -> Maybe[ThreadImage]:
        """Everything that is stored of a thread."""
        return self._strategy.query(_read(thread_id, self.saver.serde))

    def write(self, image: ThreadImage, changes: Mapping[Place, Any]) -> Maybe[None]:
        """Write changes back in one short transaction that waits for no lock for long."""
        assert isinstance(image, _Image)  # noqa: S101 - it came from read()
        return self._strategy.transact(_write(image, changes))


def _page(after: str | None, limit: int) -> Plan[Statement, list[str]]:
    where, bound = ("", ()) if after is None else (" WHERE thread_id > %s", (after,))
    rows = yield Statement(_PAGE.format(where=where), (*bound, limit))
    return [row[0] for row in rows]


def _read(thread_id: str, serde: Any) -> Plan[Statement, _Image]:
    image = _Image(thread_id)
    # Checkpoints first: every blob that one refers to was committed with it, and a save in
    # between shows as a write too many, and is noticed when writing.
    rows = yield Statement(_CHECKPOINTS, (thread_id,))
    for ns, channel, version, kind, data in (yield Statement(_BLOBS, (thread_id,))):
        _add(image, Place("blob", ns, version, channel), serde, kind, data)
    for ns, checkpoint_id, task, idx, path, channel, kind, data in (
        yield Statement(_WRITES, (thread_id,))
    ):
        _add(image, Place("write", ns, checkpoint_id, channel, task, idx, path), serde, kind, data)
        image.write_count += 1
    for ns, checkpoint_id, parent, checkpoint, metadata in rows:
        inline = checkpoint.get("channel_values") or {}
        image.add_checkpoint(ns, checkpoint_id, parent, checkpoint, metadata or {}, inline)
    return image.finish()


def _add(image: _Image, place: Place, serde: Any, kind: str, data: bytes | None) -> None:
    image.hashes[place] = hashlib.sha256(data or b"").digest()
    image.add_value(place, serde, kind, data)


def _write(image: _Image, changes: Mapping[Place, Any]) -> Plan[Statement, None]:
    yield Statement(_LOCK_TIMEOUT)
    try:
        # In one order for everybody, so that two purges of a thread wait, and do not deadlock.
        for place in sorted(changes, key=lambda place: (place.kind, repr(place))):
            if (yield _statement(image, place, changes[place])) != 1:
                raise ThreadMovedError
    except LockNotAvailable as error:
        raise ThreadMovedError from error
    # Last, and on a snapshot of its own: nobody can be kept from adding rows meanwhile, and an
    # interrupt that was added makes the exchange one that stays. What comes after this has been
    # decided by whoever adds it without reading what is changed here, so that it is the same as
    # if it came after the commit.
    ids = yield Statement(_IDS, (image.thread_id,))
    writes = yield Statement(_COUNT_WRITES, (image.thread_id,))
    left = image.write_count - count_removed(changes)
    if {tuple(row) for row in ids} != image.checkpoints.keys() or writes[0][0] != left:
        raise ThreadMovedError


def _statement(image: _Image, place: Place, tree: Any) -> Statement:
    thread = image.thread_id
    row = (thread, place.ns, place.holder)
    if place.kind == "blob":
        value = ("empty", None) if tree is REMOVE else image.documents[place].close(tree)
        key = (thread, place.ns, place.channel, place.holder, image.hashes[place])
        return Statement(_SET_BLOB, (*value, *key), fetch=False)
    if place.kind == "write":
        guard = (*row, place.task, place.idx, image.hashes[place])
        if tree is REMOVE:
            return Statement(_DELETE_WRITE, guard, fetch=False)
        return Statement(_SET_WRITE, (*image.documents[place].close(tree), *guard), fetch=False)
    if place.kind == "metadata":
        said = None if tree is REMOVE else tree
        return Statement(_SET_METADATA, (json.dumps(said), *row), fetch=False)
    if place.kind == "sends":
        sends = [] if tree is REMOVE else tree
        return Statement(_SET_INLINE, (["pending_sends"], json.dumps(sends), *row), fetch=False)
    path = ["channel_values", place.channel]
    if tree is REMOVE:
        return Statement(_DROP_INLINE, (path, *row), fetch=False)
    return Statement(_SET_INLINE, (path, json.dumps(tree), *row), fetch=False)
