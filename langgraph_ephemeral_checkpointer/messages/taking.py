"""Taking messages out of stored values of any shape. Independent of storage."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from operator import is_
from typing import Any

from pydantic import BaseModel

from langgraph_ephemeral_checkpointer.langgraph_names import SNAPSHOT_CODE
from langgraph_ephemeral_checkpointer.messages.documents import Extension, pack, unpack
from langgraph_ephemeral_checkpointer.messages.exchanges import Facts, facts_from, number
from langgraph_ephemeral_checkpointer.messages.payloads import (
    MESSAGE_FIELDS,
    OBJECTS,
    PAYLOAD,
    PYDANTIC,
    facts_at,
    items_of,
)

_ARGUMENTS = 1  # the code of an object whose payload is the list of its positional arguments


class Gone:
    """What is left of a message that goes, until its container drops it."""


GONE = Gone()


def scrub(node: Any, goes: Callable[[Facts], bool], *, alone: bool = True) -> Any:
    """Take messages out of a value of any shape, wherever they are in it.

    Args:
        node: The tree, or a part of it.
        goes: Whether a message goes.
        alone: Whether messages go as well that are in no list, where something may still
            rely on finding one.

    Returns:
        The same object where nothing goes, ``GONE`` where it is a message that goes, else
        a copy without them: lists lose them, and elsewhere an empty list takes their place.
    """
    if (facts := facts_at(node)) is not None:
        return GONE if goes(facts) else node
    if isinstance(node, list):
        return _scrub_list(node, goes, alone)
    if isinstance(node, dict):
        return _changed(node, {key: _part(value, goes, alone) for key, value in node.items()})
    if isinstance(node, Extension):
        return _scrub_extension(node, goes, alone)
    return _scrub_object(node, goes, alone)


def _part(node: Any, goes: Callable[[Facts], bool], alone: bool) -> Any:
    """What is left of a part that is no item of a list."""
    left = scrub(node, goes, alone=alone)
    return left if left is not GONE else [] if alone else node


def without_gone(node: Any) -> Any:
    """An empty list in place of ``GONE``."""
    return [] if node is GONE else node


def _scrub_list(node: list[Any], goes: Callable[[Facts], bool], alone: bool) -> list[Any]:
    facts = items_of(node)
    left = [
        scrub(item, goes, alone=alone) if fact is None else (GONE if goes(fact) else item)
        for item, fact in zip(node, facts, strict=True)
    ]
    if all(map(is_, left, node)):
        return node
    return [item for item in left if item is not GONE]


def _changed(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    return old if all(new[key] is old[key] for key in old) else new


def _scrub_extension(node: Extension, goes: Callable[[Facts], bool], alone: bool) -> Extension:
    if node.code not in OBJECTS and node.code != SNAPSHOT_CODE:
        return node
    inner = unpack(node.data)
    if node.code == SNAPSHOT_CODE:
        left = _part(inner, goes, alone)
        return node if left is inner else Extension(node.code, pack(left))
    if not isinstance(inner, list) or len(inner) <= PAYLOAD:
        return node
    payload = inner[PAYLOAD]
    if node.code == _ARGUMENTS and isinstance(payload, list):
        left = [_part(argument, goes, alone) for argument in payload]
        left = payload if all(map(is_, left, payload)) else left
    else:
        left = _part(payload, goes, alone)
    if node.code in PYDANTIC:
        left = _scrub_dumped(left, goes, alone)
    if left is payload:
        return node
    inner[PAYLOAD] = left
    return Extension(node.code, pack(inner))


def _scrub_dumped(node: Any, goes: Callable[[Facts], bool], alone: bool) -> Any:
    """The fields of a model, which are stored as plain values, the messages in them too."""
    if isinstance(node, list):
        facts = list(map(_dumped, node))
        named = iter(number(fact for fact in facts if fact is not None))
        left = [
            _scrub_dumped(item, goes, alone)
            if fact is None
            else (GONE if goes(next(named)) else item)
            for item, fact in zip(node, facts, strict=True)
        ]
        return node if all(map(is_, left, node)) else [item for item in left if item is not GONE]
    if not isinstance(node, dict):
        return node
    if (fact := _dumped(node)) is not None:
        return [] if alone and goes(fact) else node
    return _changed(node, {key: _scrub_dumped(part, goes, alone) for key, part in node.items()})


def _dumped(node: Any) -> Facts | None:
    """The facts of a message that is a plain mapping of its fields, or None."""
    if isinstance(node, dict) and node.keys() >= MESSAGE_FIELDS | {"additional_kwargs"}:
        return facts_from(node)
    return None


def _scrub_object(node: Any, goes: Callable[[Facts], bool], alone: bool) -> Any:
    """Objects, of serializers whose bytes only they can read."""
    if isinstance(node, tuple):
        left = [_part(item, goes, alone) for item in node]
        if all(map(is_, left, node)):
            return node
        return type(node)(*left) if hasattr(node, "_fields") else tuple(left)
    if type(node).__name__ == "Send" and hasattr(node, "arg"):
        return _with(node, {"arg": _part(node.arg, goes, alone)})
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = [field.name for field in dataclasses.fields(node)]
    elif isinstance(node, BaseModel):
        names = list(type(node).model_fields)
    else:
        return node
    return _with(
        node,
        {name: _part(getattr(node, name), goes, alone) for name in names if hasattr(node, name)},
    )


def _with(node: Any, fields: dict[str, Any]) -> Any:
    """A copy of an object with these fields, made without asking its class."""
    if all(getattr(node, name) is value for name, value in fields.items()):
        return node
    other = copy.copy(node)
    for name, value in fields.items():
        object.__setattr__(other, name, value)
    return other
