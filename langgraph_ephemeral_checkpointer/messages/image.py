"""A thread as it is stored, in one shape for every backend.

Each storage fills a ``ThreadImage`` from its rows, ``scrubbing`` decides on it, and the
storage writes the changed places back. The tenant savers' tables fit it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import moment, time_of_saved
from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.langgraph_names import (
    DELTA_COUNTERS,
    PARENTS,
    ROOT,
    SOURCE,
    STEP,
    TASKS,
)
from langgraph_ephemeral_checkpointer.messages.documents import (
    Document,
    UnreadableValueError,
    open_value,
)
from langgraph_ephemeral_checkpointer.messages.payloads import is_snapshot


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where one value is stored."""

    kind: str
    """``blob`` (shared by checkpoints), ``inline`` (in a checkpoint's row), ``write``,
    ``sends`` (a checkpoint's pending sends, of old formats) or ``metadata`` (its record of
    writes, of old formats)."""
    ns: str
    holder: str
    """The version of a blob; else the checkpoint's id."""
    channel: str
    task: str = ""
    idx: int = 0
    path: str = ""


@dataclasses.dataclass(slots=True)
class Checkpoint:
    """A checkpoint, without its values."""

    ns: str
    id: str
    parent: str | None
    moment: datetime | None
    """When it was saved; None where neither its id nor its ts tells."""
    root: str | None
    """The root checkpoint whose step called this subgraph, for a subgraph's checkpoint."""
    step: int | None
    """Its number in the run, as its metadata has it."""
    source: str | None
    """What made it: an input, the loop, an update or a fork."""
    values: dict[str, Place]
    """Where the values are that it stores or refers to, by channel."""
    writes: list[Place] = dataclasses.field(default_factory=list)
    children: list[str] = dataclasses.field(default_factory=list)


class ThreadImage:
    """All that is stored of a thread."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.checkpoints: dict[tuple[str, str], Checkpoint] = {}
        self.documents: dict[Place, Document] = {}
        self.unreadable: dict[Place, UnreadableValueError] = {}
        self.delta: set[tuple[str, str]] = set()
        """Channels of the DeltaChannel kind, as (namespace, channel)."""
        self.lost: dict[tuple[str, str], Checkpoint] = {}
        """Checkpoints that are not stored, of which writes are."""
        self._blobs: dict[tuple[str, str, str], Place] = {}
        self._orphans: list[Place] = []

    def add_value(self, place: Place, serde: Any, kind: str, data: bytes | None) -> None:
        """Take in a stored value: a blob or a write. Blobs come before their checkpoints."""
        try:
            self.documents[place] = open_value(serde, kind, data)
        except UnreadableValueError as error:
            self.unreadable[place] = error
        if place.kind == "blob":
            self._blobs[place.ns, place.channel, place.holder] = place
        elif place.kind == "write":
            self._orphans.append(place)

    def add_checkpoint(
        self,
        ns: str,
        checkpoint_id: str,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        inline: Mapping[str, Any],
    ) -> None:
        """Take in a checkpoint's row.

        Args:
            ns: Its namespace.
            checkpoint_id: Its id.
            parent: Its parent's id.
            checkpoint: Its fields; ``channel_values`` is not looked at.
            metadata: Its metadata.
            inline: The trees of the values that stand in the row itself, by channel.
        """
        values = {}
        for channel, version in (checkpoint.get("channel_versions") or {}).items():
            if place := self._blobs.get((ns, channel, str(version))):
                values[channel] = place
        for channel, tree in inline.items():
            if channel in values:
                continue  # Postgres marks a snapshot, which is a blob, with an inline true
            place = Place("inline", ns, checkpoint_id, channel)
            self.documents[place] = Document(tree, _inline)
            values[channel] = place
        if sends := checkpoint.get("pending_sends"):
            place = Place("sends", ns, checkpoint_id, TASKS)
            self.documents[place] = Document(sends, _inline)
        if "writes" in metadata:
            place = Place("metadata", ns, checkpoint_id, "writes")
            self.documents[place] = Document(metadata["writes"], _inline)
        for channel in metadata.get(DELTA_COUNTERS) or ():
            self.delta.add((ns, channel))
        parents, step = metadata.get(PARENTS), metadata.get(STEP)
        self.checkpoints[ns, checkpoint_id] = Checkpoint(
            ns=ns,
            id=checkpoint_id,
            parent=parent,
            moment=moment(time_of_saved(checkpoint_id, checkpoint.get("ts"))),
            root=parents.get(ROOT) if isinstance(parents, Mapping) else None,
            step=step if isinstance(step, int) else None,
            source=metadata.get(SOURCE),
            values=values,
        )

    def finish(self) -> Self:
        """Tie the rows together, once all are in."""
        for checkpoint in self.checkpoints.values():
            if parent := self.checkpoints.get((checkpoint.ns, checkpoint.parent or "")):
                parent.children.append(checkpoint.id)
        for checkpoint in self.checkpoints.values():
            # A run that is saved at its end only begins with a row that names no caller.
            if checkpoint.ns and checkpoint.root is None and checkpoint.children:
                checkpoint.root = self.checkpoints[checkpoint.ns, checkpoint.children[0]].root
        for place in self._orphans:
            key = (place.ns, place.holder)
            holder = self.checkpoints.get(key) or self.lost.get(key)
            if holder is None:
                holder = self.lost[key] = _lost(*key)
            holder.writes.append(place)
        for place, document in self.documents.items():
            if place.kind in {"blob", "inline"} and is_snapshot(document.tree):
                self.delta.add((place.ns, place.channel))
        for checkpoint in (*self.checkpoints.values(), *self.lost.values()):
            checkpoint.writes.sort(key=lambda place: (place.path, place.task, place.idx))
        return self

    def namespaces(self) -> dict[str, list[Checkpoint]]:
        """The checkpoints of each namespace, oldest first."""
        found: dict[str, list[Checkpoint]] = {}
        for key in sorted(self.checkpoints):
            found.setdefault(key[0], []).append(self.checkpoints[key])
        return found

    def owners(self) -> dict[Place, list[Checkpoint]]:
        """The checkpoints that need each stored value."""
        found: dict[Place, list[Checkpoint]] = {}
        for checkpoint in self.checkpoints.values():
            for place in (*checkpoint.values.values(), *checkpoint.writes):
                found.setdefault(place, []).append(checkpoint)
        return found

    def fingerprint(self) -> tuple[Any, ...]:
        """What changes when anybody saves to the thread: its rows, counted, and its heads."""
        heads = {ns: rows[-1].id for ns, rows in self.namespaces().items()}
        writes = sum(1 for place in (*self.documents, *self.unreadable) if place.kind == "write")
        return (len(self.checkpoints), writes, tuple(sorted(heads.items())))


def _lost(ns: str, checkpoint_id: str) -> Checkpoint:
    """A checkpoint of which nothing is known but its id, which tells when its run began it."""
    return Checkpoint(
        ns=ns,
        id=checkpoint_id,
        parent=None,
        moment=moment(time_of_saved(checkpoint_id, None)),
        root=None,
        step=None,
        source=None,
        values={},
    )


def _inline(tree: Any) -> tuple[str, bytes]:
    raise TypeError("a value inside a row is written back with the row")


def waits(writes: Iterable[Place]) -> bool:
    """Whether the writes of a checkpoint say that a task waits for a human's answer."""
    return waits_for_human((place.task, place.channel) for place in writes)
