"""SqliteSaver and AsyncSqliteSaver: channel values inside the checkpoint's row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langgraph_ephemeral_checkpointer.engine.plan import Maybe, Plan, Statement
from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.messages.documents import Document, open_value
from langgraph_ephemeral_checkpointer.messages.image import Place, ThreadImage
from langgraph_ephemeral_checkpointer.messages.scrubbing import REMOVE
from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage, Transactions

_HAS_TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'checkpoints'"
_PAGE = "SELECT DISTINCT thread_id FROM checkpoints{where} ORDER BY thread_id LIMIT ?"
_HAS_PATH = "SELECT count(*) FROM pragma_table_info('writes') WHERE name = 'task_path'"
_CHECKPOINTS = """
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata
    FROM checkpoints WHERE thread_id = ?
"""
_WRITES = """
    SELECT checkpoint_ns, checkpoint_id, task_id, idx, {path}, channel, type, value
    FROM writes WHERE thread_id = ?
"""
# A row is only touched while it is what was read.
_SET_CHECKPOINT = """
    UPDATE checkpoints SET type = ?, checkpoint = ?, metadata = ?
    WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?
      AND checkpoint IS ? AND metadata IS ?
"""
_SET_WRITE = """
    UPDATE writes SET type = ?, value = ?
    WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? AND task_id = ? AND idx = ?
      AND value IS ?
"""
_DELETE_WRITE = """
    DELETE FROM writes
    WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? AND task_id = ? AND idx = ?
      AND value IS ?
"""


class _Image(ThreadImage):
    """An image that remembers the rows it was made of."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id)
        self.rows: dict[tuple[str, str], tuple[Document, Any, Any]] = {}
        self.written: dict[Place, Any] = {}


class SqliteStorage(MessageStorage):
    """Storage of both SQLite savers, on their connection and under their lock."""

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
        """Write changes back in an immediate transaction, which no other writer can enter."""
        assert isinstance(image, _Image)  # noqa: S101 - it came from read()
        return self._strategy.transact(_write(image, changes))


def _page(after: str | None, limit: int) -> Plan[Statement, list[str]]:
    if (yield Statement(_HAS_TABLES))[0][0] == 0:
        return []  # never set up: the saver makes its tables at first use
    where, bound = ("", ()) if after is None else (" WHERE thread_id > ?", (after,))
    rows = yield Statement(_PAGE.format(where=where), (*bound, limit))
    return [row[0] for row in rows]


def _read(thread_id: str, serde: Any) -> Plan[Statement, _Image]:
    image = _Image(thread_id)
    has_path = (yield Statement(_HAS_PATH))[0][0]
    # Checkpoints first: a save in between then shows as a write too many, and is noticed.
    for ns, checkpoint_id, parent, kind, data, metadata in (
        yield Statement(_CHECKPOINTS, (thread_id,))
    ):
        document = open_value(serde, kind, data)
        image.rows[ns, checkpoint_id] = (document, data, metadata)
        image.add_checkpoint(
            ns,
            checkpoint_id,
            parent,
            document.tree,
            json.loads(metadata) if metadata else {},
            document.tree.get("channel_values") or {},
        )
    sql = _WRITES.format(path="task_path" if has_path else "''")
    for ns, checkpoint_id, task, idx, path, channel, kind, data in (
        yield Statement(sql, (thread_id,))
    ):
        place = Place("write", ns, checkpoint_id, channel, task, idx, path)
        image.written[place] = data
        image.add_value(place, serde, kind, data)
    return image.finish()


def _write(image: _Image, changes: Mapping[Place, Any]) -> Plan[Statement, None]:
    yield from _refuse_moved(image)
    rows: dict[tuple[str, str], dict[Place, Any]] = {}
    statements = []
    for place, tree in changes.items():
        if place.kind != "write":
            rows.setdefault((place.ns, place.holder), {})[place] = tree
            continue
        key = (image.thread_id, place.ns, place.holder, place.task, place.idx)
        guard = (*key, image.written[place])
        if tree is REMOVE:
            statements.append(Statement(_DELETE_WRITE, guard, fetch=False))
        else:
            value = image.documents[place].close(tree)
            statements.append(Statement(_SET_WRITE, (*value, *guard), fetch=False))
    statements += [_row(image, *key, parts) for key, parts in rows.items()]
    for statement in statements:
        if (yield statement) != 1:
            raise ThreadMovedError


def _refuse_moved(image: _Image) -> Plan[Statement, None]:
    ids = yield Statement(
        "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?",
        (image.thread_id,),
    )
    writes = yield Statement("SELECT count(*) FROM writes WHERE thread_id = ?", (image.thread_id,))
    if {tuple(row) for row in ids} != image.rows.keys() or writes[0][0] != len(image.written):
        raise ThreadMovedError


def _row(image: _Image, ns: str, checkpoint_id: str, parts: Mapping[Place, Any]) -> Statement:
    document, data, metadata = image.rows[ns, checkpoint_id]
    tree = {**document.tree, "channel_values": dict(document.tree.get("channel_values") or {})}
    said = json.loads(metadata) if metadata else {}
    for place, new in parts.items():
        if place.kind == "sends":
            tree["pending_sends"] = [] if new is REMOVE else new
        elif place.kind == "metadata":
            said["writes"] = None if new is REMOVE else new
        elif new is REMOVE:
            del tree["channel_values"][place.channel]
        else:
            tree["channel_values"][place.channel] = new
    new_metadata = metadata
    if any(place.kind == "metadata" for place in parts):
        new_metadata = json.dumps(said, ensure_ascii=False).encode("utf-8", "ignore")
    return Statement(
        _SET_CHECKPOINT,
        (
            *document.close(tree),
            new_metadata,
            image.thread_id,
            ns,
            checkpoint_id,
            data,
            metadata,
        ),
        fetch=False,
    )
