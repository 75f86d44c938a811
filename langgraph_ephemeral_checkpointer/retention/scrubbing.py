"""What of a stored thread goes when old exchanges go. Pure: an image in, changes out.

Three kinds of places hold what was said in an exchange:

- the channels that hold conversations, at every checkpoint: they lose the exchange;
- the writes that led to those values, which for a DeltaChannel are the value itself: they
  lose its messages;
- what a step left behind: its input, the tasks it sent, interrupts and the answers to them.
  These hold text in any form, so they are emptied where the exchange they belong to goes,
  and elsewhere they lose the messages that go.

A step belongs to the exchange that is in progress at the checkpoint it led to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from .exchanges import HUMAN, NO_ID, Facts, digest_of, last_opening, opening, split, verdicts
from .folding import aligned, merge, messages_in, name_in, named_in
from .image import END, START, TASKS, Checkpoint, Place, ThreadImage, waits
from .payloads import (
    conversation,
    is_overwrite,
    is_snapshot,
    keep_items,
    keep_written,
    picked,
    scrub,
    taken,
    without_gone,
    written,
)
from .unheard import unheard_in

REMOVE = object()
"""In place of a new value: the place is emptied."""

_SYSTEM = "system"
STEP_CHANNELS = frozenset({START, END, TASKS, "__return__", "__interrupt__", "__resume__"})
"""What a step leaves behind: input and output, tasks and their results, questions, answers."""


@dataclasses.dataclass(slots=True)
class Outcome:
    """What to do about a thread."""

    changes: dict[Place, Any]
    """The new tree of each place that changes, or ``REMOVE``."""
    going: dict[str, Any]
    """The messages that go, by key, each as the node of a tree."""
    untrimmed: dict[str, str]
    """Why a channel was not trimmed, by channel."""
    unknown_age: bool = False
    """Whether an exchange stays because nothing tells how old it is."""
    interrupted: bool = False
    """Whether an exchange that is old enough stays because an interrupt waits for it."""


def decide(
    image: ThreadImage, cutoff: datetime, channels: Collection[str] | None = None
) -> Outcome:
    """Decide what goes from a stored thread.

    Args:
        image: The thread.
        cutoff: Exchanges that began before this moment go.
        channels: The channels to look at; None means every one that holds conversations.

    Returns:
        The changes, and what could not be done.
    """
    return _Scrubbing(image, cutoff, channels).outcome()


@dataclasses.dataclass(slots=True)
class _Version:
    """A conversation as one checkpoint has it."""

    checkpoint: Checkpoint
    channel: str
    facts: list[Facts]
    place: Place | None
    goes: list[bool] = dataclasses.field(default_factory=list)


class _Scrubbing:
    def __init__(
        self, image: ThreadImage, cutoff: datetime, channels: Collection[str] | None
    ) -> None:
        self.image = image
        self.cutoff = cutoff
        self.channels = channels
        self.namespaces = image.namespaces()
        self.result = Outcome({}, {}, {})
        self.versions: dict[tuple[str, str], dict[str, _Version]] = {}
        self.dead: set[tuple[str, str]] = set()
        self.over: set[tuple[str, str]] = set()
        self.unheard: dict[Place, dict[str, Any]] = {}
        self.chatting: set[str] = set()

    def outcome(self) -> Outcome:
        for ns, rows in self.namespaces.items():
            talking, held = self._conversations(ns, rows)
            for channel in talking:
                self._collect(ns, rows, channel)
            unheard = unheard_in(self.image, rows, held, self.channels)
            self.unheard |= unheard
            if unheard or talking:
                self.chatting.add(ns)
        born = self._ages()
        protected = self._protected()
        self._judge("", born, protected)
        self.dead = {(row.ns, row.id) for row in self.namespaces.get("", ()) if self._is_dead(row)}
        for ns in self.namespaces:
            if ns:
                self._judge(ns, born, protected, whole=self._is_dead_call(ns))
        for ns, rows in self.namespaces.items():
            whole = self._is_dead_call(ns)
            self.dead |= {(ns, row.id) for row in rows if whole or self._is_dead(row)}
            self.over |= {(ns, row.id) for row in rows if whole or self._exchange_goes(row)}
        self._gather()
        self._change()
        return self.result

    # -- the conversations of every checkpoint -----------------------------------------

    def _conversations(self, ns: str, rows: list[Checkpoint]) -> tuple[set[str], dict[str, bool]]:
        """The channels of a namespace that hold lists of messages and nothing else.

        With them come all channels that hold anything, and whether that is messages.
        """
        holding, other = set(), set()
        for row in rows:
            for channel, place in row.values.items():
                if place in self.image.unreadable:
                    self._untrimmed(ns, channel, str(self.image.unreadable[place]))
                    other.add(channel)
                    continue
                facts = conversation(self.image.documents[place].tree)
                if facts is None:
                    other.add(channel)
                elif facts:
                    holding.add(channel)
            for place in row.writes:
                if (ns, place.channel) not in self.image.delta or place.channel in holding:
                    continue
                document = self.image.documents.get(place)
                if document and any(fact.role != "remove" for fact in messages_in(document.tree)):
                    holding.add(place.channel)
        found = holding - other - STEP_CHANNELS
        held = {channel: channel in found for channel in holding | other}
        return (found if self.channels is None else found & set(self.channels)), held

    def _collect(self, ns: str, rows: list[Checkpoint], channel: str) -> None:
        delta = (ns, channel) in self.image.delta
        versions: dict[str, _Version] = {}
        for row in rows:
            place = row.values.get(channel)
            folded = self._folded(row, channel, versions) if delta else None
            if place is not None:
                facts = conversation(self.image.documents[place].tree) or []
                if delta:
                    facts = aligned(facts, folded or [], row.id)
                if folded is not None and not self._explains(row, channel, folded, facts):
                    reason = "its reducer does more than to merge messages by their ids"
                    self._untrimmed(ns, channel, reason)
                    return
            elif folded is not None:
                facts = folded
            else:
                continue
            versions[row.id] = _Version(row, channel, facts, place)
        if delta and any(
            place in self.image.unreadable
            for row in rows
            for place in row.writes
            if place.channel == channel
        ):
            self._untrimmed(ns, channel, "a write to it could not be read")
            return
        for row_id, version in versions.items():
            self.versions.setdefault((ns, row_id), {})[channel] = version

    def _folded(
        self, row: Checkpoint, channel: str, versions: Mapping[str, _Version]
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
        if not any(place.channel == channel for place in before.writes):
            return True  # saved at the end of a run only, which stores no writes beside it
        order = iter(fact.key for fact in folded)
        return all(fact.key in order for fact in stored)

    def _untrimmed(self, ns: str, channel: str, reason: str) -> None:
        name = f"{ns}/{channel}" if ns else channel
        if self.channels is None or channel in self.channels:
            self.result.untrimmed[name] = reason

    # -- ages ---------------------------------------------------------------------------

    def _ages(self) -> dict[str, datetime]:
        """When each message was first saved.

        That is the oldest stamp on any copy of it, else the time of the oldest checkpoint
        that holds it.
        """
        stamps: dict[str, datetime] = {}
        held: dict[str, datetime] = {}
        ambiguous = set()
        for versions in self.versions.values():
            for version in versions.values():
                moment = version.checkpoint.moment
                for fact in version.facts:
                    if "/" in fact.key and "@" not in fact.key and (said := digest_of(fact.key)):
                        # Two messages say the same and have no id: which of them an older
                        # checkpoint holds, nobody can tell.
                        ambiguous |= {fact.key, said}
                    if fact.stamp is not None and not digest_of(fact.key):
                        stamps[fact.key] = min(fact.stamp, stamps.get(fact.key, fact.stamp))
                    elif fact.stamp is None and moment is not None:
                        held[fact.key] = min(moment, held.get(fact.key, moment))
        return {key: at for key, at in held.items() if key not in ambiguous} | stamps

    # -- exchanges ----------------------------------------------------------------------

    def _protected(self) -> set[str]:
        """The messages whose exchange a pending interrupt will resume."""
        protected: set[str] = set()
        for ns, rows in self.namespaces.items():
            if self._waits(ns):
                for version in self.versions.get((ns, rows[-1].id), {}).values():
                    if key := last_opening(version.facts):
                        protected.add(key)
        return protected

    def _waits(self, ns: str) -> bool:
        """Whether a pending interrupt will resume what is going on in a namespace.

        An interrupt inside a subgraph is mirrored at the root's head. One that is not was
        given up: the thread went on without an answer. Where the root's checkpoint is not
        stored, it may still be on its way, and the subgraph's own tells.
        """
        head, root = self.namespaces[ns][-1], self.namespaces.get("", [])
        if ns and ("", head.root or "") not in self.image.checkpoints:
            return waits(head.writes)
        return (head.root if ns else head.id) == root[-1].id and waits(root[-1].writes)

    def _judge(
        self,
        ns: str,
        born: Mapping[str, datetime],
        protected: Collection[str],
        *,
        whole: bool = False,
    ) -> None:
        """Decide which messages go, at every checkpoint of a namespace."""
        by_channel: dict[str, list[_Version]] = {}
        for row in self.namespaces.get(ns, ()):
            for channel, version in self.versions.get((ns, row.id), {}).items():
                by_channel.setdefault(channel, []).append(version)
        for channel, versions in by_channel.items():
            for version in versions:
                facts = version.facts
                if whole:
                    version.goes = [fact.role != _SYSTEM for fact in facts]
                    continue
                version.goes = verdicts(facts, self.cutoff, born=born, protected=protected)
                bare = verdicts(facts, self.cutoff, born=born)
                self.result.interrupted |= bare != version.goes
                openings = (opening(facts, exchange) for exchange in split(facts))
                self.result.unknown_age |= any(
                    first and first.key not in born for first in openings
                )
            if (ns, channel) in self.image.delta and not whole:
                self._agree(versions, born, protected)

    def _agree(
        self, versions: list[_Version], born: Mapping[str, datetime], protected: Collection[str]
    ) -> None:
        """Let a message that stays in one version of a delta channel stay in all of them.

        The versions share their writes, so a message is in all of them or in none; and with
        a message its whole exchange stays.
        """
        held = set(protected)
        while True:
            go, stay = _sorted_out(versions)
            if not go & stay:
                return
            held |= go & stay
            for version in versions:
                version.goes = verdicts(version.facts, self.cutoff, born=born, protected=held)

    def _is_dead(self, row: Checkpoint) -> bool:
        """Whether the exchange that the step after this checkpoint belongs to goes."""
        if row.children:
            return all(
                self._exchange_goes(self.image.checkpoints[row.ns, child]) for child in row.children
            )
        old = row.moment is not None and row.moment < self.cutoff
        return old and not waits(row.writes) and self._exchange_goes(row)

    def _exchange_goes(self, row: Checkpoint) -> bool:
        versions = self.versions.get((row.ns, row.id), {}).values()
        talking = [version for version in versions if version.facts]
        if talking:
            return all(_last_goes(version) for version in talking)
        if row.ns not in self.chatting:
            return False
        if row.moment is None:
            self.result.unknown_age = True
            return False
        old = row.moment < self.cutoff
        if old and self._waits(row.ns) and not self._talks(row.ns):
            self.result.interrupted = True  # and no conversation tells what it waits in
            return False
        return old

    def _talks(self, ns: str) -> bool:
        """Whether any checkpoint of a namespace holds a message."""
        return any(
            version.facts
            for row in self.namespaces[ns]
            for version in self.versions.get((ns, row.id), {}).values()
        )

    def _is_dead_call(self, ns: str) -> bool:
        """Whether the rows of one call of a subgraph belong to a step whose exchange goes."""
        if ":" not in ns:
            return False  # a subgraph with a memory of its own, which outlives the call
        roots = {row.root for row in self.namespaces[ns]}
        return all(root is not None and ("", root) in self.dead for root in roots)

    # -- changes ------------------------------------------------------------------------

    def _gather(self) -> None:
        """The messages that go from somewhere and stay nowhere."""
        go, stay = _sorted_out(
            version for versions in self.versions.values() for version in versions.values()
        )
        self.gone = go - stay
        # A copy elsewhere of a message without an id is known by its words alone.
        self.gone_words = {digest_of(key) for key in go} - {digest_of(key) for key in stay}

    def _change(self) -> None:
        owners = self.image.owners()
        done: set[Place] = set()
        for versions in self.versions.values():
            for version in versions.values():
                place = version.place
                if place is None or place in done or not any(version.goes):
                    continue
                done.add(place)
                tree = self.image.documents[place].tree
                self._going(picked(tree, version.goes), version)
                self.result.changes[place] = keep_items(tree, version.goes)
        for place, document in self.image.documents.items():
            holders = owners.get(place, [])
            if place.kind in {"sends", "metadata"}:
                holders = [self.image.checkpoints[place.ns, place.holder]]
            # An output belongs to the exchange it ended, all else to the one it led to.
            ended = self.dead if place.channel != END or place.kind == "write" else self.over
            dead = bool(holders) and all((row.ns, row.id) in ended for row in holders)
            if place not in done:
                self._change_place(place, document.tree, holders, dead=dead)

    def _change_place(
        self, place: Place, tree: Any, holders: list[Checkpoint], *, dead: bool
    ) -> None:
        if place.channel in STEP_CHANNELS or place.kind in {"sends", "metadata"}:
            if dead:
                if all(self._led_nowhere(row) for row in holders):
                    self._hand_over(self.unheard.get(place, {}))
                self.result.changes[place] = REMOVE
                return
            left = without_gone(scrub(tree, self._is_gone))
        elif place.kind == "write" and (place in self.unheard or self._is_conversation(place)):
            if dead and not holders[0].children:
                left = self._pending(place, tree, holders[0])
            else:
                left = self._written(place, tree, dead=dead)
        else:
            return
        if left is not tree:
            self.result.changes[place] = left

    def _is_conversation(self, place: Place) -> bool:
        return any(
            ns == place.ns and place.channel in versions
            for (ns, _), versions in self.versions.items()
        )

    def _written(self, place: Place, tree: Any, *, dead: bool) -> Any:
        if (place.ns, place.channel) in self.image.delta:
            # By name, as the orders to remove a message that goes must go with it.
            self._hand_over(taken(tree, lambda fact: name_in(fact, place) in self.gone))
            return keep_written(tree, lambda fact: name_in(fact, place) not in self.gone)
        if not dead:
            self._hand_over(taken(tree, self._is_gone))
            return keep_written(tree, lambda fact: not self._is_gone(fact))
        # The next checkpoint has what this write did, without what goes. Its messages may
        # have got their ids only after it was stored, so all of them go.
        self._hand_over(
            taken(tree, lambda fact: fact.role != _SYSTEM and not fact.key.startswith(NO_ID))
        )
        return keep_written(tree, lambda fact: fact.role == _SYSTEM, others_stay=False)

    def _led_nowhere(self, row: Checkpoint) -> bool:
        """Whether no message came of the step after a checkpoint."""
        return not any(
            version.facts
            for child in row.children
            for version in self.versions.get((row.ns, child), {}).values()
        )

    def _pending(self, place: Place, tree: Any, row: Checkpoint) -> Any:
        """What stays of a write that no checkpoint has the result of.

        Up to the first human message it belongs to the exchange in progress, which goes. A
        human message opens one of its own, and may have come long after the checkpoint: its
        age is known by its stamp, or where the checkpoint's own input says the same.
        """
        asked = {
            key
            for source in row.values.values()
            if source.channel == START
            for key in self.unheard.get(source, {})
        }
        going: set[str] = set()
        goes = True
        for fact in written(tree):
            if fact.role in HUMAN:
                known = fact.stamp or (row.moment if fact.key in asked else None)
                self.result.unknown_age |= known is None
                goes = known is not None and known < self.cutoff
            if goes and fact.role != _SYSTEM:
                going.add(fact.key)
        self._hand_over(taken(tree, lambda fact: fact.key in going))
        return keep_written(tree, lambda fact: fact.key not in going)

    def _is_gone(self, fact: Facts) -> bool:
        said = digest_of(fact.key)
        return said in self.gone_words if said else fact.key in self.gone

    def _hand_over(self, nodes: Mapping[str, Any]) -> None:
        for key, node in nodes.items():
            self.result.going.setdefault(key, node)

    def _going(self, nodes: list[Any], version: _Version) -> None:
        keys = [fact.key for fact, gone in zip(version.facts, version.goes, strict=True) if gone]
        for key, node in zip(keys, nodes, strict=True):
            self.result.going[key] = node


def _sorted_out(versions: Iterable[_Version]) -> tuple[set[str], set[str]]:
    """The messages that go from some version, and those that stay in some version."""
    go: set[str] = set()
    stay: set[str] = set()
    for version in versions:
        for fact, gone in zip(version.facts, version.goes, strict=True):
            (go if gone else stay).add(fact.key)
    return go, stay


def _last_goes(version: _Version) -> bool:
    last = split(version.facts)[-1]
    verdict = [version.goes[index] for index in last if version.facts[index].role != _SYSTEM]
    return bool(verdict) and all(verdict)
