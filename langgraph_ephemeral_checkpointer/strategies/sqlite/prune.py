"""Trimming threads in the tables of SqliteSaver and AsyncSqliteSaver.

The values are inside the checkpoint, so what a prune has to know of them is read without
making objects of them, and only for the checkpoints that stay; the others are read only
in namespaces where a delta channel may need them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from langgraph_ephemeral_checkpointer.decisions import survivors as rule
from langgraph_ephemeral_checkpointer.decisions.survivors import (
    Contents,
    Key,
    LeaveWholeError,
    Need,
    Row,
)
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.langgraph_names import ROOT, SOURCE
from langgraph_ephemeral_checkpointer.strategies import raw
from langgraph_ephemeral_checkpointer.strategies.base import PruneOutcome
from langgraph_ephemeral_checkpointer.strategies.births import birth_of, has_time
from langgraph_ephemeral_checkpointer.strategies.sqlite.access import in_parts
from langgraph_ephemeral_checkpointer.strategies.sqlite.birth import mark_sqlite, sqlite_birth_of

# By a range of ids, which costs half of a list of them. Nobody else writes meanwhile, so between
# two ids that follow each other lies no checkpoint; but a write may be there before its own.
_DELETES = (
    """
    DELETE FROM writes
    WHERE thread_id = :thread_id AND checkpoint_ns = :namespace AND checkpoint_id IN (
        SELECT checkpoint_id FROM checkpoints
        WHERE thread_id = :thread_id AND checkpoint_ns = :namespace
        AND checkpoint_id BETWEEN :first AND :last)
    """,
    """
    DELETE FROM checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :namespace
    AND checkpoint_id BETWEEN :first AND :last
    """,
)
_COUNT = """
    SELECT count(*) FROM checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :namespace
    AND checkpoint_id BETWEEN :first AND :last
"""

# The index of the primary key answers these: no state is paged through for them.
_NEWEST = """
    SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''
    ORDER BY checkpoint_id DESC LIMIT ?
"""
_KEYS = """
    SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?
    ORDER BY checkpoint_ns, checkpoint_id
"""
_OVERVIEW = f"""
    SELECT
        (SELECT min(checkpoint_id) FROM checkpoints
         WHERE thread_id = :thread_id AND checkpoint_ns = ''),
        EXISTS (SELECT 1 FROM checkpoints WHERE thread_id = :thread_id AND checkpoint_ns > ''),
        {sqlite_birth_of(":thread_id")}
"""

_STATES = """
    SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints
    WHERE thread_id = ? AND checkpoint_ns = ?
"""
_STATES_BY_ID = f"{_STATES} AND checkpoint_id IN ({{marks}})"
_NEXT_STATES = f"{_STATES} AND checkpoint_id > ? ORDER BY checkpoint_id LIMIT ?"

# States are read a few at a time, so that a long thread is never in memory at once.
_STATES_PER_READ = 20

Run: TypeAlias = tuple[str, str, str]
"""Checkpoints that follow each other in the order of SQLite: namespace, first id, last id."""


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
    found = yield Statement(_NEWEST, (thread_id, keep + 1))
    newest: list[str] = [checkpoint_id for (checkpoint_id,) in found]
    if len(newest) <= keep:
        return PruneOutcome()
    if newest != sorted(newest, reverse=True):  # a file in UTF-16, and ids that are no ASCII
        raise LeaveWholeError("the file orders its checkpoint ids as this package does not")
    [(first, has_subgraphs, birth)] = yield Statement(_OVERVIEW, {"thread_id": thread_id})
    if has_subgraphs:
        rows = yield from _rows(thread_id)
    else:  # nothing but the ids of the newest matters yet
        rows = [Row(ROOT, checkpoint_id) for checkpoint_id in newest]

    survivors = yield from _survivors(thread_id, rows, keep)
    if survivors is None:
        return PruneOutcome()
    *stay, next_ = newest
    if not has_subgraphs and survivors.kept[ROOT] == frozenset(stay):
        oldest, runs = stay[-1], [(ROOT, first, next_)]
    else:
        keys = yield Statement(_KEYS, (thread_id,))
        runs = list(_runs(keys, survivors.kept))
        oldest = next(id_ for space, id_ in keys if space == ROOT and id_ in survivors.kept[ROOT])
    if oldest != first:
        birth = yield from _birth(thread_id, first, birth)

    removed = 0
    for namespace, low, high in runs:
        where = {"thread_id": thread_id, "namespace": namespace, "first": low, "last": high}
        if dry_run:
            [(count,)] = yield Statement(_COUNT, where)
        else:
            for delete in _DELETES:
                count = yield Statement(delete, where, fetch=False)
        removed += count
    if oldest != first and not dry_run:
        yield from mark_sqlite(thread_id, oldest, birth)
    return PruneOutcome(removed)


def _survivors(
    thread_id: str, rows: Iterable[Row], keep: int
) -> Plan[Statement, rule.Survivors | None]:
    survival = rule.survival(rows, keep)
    try:
        need = next(survival)
        while True:
            need = survival.send((yield from _read(thread_id, need)))
    except StopIteration as end:
        found: rule.Survivors | None = end.value
        return found


def _runs(keys: Iterable[Key], kept: Mapping[str, AbstractSet[str]]) -> Iterator[Run]:
    """Put together what goes: checkpoints between which none stays.

    Args:
        keys: Every checkpoint of the thread, in the order of SQLite, which in a UTF-16 file is
            not Python's.
        kept: What stays, by namespace; of others everything does.
    """
    for namespace, members in groupby(keys, key=itemgetter(0)):
        if (stays := kept.get(namespace)) is None:
            continue
        for is_kept, run in groupby(members, key=lambda key: key[1] in stays):
            if not is_kept:
                ids = [id_ for _, id_ in run]
                yield namespace, ids[0], ids[-1]


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
            Row(namespace, checkpoint_id, parent, metadata.get(SOURCE), raw.callers(metadata))
        )
    return rows


def _read(thread_id: str, need: Need) -> Plan[Statement, dict[Key, Contents]]:
    found: dict[Key, Contents] = {}
    wanted: dict[str, list[str]] = defaultdict(list)
    for namespace, checkpoint_id in need.keys:
        wanted[namespace].append(checkpoint_id)
    for namespace, ids in wanted.items():
        for part, marks in in_parts(ids, besides=2, at_most=_STATES_PER_READ):
            sql = _STATES_BY_ID.format(marks=marks)
            states = yield Statement(sql, (thread_id, namespace, *part))
            found.update(_contents_of(namespace, states))
    for namespace in need.namespaces:
        after = ""
        while True:
            where = (thread_id, namespace, after, _STATES_PER_READ)
            states = yield Statement(_NEXT_STATES, where)
            found.update(_contents_of(namespace, states))
            if len(states) < _STATES_PER_READ:
                break
            after = states[-1][0]
    return found


def _contents_of(namespace: str, states: Iterable[Sequence[Any]]) -> Iterator[tuple[Key, Contents]]:
    for checkpoint_id, *rest in states:
        yield (namespace, checkpoint_id), _contents(*rest)


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
        # Decoded here: json would look for UTF-16 and the like first, at a third of the cost.
        text = stored if isinstance(stored, str) else stored.decode()
        return raw.mapping(json.loads(text), "the metadata")
    except ValueError as error:
        raise LeaveWholeError(f"the metadata of a checkpoint cannot be read: {error}") from error


def _birth(thread_id: str, first: str, earlier: str | None) -> Plan[Statement, str]:
    if earlier is not None:
        return earlier
    ts = None
    if not has_time(first):
        [(kind, data)] = yield Statement(
            "SELECT type, checkpoint FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = '' AND checkpoint_id = ?",
            (thread_id, first),
        )
        ts = raw.mapping(raw.unpack(kind, data), "the checkpoint").get("ts")
    return birth_of(first, ts)
