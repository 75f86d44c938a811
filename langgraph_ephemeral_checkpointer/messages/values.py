"""The messages inside the value of a channel: found, replayed from writes, put back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_ephemeral_checkpointer.langgraph_names import OVERWRITE, REMOVE_ALL, SNAPSHOT_CLASS
from langgraph_ephemeral_checkpointer.messages.payloads import is_overwrite

_HOLDS_NOTHING = frozenset({str, int, float, bool, bytes, dict, set, tuple, type(None)})


def rebuild(values: Iterable[Any], *, named: bool = False) -> list[BaseMessage]:
    """The messages that the message reducers make of a seed and of the writes after it.

    Args:
        values: The seed and the writes, in order.
        named: Whether the channel is known to hold messages. Where it is not, texts, pairs and
            dicts stand for messages if message objects are there too, and nothing that cannot
            be one.
    """
    inner = [_inside(value) for value in values]
    items = [item for value in inner for item in _items_of(value) if item is not None]
    some = named or any(isinstance(item, BaseMessage) for item in items)
    read = _converted if some and all(map(_converted, items)) else _as_message
    found: dict[Hashable, BaseMessage] = {}
    for value, inside in zip(values, inner, strict=True):
        if is_overwrite(value):
            found.clear()
        for message in filter(None, map(read, _items_of(inside))):
            if message.type != "remove":
                found[message.id or id(message)] = message
            elif message.id == REMOVE_ALL:
                found.clear()
            else:
                found.pop(message.id, None)
    return list(found.values())


def _items_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _as_message(item: Any) -> BaseMessage | None:
    return item if isinstance(item, BaseMessage) else None


def _converted(item: Any) -> BaseMessage | None:
    """The message that LangChain takes something for, if it does."""
    if isinstance(item, BaseMessage):
        return item
    try:
        (message,) = convert_to_messages([item])
    except Exception:  # noqa: BLE001 - of whatever an application wrote
        return None
    return message


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
    value = _inside(value)
    if single and isinstance(value, BaseMessage):
        return [value]
    if isinstance(value, list) and all(isinstance(item, BaseMessage) for item in value):
        return value
    return None


def _inside(value: Any) -> Any:
    if type(value).__name__ in {SNAPSHOT_CLASS, "Overwrite"}:
        return value.value
    if isinstance(value, dict) and len(value) == 1:
        return value.get(OVERWRITE, value)
    return value


def written_in(value: Any) -> list[Any] | None:
    """What a write adds to a channel, where message objects are in it; else None."""
    value = _inside(value)
    items = value if isinstance(value, list) else [value]
    return items if any(isinstance(item, BaseMessage) for item in items) else None


def rebuilt(value: Any, messages: list[Any]) -> Any:
    """A value of the same form as this one, with these messages in it."""
    if isinstance(value, BaseMessage):
        return messages[0]
    if isinstance(value, list):
        return messages
    if isinstance(value, dict):
        return {OVERWRITE: messages}
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
