"""Trimming threads in the tables of PostgresSaver and AsyncPostgresSaver.

Many threads go through each statement. All statements of a transaction see one snapshot,
so what a run saves meanwhile is neither seen nor deleted. No state is read: which channels
hold a value is seen from the checkpoint's JSONB and from the keys of the blobs. The texts are
in :mod:`.prune_statements`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from langgraph_ephemeral_checkpointer.decisions import survivors as rule
from langgraph_ephemeral_checkpointer.decisions.survivors import (
    Contents,
    Key,
    LeaveWholeError,
    Need,
    Row,
    Survival,
    Survivors,
)
from langgraph_ephemeral_checkpointer.drivers.text_arrays import text_array
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.langgraph_names import ROOT
from langgraph_ephemeral_checkpointer.strategies.base import PruneOutcome
from langgraph_ephemeral_checkpointer.strategies.births import birth_of
from langgraph_ephemeral_checkpointer.strategies.postgres.birth import mark_postgres
from langgraph_ephemeral_checkpointer.strategies.postgres.prune_statements import (
    BY_INDEX,
    CONTENTS_OF_NAMESPACES,
    CONTENTS_OF_ROWS,
    DELETE_CHECKPOINTS,
    DELETE_FLAT_CHECKPOINTS,
    DELETE_FLAT_WRITES,
    DELETE_WRITES,
    FIRST,
    HASHED,
    IN_ORDER,
    KEYS_ALONE,
    NEWEST,
    OLDEST,
    ROWS,
    SIZES,
    delete_blobs,
    freed_blobs,
)

# The rows of that many threads are deleted at a time.
_THREADS_PER_DELETE = 250


def prune_postgres(
    thread_ids: Sequence[str], keep: int, *, dry_run: bool = False
) -> Plan[Statement, dict[str, PruneOutcome]]:
    """Trim threads to their newest root checkpoints.

    To be run inside a transaction that began with :data:`.postgres_statements.SNAPSHOT`, with
    rows answered as tuples, and unprepared: a cached generic plan checks ``= ANY(array)`` one
    element at a time. Another transaction that changes the same rows meanwhile (a second
    sweeper) makes this one end in ``psycopg.errors.SerializationFailure``; it may then be tried
    again.

    Args:
        thread_ids: The threads.
        keep: How many of the newest root checkpoints to keep, at least 1.
        dry_run: Delete nothing, and say what would be removed.

    Yields:
        The statements.

    Returns:
        What was done, for every thread given.
    """
    outcomes = dict.fromkeys(thread_ids, PruneOutcome())
    yield Statement(BY_INDEX)
    sizes = yield from _sizes(thread_ids)
    long = [thread_id for thread_id, spaces in sizes.items() if spaces.get(ROOT, 0) > keep]
    if not long:
        return outcomes
    rows, alone, doubts = yield from _rows(long, sizes, keep)
    found, unsure = yield from _decide(rows, alone, keep)
    for thread_id, reason in (doubts | unsure).items():
        outcomes[thread_id] = PruneOutcome(left_whole=reason)
    if not found:
        return outcomes
    going = {
        thread_id: sum(
            sizes[thread_id][space] - len(kept) for space, kept in survivors.kept.items()
        )
        for thread_id, survivors in found.items()
    }
    if dry_run:
        return outcomes | {thread_id: PruneOutcome(count) for thread_id, count in going.items()}

    yield from mark_postgres((yield from _births(rows, found)))
    nested = [thread_id for thread_id in found if len(sizes[thread_id]) > 1]
    flat = [thread_id for thread_id in found if len(sizes[thread_id]) == 1]
    for threads, in_order in ((nested, True), (flat, False)):
        parts = []
        for start in range(0, len(threads), _THREADS_PER_DELETE):
            chunk = threads[start : start + _THREADS_PER_DELETE]
            decided = (
                (thread_id, *space)
                for thread_id in chunk
                for space in _decided(rows[thread_id], found[thread_id])
            )
            parts.append((chunk, _columns(decided, 4)))
        removed = yield from _delete(parts, in_order)
        for (chunk, _), count in zip(parts, removed, strict=True):
            if count != sum(going[thread_id] for thread_id in chunk):  # a trigger held some back
                left = yield from _sizes(chunk)
                for thread_id in chunk:
                    going[thread_id] = sum(sizes[thread_id].values())
                    going[thread_id] -= sum(left[thread_id].values())
            outcomes |= {thread_id: PruneOutcome(going[thread_id]) for thread_id in chunk}
    return outcomes


def _sizes(thread_ids: Sequence[str]) -> Plan[Statement, dict[str, dict[str, int]]]:
    """Count the checkpoints of each namespace of threads."""
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    for thread_id, namespace, size in (yield Statement(SIZES, (text_array(thread_ids),))):
        sizes[thread_id][namespace] = size
    return sizes


def _delete(
    parts: Sequence[tuple[Sequence[str], tuple[str, ...]]], in_order: bool
) -> Plan[Statement, list[int]]:
    """Delete what goes of some threads, all of which have subgraphs (`in_order`) or none.

    Returns how many checkpoints went of each part.
    """
    if not parts:
        return []
    yield Statement(IN_ORDER if in_order else HASHED)
    blobs = delete_blobs(freed_blobs(in_order), in_order)
    for _, columns in parts:
        yield Statement(blobs, columns, fetch=False)
        yield Statement(DELETE_WRITES if in_order else DELETE_FLAT_WRITES, columns, fetch=False)
    if not in_order:
        yield Statement(KEYS_ALONE)
    removed = []
    for _, columns in parts:
        delete = DELETE_CHECKPOINTS if in_order else DELETE_FLAT_CHECKPOINTS
        removed.append((yield Statement(delete, columns, fetch=False)))
    return removed


def _decided(rows: Iterable[Row], found: Survivors) -> Iterator[tuple[str, str, str]]:
    """Return namespace, from where on everything stays, and what stays below that (JSON)."""
    listed: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        listed[row.namespace].append(row.id)
    for namespace, kept in found.kept.items():
        below = listed[namespace][-1] + "0"  # above the newest, in every collation
        rest = set(kept)
        for id_ in reversed(listed[namespace]):
            if id_ not in kept:
                break
            below = id_
            rest.remove(id_)
        # Where only the newest are listed, how the database orders the others is not known.
        yield namespace, below, json.dumps(dict.fromkeys(rest))


def _rows(
    thread_ids: Iterable[str], sizes: Mapping[str, Mapping[str, int]], keep: int
) -> Plan[Statement, tuple[dict[str, list[Row]], set[str], dict[str, str]]]:
    """Read the rows of threads.

    Also returns the threads whose newest checkpoints are known to need no ancestor, and why some
    threads cannot be decided on.
    """
    flat = [thread_id for thread_id in thread_ids if len(sizes[thread_id]) == 1]
    nested = [thread_id for thread_id in thread_ids if len(sizes[thread_id]) > 1]
    rows: dict[str, list[Row]] = defaultdict(list)
    alone: set[str] = set()
    doubts: dict[str, str] = {}
    if flat:
        for thread_id, ids, needs_none in (yield Statement(NEWEST, (text_array(flat), keep + 1))):
            rows[thread_id] = [Row(ROOT, id_) for id_ in reversed(ids)]
            if needs_none:
                alone.add(thread_id)
    if nested:
        answer = yield Statement(ROWS, (text_array(nested),))
        for thread_id, namespace, checkpoint_id, parent, source, parents in answer:
            rows[thread_id].append(Row(namespace, checkpoint_id, parent, source, _callers(parents)))
    for thread_id, members in list(rows.items()):
        # The rule compares ids as Python does, and the savers' queries as the database
        # does. That differs for ids other than UUIDs under most collations.
        ids = [row.id for row in members]
        if ids != sorted(ids):
            del rows[thread_id]
            doubts[thread_id] = (
                "the database orders its checkpoint ids by a collation that this package does "
                "not know"
            )
    return rows, alone, doubts


def _decide(
    rows: Mapping[str, Sequence[Row]], alone: AbstractSet[str], keep: int
) -> Plan[Statement, tuple[dict[str, Survivors], dict[str, str]]]:
    """Run the rule on many threads at once; also returns why it failed on some."""
    found: dict[str, Survivors] = {}
    doubts: dict[str, str] = {}
    running: dict[str, tuple[Survival, Need]] = {}

    def go_on(thread_id: str, survival: Survival, answer: dict[Key, Contents] | None) -> None:
        try:
            need = survival.send(answer)
        except StopIteration as end:
            if end.value is not None:
                found[thread_id] = end.value
        except LeaveWholeError as error:
            doubts[thread_id] = str(error)
        else:
            running[thread_id] = survival, need

    for thread_id, members in rows.items():
        go_on(thread_id, rule.survival(members, keep), None)
    while running:
        asked, running = running, {}
        answers = yield from _read(
            {thread_id: need for thread_id, (_, need) in asked.items() if thread_id not in alone}
        )
        for thread_id, (survival, _) in asked.items():
            go_on(thread_id, survival, None if thread_id in alone else answers[thread_id])
    return found, doubts


def _read(needs: Mapping[str, Need]) -> Plan[Statement, dict[str, dict[Key, Contents]]]:
    keys = [(thread, *key) for thread, need in needs.items() for key in need.keys]
    spaces = [(thread, space) for thread, need in needs.items() for space in need.namespaces]
    answer: list[tuple[Any, ...]] = []
    if keys:
        answer += yield Statement(CONTENTS_OF_ROWS, _columns(keys, 3))
    if spaces:
        answer += yield Statement(CONTENTS_OF_NAMESPACES, _columns(spaces, 2))
    found: dict[str, dict[Key, Contents]] = defaultdict(dict)
    for (
        thread_id,
        namespace,
        id_,
        parent,
        stored,
        unstored,
        snapshots,
        counters,
        marked,
        sends,
    ) in answer:
        named = isinstance(counters, dict | list)
        listed = frozenset(name for name in counters if isinstance(name, str)) if named else ()
        found[thread_id][namespace, id_] = Contents(
            parent=parent,
            stored=frozenset(stored or ()),
            unstored=frozenset(unstored or ()),
            delta=frozenset(snapshots or ()).union(listed),
            all_delta=marked or not (named or counters is None),
            sends_parent=sends,
        )
    return found


def _births(
    rows: Mapping[str, Sequence[Row]], found: Mapping[str, Survivors]
) -> Plan[Statement, list[tuple[str, str, str]]]:
    """Return thread, oldest root checkpoint that stays and birth, where the first one goes."""
    oldest: dict[str, str] = {}
    unlisted: list[tuple[str, str]] = []
    for thread_id, survivors in found.items():
        kept = survivors.kept[ROOT]
        oldest[thread_id] = min(kept)
        if not kept <= {row.id for row in rows[thread_id] if row.namespace == ROOT}:
            unlisted += ((thread_id, id_) for id_ in kept)
    if unlisted:  # the database may order these as Python does not
        oldest.update((yield Statement(OLDEST, _columns(unlisted, 2))))
    births = []
    for thread_id, first, ts, earlier in (yield Statement(FIRST, (text_array(found),))):
        if oldest[thread_id] != first:
            births.append((thread_id, oldest[thread_id], earlier or birth_of(first, ts)))
    return births


def _callers(parents: Any) -> dict[str, str]:
    if not isinstance(parents, dict):
        return {}
    return {space: caller for space, caller in parents.items() if isinstance(caller, str)}


def _columns(rows: Iterable[tuple[str, ...]], count: int) -> tuple[str, ...]:
    columns = list(zip(*rows, strict=True)) or [()] * count
    return tuple(text_array(column) for column in columns)
