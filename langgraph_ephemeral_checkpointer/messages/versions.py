"""The conversations of a stored thread, as each of its checkpoints has them. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import takewhile
from typing import Any
from uuid import UUID, uuid5

from langgraph_ephemeral_checkpointer.langgraph_names import INTERRUPT, RUN_CHANNELS
from langgraph_ephemeral_checkpointer.messages.exchanges import Facts, digest_of
from langgraph_ephemeral_checkpointer.messages.folding import aligned, merge, messages_in, named_in
from langgraph_ephemeral_checkpointer.messages.image import (
    Checkpoint,
    Place,
    ThreadImage,
    waits,
)
from langgraph_ephemeral_checkpointer.messages.payloads import (
    conversation,
    holds_messages,
    is_overwrite,
    is_snapshot,
    written,
)

CUSTOMARY = "messages"
"""The channel in which a plain text, or a pair of a role and a text, is taken for a message."""


@dataclasses.dataclass(slots=True)
class Version:
    """A conversation as one checkpoint has it."""

    checkpoint: Checkpoint
    channel: str
    facts: list[Facts]
    place: Place | None
    goes: list[bool] = dataclasses.field(default_factory=list)


class Versions:
    """Every version of every conversation in a thread.

    Args:
        image: The thread.
        channels: The channels to look at; None means every one that holds conversations.
    """

    def __init__(self, image: ThreadImage, channels: Collection[str] | None) -> None:
        self.image = image
        self.channels = channels
        self.found: dict[tuple[str, str], dict[str, Version]] = {}
        """By (namespace, checkpoint id) and channel."""
        self.untrimmed: dict[str, str] = {}
        """Why a channel is left alone, by channel."""
        self.channels_seen: set[str] = set()
        """Every channel that holds anything."""

    def collect(self, ns: str, rows: list[Checkpoint]) -> dict[str, bool]:
        """Take in the conversations of a namespace.

        Returns:
            The channels that hold anything there, and whether that is a conversation to look
            at: a list of messages and of nothing else, at every checkpoint.
        """
        held = self._conversations(ns, rows)
        self.channels_seen.update(held)
        for channel in filter(held.get, held):
            self._collect(ns, rows, channel)
        return held

    def _conversations(self, ns: str, rows: list[Checkpoint]) -> dict[str, bool]:
        holding, other = set(), set()
        for row in rows:
            for channel, place in row.values.items():
                if place in self.image.unreadable:
                    self._leave(ns, channel, str(self.image.unreadable[place]))
                    other.add(channel)
                    continue
                tree = self.image.documents[place].tree
                if tree is None:
                    continue  # nothing yet, or nothing more: no value of another kind
                facts = conversation(tree)
                if facts is None:
                    other.add(channel)
                elif facts:
                    holding.add(channel)
            for place in row.writes:
                document = self.image.documents.get(place)
                if document is None or (ns, place.channel) not in self.image.delta:
                    continue
                said = self._is_said(place.channel, document.tree)
                if said is None:
                    other.add(place.channel)
                elif said:
                    holding.add(place.channel)
        found = holding - other - RUN_CHANNELS
        if self.channels is not None:
            found &= set(self.channels)
        return {channel: channel in found for channel in holding | other}

    def _is_said(self, channel: str, tree: Any) -> bool | None:
        """Whether a write to a delta channel has messages; None where that can be no conversation.

        Before the first snapshot the writes are all there is to tell the channel by. Texts and
        dicts may stand for messages, and may as well be an application's log.
        """
        if channel == CUSTOMARY or self.channels is not None:
            return any(fact.role != "remove" for fact in messages_in(tree))
        return holds_messages(tree)

    def _collect(self, ns: str, rows: list[Checkpoint], channel: str) -> None:
        delta = (ns, channel) in self.image.delta
        lost = self._lost(ns, channel) if delta else []
        versions: dict[str, Version] = {}
        for row in rows:
            place = row.values.get(channel)
            folded = self._folded(row, channel, versions) if delta else None
            if place is not None:
                facts = conversation(self.image.documents[place].tree) or []
                if folded is not None:
                    folded = [*lost, *folded]
                if delta:
                    facts = aligned(facts, folded or [], row.id)
                if folded is not None and not self._explains(row, channel, folded, facts):
                    reason = "its reducer does more than to merge messages by their ids"
                    self._leave(ns, channel, reason)
                    return
            elif folded is not None:
                facts = folded
            else:
                continue
            versions[row.id] = Version(row, channel, facts, place)
        if delta and any(
            place in self.image.unreadable
            for row in rows
            for place in row.writes
            if place.channel == channel
        ):
            self._leave(ns, channel, "a write to it could not be read")
            return
        for row_id, version in versions.items():
            self.found.setdefault((ns, row_id), {})[channel] = version

    def _folded(
        self, row: Checkpoint, channel: str, versions: Mapping[str, Version]
    ) -> list[Facts] | None:
        """A delta channel's value as the parent's value and the writes on it make it."""
        parent = self.image.checkpoints.get((row.ns, row.parent or ""))
        if parent is None:
            return [] if row.parent is None else None
        before = versions.get(parent.id)
        facts = list(before.facts) if before else []
        for place in parent.writes:
            document = self.image.documents.get(place)
            if place.channel == channel and document is not None:
                if is_overwrite(document.tree):
                    facts = []
                facts = merge(facts, named_in(written(document.tree), place))
        return facts

    def _lost(self, ns: str, channel: str) -> list[Facts]:
        """What was written to checkpoints that are not stored.

        A run whose first input is a Command stores the channel with its update in it, but
        not the checkpoint that the update is written to.
        """
        return [
            fact
            for (lost_ns, _), row in sorted(self.image.lost.items())
            if lost_ns == ns
            for place in row.writes
            if place.channel == channel and (document := self.image.documents.get(place))
            for fact in named_in(written(document.tree), place)
        ]

    def _explains(
        self, row: Checkpoint, channel: str, folded: list[Facts], stored: list[Facts]
    ) -> bool:
        """Whether a snapshot holds nothing that merging by ids would not have, in that order.

        It may hold less: a save trims snapshots and leaves the writes before them alone.
        """
        before = self.image.checkpoints[row.ns, row.parent or ""] if row.parent else None
        source = before.values.get(channel) if before else None
        if source is not None and not is_snapshot(self.image.documents[source].tree):
            return True  # of a time when the channel was no delta channel; writes had no ids
        if before is None or len(before.children) > 1:
            return True  # a fork: what is written on its parent belongs to another branch
        if before.step is not None and row.step not in (None, before.step + 1):
            return True  # saved at the end of a run only: what its other steps wrote is not stored
        if waits(before.writes):
            return True  # the same: what answered the question there wrote nothing that is stored
        if not any(place.channel == channel for place in before.writes):
            return True  # the same, where nothing tells the steps
        keys = [fact.key for fact in stored]
        if row.source in {"update", "fork"} and not _stores_its_own(before, channel):
            # It began a branch: it is stored whole, and the writes on its parent are of another
            # branch. So what it adds at the end proves nothing.
            known = {fact.key for fact in folded}
            old = list(takewhile(known.__contains__, keys))
            if (old or not folded) and known.isdisjoint(keys[len(old) :]):
                keys = old
        order = iter(fact.key for fact in folded)
        return all(key in order for key in keys)

    def _leave(self, ns: str, channel: str, reason: str) -> None:
        name = f"{ns}/{channel}" if ns else channel
        if self.channels is None or channel in self.channels:
            self.untrimmed[name] = reason

    def ages(self) -> dict[str, datetime]:
        """When each message was first saved.

        That is the oldest stamp on any copy of it, else the time of the oldest checkpoint
        that holds it.
        """
        stamps: dict[str, datetime] = {}
        held: dict[str, datetime] = {}
        ambiguous = set()
        for versions in self.found.values():
            for version in versions.values():
                moment = version.checkpoint.moment
                # Two messages with one id: each has an age of its own, by its own stamp.
                ambiguous |= repeated(version.facts)
                for fact in version.facts:
                    if "/" in fact.key and "@" not in fact.key and (said := digest_of(fact.key)):
                        # Two messages say the same and have no id: which of them an older
                        # checkpoint holds, nobody can tell.
                        ambiguous |= {fact.key, said}
                    if fact.stamp is not None and not digest_of(fact.key):
                        stamps[fact.key] = min(fact.stamp, stamps.get(fact.key, fact.stamp))
                    elif fact.stamp is None and moment is not None:
                        held[fact.key] = min(moment, held.get(fact.key, moment))
        return {key: at for key, at in (held | stamps).items() if key not in ambiguous}


def _stores_its_own(parent: Checkpoint, channel: str) -> bool:
    """Whether an update of a checkpoint has left its writes to a channel there.

    LangGraph derives the id of the task they are stored under from the checkpoint's.
    """
    try:
        task = str(uuid5(UUID(parent.id), INTERRUPT))
    except ValueError:
        return True  # no id of LangGraph's: nothing tells
    return any(place.channel == channel and place.task == task for place in parent.writes)


def repeated(facts: list[Facts]) -> set[str]:
    """The keys that more than one message of a conversation has."""
    counts = Counter(fact.key for fact in facts)
    return (
        {key for key, count in counts.items() if count > 1} if len(counts) < len(facts) else set()
    )
