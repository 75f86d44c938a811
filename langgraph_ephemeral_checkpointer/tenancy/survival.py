"""What of a thread survives: the shared rule of pruning, fed from this saver's columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_ephemeral_checkpointer.decisions import survivors
from langgraph_ephemeral_checkpointer.decisions.survivors import Contents, Key, Need
from langgraph_ephemeral_checkpointer.errors import HistoryNeededError
from langgraph_ephemeral_checkpointer.langgraph_names import ROOT
from langgraph_ephemeral_checkpointer.tenancy.rows import EVERY_CHANNEL, Save


@dataclass(frozen=True, slots=True)
class Stored:
    """One checkpoint of a thread, as the facts statement reads it."""

    row: survivors.Row
    run_id: str | None
    versions: Mapping[str, str]
    contents: Contents
    written_by: str | None = None
    """The transaction that wrote the row, where that was asked: it changes with the row."""

    @classmethod
    def read(cls, columns: Sequence[Any]) -> Stored:
        """Build one from a row of the facts statement."""
        ns, id_, parent, callers, source, run_id, channels, versions, held, delta, *by = columns
        # Pending sends are stored with the checkpoint itself, whatever its format.
        contents = Contents(
            parent=parent,
            stored=frozenset(held),
            unstored=frozenset(channels) - frozenset(held),
            delta=frozenset(delta) - {EVERY_CHANNEL},
            all_delta=EVERY_CHANNEL in delta,
        )
        pairs = dict(zip(callers[::2], callers[1::2], strict=True))
        row = survivors.Row(ns, id_, parent, source, pairs)
        return cls(row, run_id, dict(zip(channels, versions, strict=True)), contents, *by)

    @classmethod
    def of(cls, save: Save, written_by: str | None = None) -> Stored:
        """Build the one that a save stores, as :meth:`read` will."""
        columns = save.columns
        return cls.read(
            (
                save.target.ns,
                save.checkpoint_id,
                columns["parent"],
                save.callers,
                columns["source"],
                columns["run_id"],
                [*save.named],
                [*save.named.values()],
                [*save.versions],
                save.delta,
                written_by,
            )
        )

    @property
    def key(self) -> Key:
        """Namespace and id."""
        return (self.row.namespace, self.row.id)


def newest_roots(thread: Sequence[Stored], keep: int) -> set[Key]:
    """What survives when a thread keeps the newest ``keep`` root checkpoints.

    Raises:
        LeaveWholeError: It cannot be established.
    """
    contents = {one.key: one.contents for one in thread}

    def read(need: Need) -> Mapping[Key, Contents]:
        return {
            key: inside
            for key, inside in contents.items()
            if key in need.keys or key[0] in need.namespaces
        }

    found = survivors.survivors_of([one.row for one in thread], read, keep)
    if found is None:
        return set(contents)
    return {
        key for key in contents if key[0] in found.whole or key[1] in found.kept.get(key[0], ())
    }


def latest_of_each(thread: Sequence[Stored]) -> set[Key]:
    """What ``prune("keep_latest")`` keeps: the newest of each namespace, and its history.

    A subgraph call's namespace goes with the root checkpoint the call started from, once
    that one is stored and goes itself.

    Raises:
        LeaveWholeError: It cannot be established.
    """
    spaces: dict[str, list[survivors.Row]] = defaultdict(list)
    for one in thread:
        spaces[one.row.namespace].append(one.row)
    kept = {
        ns: {max(row.id for row in rows)} | _history(thread, ns, {max(row.id for row in rows)})
        for ns, rows in spaces.items()
    }
    roots = {row.id for row in spaces.get(ROOT, ())}
    for ns, rows in spaces.items():
        if survivors.is_call(ns) and not survivors.call_stays(rows, roots, kept):
            kept[ns] = set()
    return {(ns, id_) for ns, ids in kept.items() for id_ in ids}


def without_runs(thread: Sequence[Stored], runs: Collection[str]) -> set[Key]:
    """What is left when the checkpoints of some runs go.

    Raises:
        HistoryNeededError: Something of what is left is rebuilt from those.
    """
    kept = {one.key for one in thread if one.run_id not in runs}
    for ns in {ns for ns, _ in kept}:
        ids = {id_ for space, id_ in kept if space == ns}
        # Ancestors that are missing already are no reason to keep the run.
        try:
            needed = _history(thread, ns, ids)
        except survivors.LeaveWholeError:
            continue
        if not needed <= ids:
            raise HistoryNeededError
    return kept


def _history(thread: Sequence[Stored], ns: str, ids: set[str]) -> set[str]:
    inside = {one.row.id: one.contents for one in thread if one.row.namespace == ns}
    return survivors.delta_ancestors(ids, inside)
