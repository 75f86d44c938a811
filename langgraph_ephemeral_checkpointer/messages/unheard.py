"""Messages that no channel holds: inputs no step has taken, and writes of a step that failed.

A run that ends before its first superstep leaves what it was told in ``__start__`` and in the
writes of its first tasks, and nothing anywhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from langgraph_ephemeral_checkpointer.langgraph_names import START, TASKS
from langgraph_ephemeral_checkpointer.messages.exchanges import Facts
from langgraph_ephemeral_checkpointer.messages.image import (
    Checkpoint,
    Place,
    ThreadImage,
)
from langgraph_ephemeral_checkpointer.messages.payloads import fields_within, nodes_in, taken
from langgraph_ephemeral_checkpointer.messages.versions import CUSTOMARY


def unheard_in(
    image: ThreadImage,
    rows: Iterable[Checkpoint],
    held: Mapping[str, bool],
    channels: Collection[str] | None,
) -> dict[Place, dict[str, Any]]:
    """The messages in the inputs, sent tasks and pending writes of a namespace.

    Args:
        image: The thread.
        rows: The checkpoints of the namespace.
        held: The channels that some checkpoint holds, and whether they hold conversations.
        channels: The channels to look at; None means every one.

    Returns:
        By place, its messages as nodes by key.
    """
    found: dict[Place, dict[str, Any]] = {}
    for row in rows:
        for place in (*row.values.values(), *row.writes):
            document = image.documents.get(place)
            if document is None:
                continue
            messages: dict[str, Any] = {}
            if place.channel == START:
                messages = _in_input(document.tree, held, channels)
            elif place.channel == TASKS:
                messages = nodes_in(document.tree)
            elif place.kind == "write" and place.channel not in held:
                messages = _in_channel(place.channel, document.tree, channels)
            if messages:
                found[place] = messages
    return found


def _in_input(
    tree: Any, held: Mapping[str, bool], channels: Collection[str] | None
) -> dict[str, Any]:
    fields = fields_within(tree)
    if fields is None:  # what a workflow of the functional API was called with
        return nodes_in(tree)
    found: dict[str, Any] = {}
    for channel, value in fields.items():
        if held.get(channel, True):
            found |= _in_channel(channel, value, channels)
    return found


def _in_channel(channel: str, tree: Any, channels: Collection[str] | None) -> dict[str, Any]:
    if channel.startswith("__") or (channels is not None and channel not in channels):
        return {}
    if channel == CUSTOMARY or channels is not None:
        return taken(tree, _any)
    return nodes_in(tree)


def _any(_: Facts) -> bool:
    return True
