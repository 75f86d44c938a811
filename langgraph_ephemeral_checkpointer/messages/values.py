"""The messages inside the value of a channel: found, replayed from writes, put back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_ephemeral_checkpointer.langgraph_names import OVERWRITE, REMOVE_ALL, SNAPSHOT_CLASS
from langgraph_ephemeral_checkpointer.messages.payloads import is_overwrite

_HOLDS_NOTHING = frozenset({str, int, float, bool, bytes, dict, set, tuple, type(None)})


def rebuild(values: Iterable[Any]) -> list[BaseMessage]:
    """The messages that the message reducers make of a seed and of the writes after it."""
    found: dict[Hashable, BaseMessage] = {}
    for value in values:
        if is_overwrite(value):
            found.clear()
            value = value[OVERWRITE] if isinstance(value, dict) else value
        for message in messages_in(value, single=True) or ():
            if message.type != "remove":
                found[message.id or id(message)] = message
            elif message.id == REMOVE_ALL:
                found.clear()
            else:
                found.pop(message.id, None)
    return list(found.values())


def may_hold_messages(value: Any) -> bool:
    """Whether it is worth while to look closer; cheap, as every save asks it."""
    if type(value) is list:
        return bool(value) and isinstance(value[0], BaseMessage)
    return type(value) not in _HOLDS_NOTHING


def messages_in(value: Any, *, single: bool = False) -> list[BaseMessage] | None:
    """The messages of a channel's value, where it is a list of them and of nothing else.

    Args:
        value: A list, or one inside a DeltaChannel's snapshot or an Overwrite.
        single: Whether a message alone counts as well, as it does in a write.

    Returns:
        The messages, or None where the value is something else.
    """
    if type(value).__name__ in {SNAPSHOT_CLASS, "Overwrite"}:
        value = value.value
    if single and isinstance(value, BaseMessage):
        return [value]
    if isinstance(value, list) and all(isinstance(item, BaseMessage) for item in value):
        return value
    return None


def rebuilt(value: Any, messages: list[Any]) -> Any:
    """A value of the same form as this one, with these messages in it."""
    if isinstance(value, BaseMessage):
        return messages[0]
    if isinstance(value, list):
        return messages
    return type(value)(messages)


def without_idle_removals(
    loaded: CheckpointTuple, present: dict[str, list[Any]]
) -> CheckpointTuple:
    """Leave out orders to remove a message that is gone already.

    A node can order the removal of an old message that its run still had and storage no
    longer has. If the run then stops before its next checkpoint, the order is pending,
    and ``add_messages`` refuses to remove what is not there: the thread could not resume.
    """
    writes = loaded.pending_writes
    if not writes or not present:
        return loaded
    added: dict[str, set[str]] = {}
    for _, channel, value in writes:
        for message in messages_in(value, single=True) or ():
            if message.type != "remove" and message.id:
                added.setdefault(channel, set()).add(message.id)
    kept: list[Any] = []
    for task, channel, value in writes:
        messages = messages_in(value, single=True) if channel in present else None
        if messages:
            known = {message.id for message in present[channel]}
            known |= added.get(channel, set()) | {REMOVE_ALL}
            left = [m for m in messages if m.type != "remove" or m.id in known]
            if len(left) < len(messages):
                value = left if isinstance(value, BaseMessage) else rebuilt(value, left)
        kept.append((task, channel, value))
    return loaded._replace(pending_writes=kept)
