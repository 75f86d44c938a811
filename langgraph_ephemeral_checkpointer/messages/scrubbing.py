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

from langgraph_ephemeral_checkpointer.decisions.survivors import is_call
from langgraph_ephemeral_checkpointer.langgraph_names import END, RUN_CHANNELS, START
from langgraph_ephemeral_checkpointer.messages.exchanges import (
    HUMAN,
    NO_ID,
    Facts,
    Identity,
    dated,
    digest_of,
    identity,
    is_young,
    opening,
    openings_in_progress,
    split,
    verdicts,
)
from langgraph_ephemeral_checkpointer.messages.folding import name_in
from langgraph_ephemeral_checkpointer.messages.image import (
    Checkpoint,
    Place,
    ThreadImage,
    waits,
)
from langgraph_ephemeral_checkpointer.messages.payloads import (
    keep_items,
    keep_written,
    picked,
    taken,
    written,
)
from langgraph_ephemeral_checkpointer.messages.taking import GONE, scrub, without_gone
from langgraph_ephemeral_checkpointer.messages.unheard import unheard_in
from langgraph_ephemeral_checkpointer.messages.versions import Version, Versions

REMOVE = object()
"""In place of a new value: the place is emptied."""

_SYSTEM = "system"


@dataclasses.dataclass(slots=True)
class Scrub:
    """What a purge changes in one thread."""

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
    going_on: bool = False
    """Whether an exchange that began long ago stays because not all of it is old."""
    channels_seen: set[str] = dataclasses.field(default_factory=set)
    """Every channel that holds anything."""


def decide(image: ThreadImage, cutoff: datetime, channels: Collection[str] | None = None) -> Scrub:
    """Decide what goes from a stored thread.

    Args:
        image: The thread.
        cutoff: Exchanges that are older than this moment, with all their messages, go.
        channels: The channels to look at; None means every one that holds conversations.

    Returns:
        The changes, and what could not be done.
    """
    return _Scrubbing(image, cutoff, channels).scrub()


class _Scrubbing:
    def __init__(
        self, image: ThreadImage, cutoff: datetime, channels: Collection[str] | None
    ) -> None:
        self.image = image
        self.cutoff = cutoff
        self.channels = channels
        self.namespaces = image.namespaces()
        self.history = Versions(image, channels)
        self.versions = self.history.found
        self.result = Scrub(
            {}, {}, self.history.untrimmed, channels_seen=self.history.channels_seen
        )
        self.dead: set[tuple[str, str]] = set()
        self.over: set[tuple[str, str]] = set()
        self.unheard: dict[Place, dict[str, Any]] = {}
        self.chatting: set[str] = set()
        self.protected: set[str] = set()
        self.born: dict[str, datetime] = {}
        self.lasting: set[Identity] = set()

    def scrub(self) -> Scrub:
        for ns, rows in self.namespaces.items():
            held = self.history.collect(ns, rows)
            lost = [row for row in self.image.lost.values() if row.ns == ns]
            unheard = unheard_in(self.image, [*rows, *lost], held, self.channels)
            self.unheard |= unheard
            if unheard or any(held.values()):
                self.chatting.add(ns)
        self.born = born = self.history.ages()
        for versions in self.versions.values():
            for version in versions.values():
                version.facts = dated(version.facts, born)
        self.protected = self._protected()
        self.lasting = self._lasting()
        self._judge("")
        self.dead = {(row.ns, row.id) for row in self.namespaces.get("", ()) if self._is_dead(row)}
        for ns in self.namespaces:
            if ns:
                self._judge(ns, whole=self._is_dead_call(ns))
        for ns, rows in self.namespaces.items():
            whole = self._is_dead_call(ns)
            self.dead |= {(ns, row.id) for row in rows if whole or self._is_dead(row)}
            self.over |= {(ns, row.id) for row in rows if whole or self._exchange_goes(row)}
        self.conversations = {
            (ns, channel) for (ns, _), versions in self.versions.items() for channel in versions
        }
        self._gather()
        self._change()
        return self.result

    # -- exchanges ----------------------------------------------------------------------

    def _protected(self) -> set[str]:
        """The messages whose exchange a pending interrupt will resume."""
        protected: set[str] = set()
        for ns, rows in self.namespaces.items():
            if self._waits(ns):
                for version in self.versions.get((ns, rows[-1].id), {}).values():
                    protected |= openings_in_progress(version.facts)
        return protected

    def _lasting(self) -> set[Identity]:
        """The exchanges that have a young message in any version, or at work in their last step.

        An older version, which lacks it, stays as well: it is the same exchange.
        """
        lasting: set[Identity] = set()
        called = {
            self.image.checkpoints[ns, row_id].root
            for (ns, row_id), versions in self.versions.items()
            if ns
            and any(
                is_young(fact, self.cutoff)
                for version in versions.values()
                for fact in version.facts
            )
        }
        for (ns, row_id), versions in self.versions.items():
            row = self.image.checkpoints[ns, row_id]
            at_work = not row.children and (
                (not ns and row_id in called) or self._is_worked_on(row)
            )
            for version in versions.values():
                exchanges = split(version.facts)
                for exchange in exchanges:
                    facts = (version.facts[index] for index in exchange)
                    young = any(is_young(fact, self.cutoff) for fact in facts)
                    name = identity(version.facts, exchange)
                    if name and (young or (at_work and exchange is exchanges[-1])):
                        lasting.add(name)
        return lasting

    def _is_worked_on(self, row: Checkpoint) -> bool:
        """Whether the step after a checkpoint has written a young message of its exchange.

        A human message opens an exchange of its own.
        """
        for place in row.writes:
            if (document := self.image.documents.get(place)) is None:
                continue
            for fact in written(document.tree):
                if fact.role in HUMAN:
                    break
                if is_young(fact, self.cutoff):
                    return True
        return False

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

    def _judge(self, ns: str, *, whole: bool = False) -> None:
        """Decide which messages go, at every checkpoint of a namespace."""
        by_channel: dict[str, list[Version]] = {}
        for row in self.namespaces.get(ns, ()):
            for channel, version in self.versions.get((ns, row.id), {}).items():
                by_channel.setdefault(channel, []).append(version)
        for channel, versions in by_channel.items():
            for version in versions:
                if whole:
                    version.goes = [fact.role != _SYSTEM for fact in version.facts]
                else:
                    version.goes = self._verdicts(version, self.protected)
            if (ns, channel) in self.image.delta and not whole:
                self._agree(versions)
            for version in versions:
                self._explain(version)

    def _verdicts(self, version: Version, protected: Collection[str]) -> list[bool]:
        return verdicts(
            version.facts,
            self.cutoff,
            protected=protected,
            lasting=self.lasting,
        )

    def _agree(self, versions: list[Version]) -> None:
        """Let a message that stays in one version of a delta channel stay in all of them.

        The versions share their writes, so a message is in all of them or in none; and with
        a message its whole exchange stays.
        """
        held = set(self.protected)
        while True:
            go, stay = _sorted_out(versions)
            if not go & stay:
                return
            held |= go & stay
            for version in versions:
                version.goes = self._verdicts(version, held)

    def _explain(self, version: Version) -> None:
        """Note why exchanges stay that may seem to be old enough."""
        facts, goes = version.facts, version.goes
        if self.protected and not all(goes):
            self.result.interrupted |= self._verdicts(version, ()) != self._verdicts(
                version, self.protected
            )
        for exchange in split(facts):
            first = opening(facts, exchange)
            if first is None:
                continue
            self.result.unknown_age |= first.stamp is None
            old = first.stamp is not None and first.stamp < self.cutoff
            self.result.going_on |= old and not any(goes[index] for index in exchange)

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
        talking = [version for version in versions if _says(version)]
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
        """Whether any checkpoint of a namespace holds a message that may go one day."""
        return any(
            _says(version)
            for row in self.namespaces[ns]
            for version in self.versions.get((ns, row.id), {}).values()
        )

    def _is_dead_call(self, ns: str) -> bool:
        """Whether the rows of one call of a subgraph belong to a step whose exchange goes."""
        if not is_call(ns):
            return False  # a subgraph with a memory of its own, which outlives the call
        roots = {row.root for row in self.namespaces[ns]}
        if not all(root is not None and ("", root) in self.dead for root in roots):
            return False
        return not any(
            is_young(fact, self.cutoff)
            for row in self.namespaces[ns]
            for version in self.versions.get((ns, row.id), {}).values()
            for fact in version.facts
        )

    # -- changes ------------------------------------------------------------------------

    def _gather(self) -> None:
        """The messages that go from somewhere and stay nowhere."""
        go, stay = _sorted_out(
            version for versions in self.versions.values() for version in versions.values()
        )
        self.gone = (go - stay) | (self._passing() - go - stay)
        self.stays = {digest_of(key) or key for key in stay}
        # A copy elsewhere of a message without an id is known by its words alone.
        self.gone_words = {digest_of(key) for key in go} - {digest_of(key) for key in stay}

    def _passing(self) -> set[str]:
        """What was written to delta channels and no checkpoint holds, and is old.

        A run that is saved at its end only may have taken it out again by then. It goes by
        its stamp, or with the exchange of its step; the order to take it out goes with it.
        """
        passing: set[str] = set()
        for row in filter(_is_over, self.image.checkpoints.values()):
            dead = (row.ns, row.id) in self.dead
            for place in row.writes:
                document = self.image.documents.get(place)
                delta = (place.ns, place.channel) in self.image.delta
                if document is None or not delta or not self._is_conversation(place):
                    continue
                for fact in written(document.tree):
                    old = dead if fact.stamp is None else fact.stamp < self.cutoff
                    if old and not fact.removes and fact.role != _SYSTEM:
                        passing.add(name_in(fact, place))
        return passing

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
            if place.kind == "write" and not holders:
                self._change_adrift(place, document.tree)
            elif place not in done:
                self._change_place(place, document.tree, holders, dead=dead)

    def _change_place(
        self, place: Place, tree: Any, holders: list[Checkpoint], *, dead: bool
    ) -> None:
        if place.channel in RUN_CHANNELS or place.kind in {"sends", "metadata"}:
            if dead:
                if all(self._led_nowhere(row) for row in holders):
                    self._hand_over(self.unheard.get(place, {}))
                self.result.changes[place] = REMOVE
                return
            if any(map(self._is_resumed, holders)):
                left = self._resumable(tree)
            else:
                left = without_gone(scrub(tree, self._is_past))
        elif place.kind == "write" and (place in self.unheard or self._is_conversation(place)):
            if dead and not holders[0].children:
                left = self._pending(place, tree, holders[0])
            else:
                left = self._written(place, tree, dead=dead)
        else:
            return
        if left is not tree:
            self.result.changes[place] = left

    def _is_resumed(self, row: Checkpoint) -> bool:
        """Whether an answer to a pending interrupt goes on from a checkpoint."""
        return row is self.namespaces[row.ns][-1] and self._waits(row.ns)

    def _resumable(self, tree: Any) -> Any:
        """What stays of the tasks and the question of a step that waits for an answer.

        The task that gets the answer, and the human who gives it, may rely on a message that
        they were given by itself; a list of messages may be shorter than it was.
        """
        left = scrub(tree, self._is_gone, alone=False)
        left = tree if left is GONE else left
        self.result.interrupted |= scrub(left, self._is_gone) is not left
        return left

    def _is_conversation(self, place: Place) -> bool:
        return (place.ns, place.channel) in self.conversations

    def _written(self, place: Place, tree: Any, *, dead: bool) -> Any:
        if (place.ns, place.channel) in self.image.delta:
            # By name, as the orders to remove a message that goes must go with it.
            self._hand_over(taken(tree, lambda fact: name_in(fact, place) in self.gone))
            return keep_written(tree, lambda fact: name_in(fact, place) not in self.gone)
        if not dead:
            summaries = self._old_summaries(tree)
            self._hand_over(taken(tree, self._is_gone))
            return keep_written(
                tree, lambda fact: not (self._is_gone(fact) or fact.key in summaries)
            )
        # The next checkpoint has what this write did, without what goes. Its messages may
        # have got their ids only after it was stored, so all of them go.
        self._hand_over(
            taken(tree, lambda fact: fact.role != _SYSTEM and not fact.key.startswith(NO_ID))
        )
        return keep_written(tree, lambda fact: fact.role == _SYSTEM, others_stay=False)

    def _old_summaries(self, tree: Any) -> set[str]:
        """The summaries in a young write that are old, which may have got their ids later."""
        facts = dated(written(tree), self.born)
        return {fact.key for fact in facts if fact.summary and not self._is_young(fact)}

    def _is_young(self, fact: Facts) -> bool:
        return fact.stamp is None or is_young(fact, self.cutoff)

    def _change_adrift(self, place: Place, tree: Any) -> None:
        """Change a write whose checkpoint is not stored, so that no run can read it.

        A run began that checkpoint and never stored it, has died, or will store it yet; or it
        was pruned. The write goes when the checkpoint is old by its id. Before, its messages go
        by their stamps alone: one is never older than its exchange.
        """
        row = self.image.lost[place.ns, place.holder]
        rows = self.namespaces.get(place.ns)
        if (not rows or rows[-1].id < row.id) and any(map(self._waits, self.namespaces)):
            return  # the checkpoint that is waited at may be on its way
        if row.moment is not None and row.moment < self.cutoff:
            self._change_place(place, tree, [row], dead=True)
            return

        def goes(fact: Facts) -> bool:
            old = fact.stamp is not None and fact.stamp < self.cutoff
            return (old and fact.role != _SYSTEM) or self._is_gone(fact)

        if place.channel in RUN_CHANNELS:
            left = without_gone(scrub(tree, goes))
        elif self._is_conversation(place):
            self._hand_over(taken(tree, goes))
            left = keep_written(tree, lambda fact: not goes(fact))
        else:
            return
        if left is not tree:
            self.result.changes[place] = left

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
        age is known by its stamp, or where the checkpoint's own input says the same. To one
        that is not stored only the run can have written that began it.
        """
        lost = (row.ns, row.id) in self.image.lost
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
                known = fact.stamp or (row.moment if lost or fact.key in asked else None)
                self.result.unknown_age |= known is None
                goes = known is not None and known < self.cutoff
            if goes and fact.role != _SYSTEM and not is_young(fact, self.cutoff):
                going.add(fact.key)
        self._hand_over(taken(tree, lambda fact: fact.key in going))
        return keep_written(tree, lambda fact: fact.key not in going)

    def _is_gone(self, fact: Facts) -> bool:
        said = digest_of(fact.key)
        return said in self.gone_words if said else fact.key in self.gone

    def _is_past(self, fact: Facts) -> bool:
        """Whether a message goes from a step that nothing will go on from.

        One that no channel holds any more goes by its own stamp, as it is never older than
        its exchange: an interrupt kept it when the channels lost it.
        """
        if self._is_gone(fact):
            return True
        old = fact.stamp is not None and fact.stamp < self.cutoff
        return old and fact.role != _SYSTEM and (digest_of(fact.key) or fact.key) not in self.stays

    def _hand_over(self, nodes: Mapping[str, Any]) -> None:
        for key, node in nodes.items():
            self.result.going.setdefault(key, node)

    def _going(self, nodes: list[Any], version: Version) -> None:
        keys = [fact.key for fact, gone in zip(version.facts, version.goes, strict=True) if gone]
        for key, node in zip(keys, nodes, strict=True):
            self.result.going[key] = node


def _sorted_out(versions: Iterable[Version]) -> tuple[set[str], set[str]]:
    """The messages that go from some version, and those that stay in some version."""
    go: set[str] = set()
    stay: set[str] = set()
    for version in versions:
        for fact, gone in zip(version.facts, version.goes, strict=True):
            (go if gone else stay).add(fact.key)
    return go, stay


def _is_over(row: Checkpoint) -> bool:
    """Whether the step after a checkpoint has led to another one."""
    return bool(row.children)


def _says(version: Version) -> bool:
    """Whether a conversation has more in it than rules for the model, which never go."""
    return any(fact.role != _SYSTEM for fact in version.facts)


def _last_goes(version: Version) -> bool:
    last = split(version.facts)[-1]
    return all(version.goes[index] for index in last if version.facts[index].role != _SYSTEM)
