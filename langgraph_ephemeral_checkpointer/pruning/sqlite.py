"""Trimming threads in the tables of SqliteSaver and AsyncSqliteSaver.

The values are inside the checkpoint, so what a prune has to know of them is read without
making objects of them, and only for the checkpoints that stay; the others are read only
in namespaces where a delta channel may need them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from langgraph_ephemeral_checkpointer import survivors as rule
from langgraph_ephemeral_checkpointer.birth import (
    birth_of,
    has_time,
    mark_sqlite,
    sqlite_birth_of,
)
from langgraph_ephemeral_checkpointer.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.pruning import raw
from langgraph_ephemeral_checkpointer.pruning.outcome import PruneOutcome
from langgraph_ephemeral_checkpointer.survivors import (
    ROOT,
    Contents,
    Key,
    LeaveWholeError,
    Need,
    Row,
)

# The number of variables in a statement is limited to 999 on old builds of SQLite.
_IDS_PER_DELETE = 200
# States are read a few at a time, so that a long thread is never in memory at once.
_STATES_PER_READ = 20


def prune_sqlite(
    thread_ids: Iterable[str], keep: int, *, dry_run: bool = False
) -> Plan[Statement, dict[str, PruneOutcome]]:
    """Trim threads to their newest root checkpoints.

    To be run inside a transaction that holds the write lock from its start
    (``BEGIN IMMEDIATE``), with rows answered as tuples.

    Args:
        thread_ids: The threads.
        keep: How many of the newest root checkpoints to keep, at least 1.
        dry_run: Delete nothing, and say what would be removed.

    Yields:
        The statements.

    Returns:
        What was done, for every thread given.
    """
    outcomes = {}
    for thread_id in thread_ids:
        try:
            outcomes[thread_id] = yield from _prune_thread(thread_id, keep, dry_run)
        except LeaveWholeError as error:  # raised before anything of it was deleted
            outcomes[thread_id] = PruneOutcome(left_whole=str(error))
    return outcomes


def _prune_thread(thread_id: str, keep: int, dry_run: bool) -> Plan[Statement, PruneOutcome]:
    # Answered by the index of the primary key alone: no state is paged through for it.
    ids = yield Statement(
        "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?", (thread_id,)
    )
    keys: list[Key] = [(namespace, checkpoint_id) for namespace, checkpoint_id in ids]
    roots = [checkpoint_id for namespace, checkpoint_id in keys if namespace == ROOT]
    if len(roots) <= keep:
        return PruneOutcome()
    if len(roots) == len(keys):  # no subgraphs, so nothing but the ids matters yet
        rows = [Row(ROOT, checkpoint_id) for checkpoint_id in roots]
    else:
        rows = yield from _rows(thread_id)

    survival = rule.survival(rows, keep)
    try:
        need = next(survival)
        while True:
            need = survival.send((yield from _read(thread_id, keys, need)))
    except StopIteration as end:
        found = end.value
    if found is None:
        return PruneOutcome()
    birth = yield from _birth(thread_id, min(roots))

    removed = 0
    for namespace, kept in found.kept.items():
        gone = [id_ for space, id_ in keys if space == namespace and id_ not in kept]
        if dry_run:
            removed += len(gone)
            continue
        for chunk in _chunks(gone, _IDS_PER_DELETE):
            where = (
                f"WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id IN ({_marks(chunk)})"
            )
            for table in ("writes", "checkpoints"):
                count = yield Statement(
                    f"DELETE FROM {table} {where}",
                    (thread_id, namespace, *chunk),
                    fetch=False,
                )
            removed += count
    oldest = min(found.kept[ROOT])
    if oldest != min(roots) and not dry_run:
        yield from mark_sqlite(thread_id, oldest, birth)
    return PruneOutcome(removed)


def _rows(thread_id: str) -> Plan[Statement, list[Row]]:
    answer = yield Statement(
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata "
        "FROM checkpoints WHERE thread_id = ?",
        (thread_id,),
    )
    rows = []
    for namespace, checkpoint_id, parent, stored in answer:
        metadata = _metadata(stored)
        rows.append(
            Row(namespace, checkpoint_id, parent, metadata.get("source"), raw.callers(metadata))
        )
    return rows


def _read(thread_id: str, keys: Sequence[Key], need: Need) -> Plan[Statement, dict[Key, Contents]]:
    wanted: dict[str, list[str]] = {}
    for namespace, checkpoint_id in keys:
        if namespace in need.namespaces or (namespace, checkpoint_id) in need.keys:
            wanted.setdefault(namespace, []).append(checkpoint_id)
    found: dict[Key, Contents] = {}
    for namespace, ids in wanted.items():
        for chunk in _chunks(ids, _STATES_PER_READ):
            answer = yield Statement(
                "SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata "
                "FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? "
                f"AND checkpoint_id IN ({_marks(chunk)})",
                (thread_id, namespace, *chunk),
            )
            for checkpoint_id, parent, kind, data, metadata in answer:
                found[namespace, checkpoint_id] = _contents(parent, kind, data, metadata)
    return found


def _contents(parent: str | None, kind: str | None, data: bytes, metadata: Any) -> Contents:
    checkpoint = raw.mapping(raw.unpack(kind, data), "the checkpoint")
    values = raw.mapping(checkpoint.get("channel_values"), "channel_values")
    return raw.contents(
        parent,
        _metadata(metadata),
        raw.mapping(checkpoint.get("channel_versions"), "channel_versions"),
        frozenset(values),
        frozenset(channel for channel, value in values.items() if raw.is_snapshot(value)),
    )


def _metadata(stored: bytes | str | None) -> Any:
    if stored is None:  # which the savers read as empty, too
        return {}
    try:
        return raw.mapping(json.loads(stored), "the metadata")
    except ValueError as error:
        raise LeaveWholeError(f"the metadata of a checkpoint cannot be read: {error}") from error


def _birth(thread_id: str, first: str) -> Plan[Statement, str]:
    [(earlier,)] = yield Statement(f"SELECT {sqlite_birth_of('?')}", (thread_id,))
    if earlier is not None:
        return str(earlier)
    ts = None
    if not has_time(first):
        [(kind, data)] = yield Statement(
            "SELECT type, checkpoint FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = '' AND checkpoint_id = ?",
            (thread_id, first),
        )
        ts = raw.mapping(raw.unpack(kind, data), "the checkpoint").get("ts")
    return birth_of(first, ts)


def _marks(chunk: Sequence[str]) -> str:
    return ", ".join("?" * len(chunk))


def _chunks(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(ids)
    while chunk := list(islice(iterator, size)):
        yield chunk
