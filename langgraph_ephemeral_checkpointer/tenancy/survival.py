"""What of a thread survives a prune: pure, over the rows of one thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Place: TypeAlias = tuple[str, str]
"""Namespace and id of a checkpoint."""


@dataclass(frozen=True, slots=True)
class Row:
    """What pruning has to know of one checkpoint."""

    ns: str
    id: str
    parent: str | None
    root: str | None
    source: str | None
    run_id: str | None
    versions: dict[str, str]
    held: frozenset[str]
    delta: frozenset[str]

    @classmethod
    def read(cls, row: Sequence[Any]) -> Row:
        """Build one from a row of the facts statement."""
        ns, id_, parent, root, source, run_id, channels, versions, held, delta = row
        named = dict(zip(channels, versions, strict=True))
        return cls(ns, id_, parent, root, source, run_id, named, frozenset(held), frozenset(delta))

    @property
    def place(self) -> Place:
        """Namespace and id."""
        return (self.ns, self.id)


def closure(rows: Iterable[Row], kept: Iterable[Place]) -> set[Place]:
    """Add the ancestors from which delta channels of what is kept are rebuilt.

    A delta channel stores its value only now and then. Between two values, it is the
    nearest ancestor's value and the writes on the way down, those of that ancestor
    included. Which channels are delta is told by all rows of a namespace together.
    """
    by_place = {row.place: row for row in rows}
    delta: dict[str, set[str]] = defaultdict(set)
    for row in by_place.values():
        delta[row.ns] |= row.delta
    survivors = set(kept)
    for place in list(survivors):
        row = by_place[place]
        for channel in delta[row.ns] & set(row.versions) - row.held:
            seen = {row.id}
            parent = row.parent
            while parent is not None and parent not in seen:
                seen.add(parent)
                ancestor = by_place.get((row.ns, parent))
                if ancestor is None:
                    break
                survivors.add(ancestor.place)
                if channel in ancestor.held:
                    break
                parent = ancestor.parent
    return survivors


def latest_of_each(rows: Sequence[Row]) -> set[Place]:
    """What ``prune("keep_latest")`` keeps: the newest of each namespace and its history.

    A subgraph call's namespace (its name has a ``:``) goes with the root checkpoint the
    call started from, once that one is stored and goes itself.
    """
    newest: dict[str, Row] = {}
    for row in rows:
        if row.ns not in newest or row.id > newest[row.ns].id:
            newest[row.ns] = row
    roots = closure(rows, [newest[""].place]) if "" in newest else set()
    stored = {row.id for row in rows if not row.ns}
    kept = {
        row.place
        for row in newest.values()
        if ":" not in row.ns or row.root not in stored or ("", row.root) in roots
    }
    return closure(rows, kept)


def newest_roots(rows: Sequence[Row], keep: int) -> set[Place]:
    """What survives when a thread keeps the newest ``keep`` checkpoints of its root namespace."""
    roots = sorted((row for row in rows if not row.ns), key=lambda row: row.id, reverse=True)
    heads = roots[:keep]
    kept = {row.place for row in heads}
    stored = {row.id for row in roots}
    kept_ids = {place[1] for place in closure(rows, kept) if not place[0]}
    below = defaultdict(list)
    for row in rows:
        if row.ns and ":" not in row.ns:
            below[row.ns].append(row)
    for persistent in below.values():
        persistent.sort(key=lambda row: row.id)
        kept.add(persistent[-1].place)
        if not heads:
            kept.update(row.place for row in persistent)
            continue
        kept.update(row.place for row in persistent if row.id > heads[0].id)
        for head in heads:
            # A replay of an edited checkpoint starts from the checkpoint it was edited on.
            bound = (head.parent if head.source in {"update", "fork"} else None) or head.id
            older = [row for row in persistent if row.id < bound]
            kept.update(row.place for row in older[-1:])
    calls = defaultdict(list)
    for row in rows:
        if ":" in row.ns:
            calls[row.ns].append(row)
    for call in calls.values():
        if any(row.root not in stored or row.root in kept_ids for row in call):
            kept.update(row.place for row in call)
    return closure(rows, kept)
