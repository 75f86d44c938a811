"""Which messages of a stored thread go, and which of its steps with them. Pure.

A step belongs to the exchange that is in progress at the checkpoint it led to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.survivors import is_call
from langgraph_ephemeral_checkpointer.messages.exchanges import (
    HUMAN,
    Identity,
    dated,
    identity,
    is_young,
    opening,
    openings_in_progress,
    split,
    verdicts,
)
from langgraph_ephemeral_checkpointer.messages.image import Checkpoint, Place, ThreadImage, waits
from langgraph_ephemeral_checkpointer.messages.payloads import written
from langgraph_ephemeral_checkpointer.messages.unheard import unheard_in
from langgraph_ephemeral_checkpointer.messages.versions import Version, Versions

_SYSTEM = "system"


@dataclasses.dataclass(slots=True)
class Reasons:
    """Why old messages stay."""

    unknown_age: bool = False
    """Nothing tells how old an exchange is."""
    interrupted: bool = False
    """An interrupt waits for an exchange that is old enough."""
    going_on: bool = False
    """An exchange began long ago, and not all of it is old."""


class Judgement:
    """What is decided on the conversations and the steps of a thread.

    Args:
        image: The thread.
        cutoff: Exchanges that are older than this moment, with all their messages, go.
        channels: The channels to look at; None means every one that holds conversations.
    """

    def __init__(
        self, image: ThreadImage, cutoff: datetime, channels: Collection[str] | None
    ) -> None:
        self.image = image
        self.cutoff = cutoff
        self.namespaces = image.namespaces()
        self.history = Versions(image, channels)
        self.versions = self.history.found
        """Each with what goes of it, by (namespace, checkpoint id) and channel."""
        self.reasons = Reasons()
        self.unheard: dict[Place, dict[str, Any]] = {}
        """Messages that no channel holds, by place and key."""
        self.dead: set[tuple[str, str]] = set()
        """The checkpoints whose next step belongs to an exchange that goes."""
        self.over: set[tuple[str, str]] = set()
        """The checkpoints at which the exchange in progress is one that goes."""
        self._chatting: set[str] = set()
        for ns, rows in self.namespaces.items():
            held = self.history.collect(ns, rows)
            lost = [row for row in image.lost.values() if row.ns == ns]
            unheard = unheard_in(image, [*rows, *lost], held, channels)
            self.unheard |= unheard
            if unheard or any(held.values()):
                self._chatting.add(ns)
        self.born = self.history.ages()
        """When each message was first saved, by key."""
        for versions in self.versions.values():
            for version in versions.values():
                version.facts = dated(version.facts, self.born)
        self._protected = self._find_protected()
        self._lasting = self._find_lasting()
        self._decide()
        self.conversations = {
            (ns, channel) for (ns, _), versions in self.versions.items() for channel in versions
        }
        """The channels that hold conversations, as (namespace, channel)."""

    def _decide(self) -> None:
        self._judge("")
        self.dead = {(row.ns, row.id) for row in self.namespaces.get("", ()) if self._is_dead(row)}
        for ns in self.namespaces:
            if ns:
                self._judge(ns, whole=self._is_dead_call(ns))
        for ns, rows in self.namespaces.items():
            whole = self._is_dead_call(ns)
            self.dead |= {(ns, row.id) for row in rows if whole or self._is_dead(row)}
            self.over |= {(ns, row.id) for row in rows if whole or self._exchange_goes(row)}

    def _find_protected(self) -> set[str]:
        """The messages whose exchange a pending interrupt will resume."""
        protected: set[str] = set()
        for ns, rows in self.namespaces.items():
            if self.waits(ns):
                for version in self.versions.get((ns, rows[-1].id), {}).values():
                    protected |= openings_in_progress(version.facts)
        return protected

    def _find_lasting(self) -> set[Identity]:
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

    def waits(self, ns: str) -> bool:
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
                    version.goes = self._verdicts(version, self._protected)
            if (ns, channel) in self.image.delta and not whole:
                self._agree(versions)
            for version in versions:
                self._explain(version)

    def _verdicts(self, version: Version, protected: Collection[str]) -> list[bool]:
        return verdicts(
            version.facts,
            self.cutoff,
            protected=protected,
            lasting=self._lasting,
        )

    def _agree(self, versions: list[Version]) -> None:
        """Let a message that stays in one version of a delta channel stay in all of them.

        The versions share their writes, so a message is in all of them or in none; and with
        a message its whole exchange stays.
        """
        held = set(self._protected)
        while True:
            go, stay = sorted_out(versions)
            if not go & stay:
                return
            held |= go & stay
            for version in versions:
                version.goes = self._verdicts(version, held)

    def _explain(self, version: Version) -> None:
        """Note why exchanges stay that may seem to be old enough."""
        facts, goes = version.facts, version.goes
        if self._protected and not all(goes):
            self.reasons.interrupted |= self._verdicts(version, ()) != self._verdicts(
                version, self._protected
            )
        for exchange in split(facts):
            first = opening(facts, exchange)
            if first is None:
                continue
            self.reasons.unknown_age |= first.stamp is None
            old = first.stamp is not None and first.stamp < self.cutoff
            self.reasons.going_on |= old and not any(goes[index] for index in exchange)

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
        if row.ns not in self._chatting:
            return False
        if row.moment is None:
            self.reasons.unknown_age = True
            return False
        old = row.moment < self.cutoff
        if old and self.waits(row.ns) and not self._talks(row.ns):
            self.reasons.interrupted = True  # and no conversation tells what it waits in
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


def sorted_out(versions: Iterable[Version]) -> tuple[set[str], set[str]]:
    """The messages that go from some version, and those that stay in some version."""
    go: set[str] = set()
    stay: set[str] = set()
    for version in versions:
        for fact, gone in zip(version.facts, version.goes, strict=True):
            (go if gone else stay).add(fact.key)
    return go, stay


def _says(version: Version) -> bool:
    """Whether a conversation has more in it than rules for the model, which never go."""
    return any(fact.role != _SYSTEM for fact in version.facts)


def _last_goes(version: Version) -> bool:
    last = split(version.facts)[-1]
    return all(version.goes[index] for index in last if version.facts[index].role != _SYSTEM)
