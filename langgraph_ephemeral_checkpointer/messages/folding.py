"""What a DeltaChannel's writes make of it, as far as retention needs to know. Pure.

Such a channel stores its value now and then, and between snapshots only what was written to
it. The values between are folded from facts, the way the message reducers fold messages: by
their ids. A message without an id is named by the write it came with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from langgraph_ephemeral_checkpointer.langgraph_names import REMOVE_ALL
from langgraph_ephemeral_checkpointer.messages.exchanges import Facts, digest_of
from langgraph_ephemeral_checkpointer.messages.image import Place
from langgraph_ephemeral_checkpointer.messages.payloads import conversation, written


def messages_in(tree: Any) -> list[Facts]:
    """The messages of a write, whether it is a conversation or not."""
    return conversation(tree) or written(tree)


def name_in(fact: Facts, place: Place) -> str:
    """The key of a message that a delta channel's write adds; without an id, by the write."""
    if digest_of(fact.key) is None:
        return fact.key
    return f"{fact.key}@{place.holder}/{place.task}/{place.idx}"


def named_in(facts: Iterable[Facts], place: Place) -> list[Facts]:
    """The messages that a delta channel's write adds, each under its name."""
    return [dataclasses.replace(fact, key=name_in(fact, place)) for fact in facts]


def aligned(stored: list[Facts], folded: Iterable[Facts], at: str) -> list[Facts]:
    """The messages of a snapshot, those without an id under the names their writes gave them.

    Matched from the end: what a snapshot lacks of its writes, trimming took from the front.
    """
    names: dict[str, list[str]] = {}
    for fact in folded:
        if said := digest_of(fact.key):
            names.setdefault(said, []).append(fact.key)
    aligned = []
    for fact in reversed(stored):
        if said := digest_of(fact.key):
            name = names[said].pop() if names.get(said) else f"{fact.key}@{at}"
            aligned.append(dataclasses.replace(fact, key=name))
        else:
            aligned.append(fact)
    return aligned[::-1]


def merge(facts: list[Facts], added: list[Facts]) -> list[Facts]:
    """What writing messages does to a list of them, as the message reducers do it."""
    merged: dict[str, Facts] = {fact.key: fact for fact in facts}
    for fact in added:
        if fact.removes and fact.key == REMOVE_ALL:
            merged = {}
        elif fact.removes:
            merged.pop(fact.key, None)
        else:
            merged[fact.key] = fact
    return list(merged.values())
