"""What of a stored thread goes when old exchanges go. Pure: an image in, changes out.

Three kinds of places hold what was said in an exchange:

- the channels that hold conversations, at every checkpoint: they lose the exchange;
- the writes that led to those values, which for a DeltaChannel are the value itself: they
  lose its messages;
- what a step left behind: its input, the tasks it sent, interrupts and the answers to them.
  These hold text in any form, so they are emptied where the exchange they belong to goes,
  and elsewhere they lose the messages that go.

Which exchanges and which steps that are, ``judging`` decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from langgraph_ephemeral_checkpointer.langgraph_names import END, RUN_CHANNELS, START
from langgraph_ephemeral_checkpointer.messages.exchanges import (
    HUMAN,
    NO_ID,
    Facts,
    dated,
    digest_of,
    is_young,
)
from langgraph_ephemeral_checkpointer.messages.folding import name_in
from langgraph_ephemeral_checkpointer.messages.image import Checkpoint, Place, ThreadImage
from langgraph_ephemeral_checkpointer.messages.judging import Judgement, Reasons, sorted_out
from langgraph_ephemeral_checkpointer.messages.payloads import (
    keep_items,
    keep_written,
    picked,
    taken,
    written,
)
from langgraph_ephemeral_checkpointer.messages.taking import GONE, scrub, without_gone
from langgraph_ephemeral_checkpointer.messages.versions import Version

REMOVE = object()
"""In place of a new value: the place is emptied."""

_SYSTEM = "system"


@dataclasses.dataclass(slots=True)
class Scrub:
    """What to do about a thread."""

    changes: dict[Place, Any]
    """The new tree of each place that changes, or ``REMOVE``."""
    going: dict[str, Any]
    """The messages that go, by key, each as the node of a tree."""
    untrimmed: dict[str, str]
    """Why a channel was not trimmed, by channel."""
    reasons: Reasons
    """Why old messages stay."""
    channels_seen: set[str]
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
        self.judged = judged = Judgement(image, cutoff, channels)
        self.result = Scrub(
            {},
            {},
            judged.history.untrimmed,
            judged.reasons,
            judged.history.channels_seen,
        )

    def scrub(self) -> Scrub:
        self._gather()
        self._change()
        return self.result

    def _gather(self) -> None:
        """The messages that go from somewhere and stay nowhere."""
        go, stay = sorted_out(
            version for versions in self.judged.versions.values() for version in versions.values()
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
            dead = (row.ns, row.id) in self.judged.dead
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
        for versions in self.judged.versions.values():
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
            ended = (
                self.judged.dead
                if place.channel != END or place.kind == "write"
                else self.judged.over
            )
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
                    self._hand_over(self.judged.unheard.get(place, {}))
                self.result.changes[place] = REMOVE
                return
            if any(map(self._is_resumed, holders)):
                left = self._resumable(tree)
            else:
                left = without_gone(scrub(tree, self._is_past))
        elif place.kind == "write" and (
            place in self.judged.unheard or self._is_conversation(place)
        ):
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
        return row is self.judged.namespaces[row.ns][-1] and self.judged.waits(row.ns)

    def _resumable(self, tree: Any) -> Any:
        """What stays of the tasks and the question of a step that waits for an answer.

        The task that gets the answer, and the human who gives it, may rely on a message that
        they were given by itself; a list of messages may be shorter than it was.
        """
        left = scrub(tree, self._is_gone, alone=False)
        left = tree if left is GONE else left
        self.judged.reasons.interrupted |= scrub(left, self._is_gone) is not left
        return left

    def _is_conversation(self, place: Place) -> bool:
        return (place.ns, place.channel) in self.judged.conversations

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
        facts = dated(written(tree), self.judged.born)
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
        rows = self.judged.namespaces.get(place.ns)
        if (not rows or rows[-1].id < row.id) and any(
            map(self.judged.waits, self.judged.namespaces)
        ):
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
            for version in self.judged.versions.get((row.ns, child), {}).values()
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
            for key in self.judged.unheard.get(source, {})
        }
        going: set[str] = set()
        goes = True
        for fact in written(tree):
            if fact.role in HUMAN:
                known = fact.stamp or (row.moment if lost or fact.key in asked else None)
                self.judged.reasons.unknown_age |= known is None
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


def _is_over(row: Checkpoint) -> bool:
    """Whether the step after a checkpoint has led to another one."""
    return bool(row.children)
