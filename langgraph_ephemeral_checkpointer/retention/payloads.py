"""Messages inside stored values: finding them, and taking some out. Independent of storage.

Works on the trees that ``documents`` opens values into, and on the objects of serializers
whose bytes only they can read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from .documents import Extension, open_value, pack, unpack
from .exchanges import Facts, facts_from, number

# Extension codes of JsonPlusSerializer. Those of objects hold [module, name, payload, ...].
_OBJECTS = frozenset({0, 1, 2, 3, 4, 5})
_PYDANTIC = frozenset({4, 5})
_SNAPSHOT = 7  # a DeltaChannel's snapshot holds the value itself
_PAYLOAD = 2  # where the payload stands in an object
_MESSAGE_FIELDS = frozenset({"content", "type", "response_metadata"})


class Gone:
    """What is left of a message that goes, until its container drops it."""


GONE = Gone()


def fields_of(node: Any) -> Mapping[str, Any] | None:
    """The fields of a message, or None where the node is none."""
    if isinstance(node, BaseMessage):
        return vars(node)
    if isinstance(node, Extension) and node.code in _PYDANTIC:
        inner = unpack(node.data)
        if isinstance(inner, list) and len(inner) > _PAYLOAD:
            fields = inner[_PAYLOAD]
            if isinstance(fields, dict) and fields.keys() >= _MESSAGE_FIELDS:
                return fields
    if isinstance(node, dict) and node.get("lc") in (1, 2) and node.get("type") == "constructor":
        name = str((node.get("id") or [""])[-1])
        fields = node.get("kwargs")
        if isinstance(fields, dict) and name.removesuffix("Chunk").endswith("Message"):
            return {"type": name, **fields}
    return None


# By a hash of the bytes: every checkpoint of a thread holds the same messages again.
_known: dict[bytes, Facts | None] = {}
_KNOWN_AT_MOST = 100_000


def facts_at(node: Any) -> Facts | None:
    """The facts of a message, or None where the node is none."""
    if not isinstance(node, Extension):
        fields = fields_of(node)
        return None if fields is None else facts_from(fields)
    name = hashlib.blake2b(node.data, digest_size=16, salt=bytes([node.code])).digest()
    if name not in _known:
        fields = fields_of(node)
        if len(_known) >= _KNOWN_AT_MOST:
            _known.clear()
        _known[name] = None if fields is None else facts_from(fields)
    return _known.get(name)


def items_of(node: Any) -> list[Facts | None]:
    """The facts of every message in the list, in order, and None for what is none."""
    if not isinstance(node, list):
        return []
    facts = [facts_at(item) for item in node]
    named = iter(number(fact for fact in facts if fact is not None))
    return [next(named) if fact is not None else None for fact in facts]


def conversation(tree: Any) -> list[Facts] | None:
    """The conversation a channel's value is, where it is a list of messages and nothing else.

    A DeltaChannel's snapshot and an Overwrite count as the list inside them.
    """
    node = _inside(tree)
    if not isinstance(node, list):
        return None
    items = items_of(node)
    return None if None in items else [item for item in items if item is not None]


def is_snapshot(tree: Any) -> bool:
    """Whether the value is a DeltaChannel's snapshot."""
    if isinstance(tree, Extension):
        return tree.code == _SNAPSHOT
    return type(tree).__name__ == "_DeltaSnapshot"


def is_overwrite(tree: Any) -> bool:
    """Whether a write replaces the channel's value instead of adding to it."""
    if isinstance(tree, Extension) and tree.code in _OBJECTS:
        inner = unpack(tree.data)
        return isinstance(inner, list) and inner[:2] == ["langgraph.types", "Overwrite"]
    if isinstance(tree, dict):
        return set(tree) == {"__overwrite__"}
    return type(tree).__name__ == "Overwrite"


def _inside(tree: Any) -> Any:
    if not (is_snapshot(tree) or is_overwrite(tree)):
        return tree
    if isinstance(tree, Extension):
        inner = unpack(tree.data)
        if tree.code == _SNAPSHOT:
            return inner
        payload = inner[_PAYLOAD]
        return payload.get("value") if isinstance(payload, dict) else payload
    return tree["__overwrite__"] if isinstance(tree, dict) else tree.value


def written(tree: Any) -> list[Facts]:
    """The messages a write to a message channel adds, whatever form the node gave them.

    Messages, (role, text) pairs, dicts and plain strings, alone, in a list or in an
    Overwrite; what cannot be a message is passed over.
    """
    node = _inside(tree)
    items = node if isinstance(node, list) else [] if node is None else [node]
    facts = (_facts_of_any(item) for item in items)
    return number(fact for fact in facts if fact is not None)


def _facts_of_any(node: Any) -> Facts | None:
    facts = facts_at(node)
    if facts is not None:
        return facts
    if isinstance(node, str):
        return facts_from({"type": "human", "content": node})
    if isinstance(node, (list, tuple)) and len(node) == 2:
        return facts_from({"type": node[0], "content": node[1]})
    if isinstance(node, dict) and ("role" in node or "type" in node):
        return facts_from(node)
    return None


def keep_written(tree: Any, stays: Callable[[Facts], bool], *, others_stay: bool = True) -> Any:
    """A write to a message channel without the messages that go.

    Args:
        tree: The write's value, in any of the forms that nodes may give it.
        stays: Whether a message stays.
        others_stay: Whether what cannot be a message stays.

    Returns:
        The same object where nothing goes, else a tree that reducers read as the rest.
    """
    node = _inside(tree)
    items = node if isinstance(node, list) else [] if node is None else [node]
    facts = iter(written(tree))
    kept = [
        item
        for item in items
        if (others_stay if _facts_of_any(item) is None else stays(next(facts)))
    ]
    if len(kept) == len(items):
        return tree
    return _around(tree, kept)


def taken(tree: Any, goes: Callable[[Facts], bool]) -> dict[str, Any]:
    """The messages of a write that go, by key, each as the node it is."""
    node = _inside(tree)
    items = node if isinstance(node, list) else [] if node is None else [node]
    nodes = [item for item in items if _facts_of_any(item) is not None]
    return {
        fact.key: item
        for fact, item in zip(written(tree), nodes, strict=True)
        if not fact.removes and goes(fact)
    }


def keep_items(tree: Any, goes: Sequence[bool]) -> Any:
    """A conversation without the messages marked as going."""
    items = zip(_inside(tree), goes, strict=True)
    return _around(tree, [item for item, gone in items if not gone])


def picked(tree: Any, goes: Sequence[bool]) -> list[Any]:
    """The messages of a conversation that are marked as going."""
    return [item for item, gone in zip(_inside(tree), goes, strict=True) if gone]


def _around(tree: Any, items: list[Any]) -> Any:
    """The list in the snapshot or Overwrite that the tree is, if it is one."""
    if not (is_snapshot(tree) or is_overwrite(tree)):
        return items
    if isinstance(tree, Extension):
        if tree.code == _SNAPSHOT:
            return Extension(tree.code, pack(items))
        inner = unpack(tree.data)
        old = inner[_PAYLOAD]
        inner[_PAYLOAD] = {**old, "value": items} if isinstance(old, dict) else items
        return Extension(tree.code, pack(inner))
    return {"__overwrite__": items} if isinstance(tree, dict) else type(tree)(items)


def scrub(node: Any, goes: Callable[[Facts], bool]) -> Any:
    """Take messages out of a value of any shape, wherever they are in it.

    Args:
        node: The tree, or a part of it.
        goes: Whether a message goes.

    Returns:
        The same object where nothing goes, ``GONE`` where it is a message that goes, else
        a copy without them: lists lose them, and elsewhere an empty list takes their place.
    """
    if (facts := facts_at(node)) is not None:
        return GONE if goes(facts) else node
    if isinstance(node, list):
        return _scrub_list(node, goes)
    if isinstance(node, dict):
        return _changed(node, {key: scrub(value, goes) for key, value in node.items()})
    if isinstance(node, Extension):
        return _scrub_extension(node, goes)
    return _scrub_object(node, goes)


def nodes_in(node: Any) -> dict[str, Any]:
    """The messages in a value of any shape, by key, each as the node it is."""
    found: dict[str, Any] = {}
    items = node if isinstance(node, list) else [node]
    for item, fact in zip(items, items_of(items), strict=True):
        if fact is None:
            for part in _parts(item):
                found |= nodes_in(part)
        elif not fact.removes:
            found.setdefault(fact.key, item)
    return found


def _parts(node: Any) -> list[Any]:
    if isinstance(node, list | tuple):
        return list(node)
    if isinstance(node, dict):
        return list(node.values())
    if isinstance(node, Extension) and node.code == _SNAPSHOT:
        return [unpack(node.data)]
    if isinstance(node, Extension) and node.code in _OBJECTS:
        inner = unpack(node.data)
        return inner[_PAYLOAD : _PAYLOAD + 1] if isinstance(inner, list) else []
    if type(node).__name__ == "Send" and hasattr(node, "arg"):
        return [node.arg]
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return [getattr(node, field.name, None) for field in dataclasses.fields(node)]
    return []


def fields_within(tree: Any) -> Mapping[str, Any] | None:
    """The channels that a graph's input has values for; None where it is no mapping of them.

    A dataclass or a model of pydantic counts as the mapping of its fields.
    """
    if facts_at(tree) is not None:
        return None
    if isinstance(tree, Extension) and tree.code in _OBJECTS:
        (tree,) = _parts(tree) or [None]
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = {field.name: getattr(tree, field.name, None) for field in dataclasses.fields(tree)}
    return tree if isinstance(tree, dict) and all(isinstance(name, str) for name in tree) else None


def without_gone(node: Any) -> Any:
    """An empty list in place of ``GONE``."""
    return [] if node is GONE else node


def _scrub_list(node: list[Any], goes: Callable[[Facts], bool]) -> list[Any]:
    facts = items_of(node)
    left = [
        scrub(item, goes) if fact is None else (GONE if goes(fact) else item)
        for item, fact in zip(node, facts, strict=True)
    ]
    if all(new is old for new, old in zip(left, node, strict=True)):
        return node
    return [item for item in left if item is not GONE]


def _changed(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    if all(new[key] is old[key] for key in old):
        return old
    return {key: without_gone(value) for key, value in new.items()}


def _scrub_extension(node: Extension, goes: Callable[[Facts], bool]) -> Extension:
    if node.code not in _OBJECTS and node.code != _SNAPSHOT:
        return node
    inner = unpack(node.data)
    if node.code == _SNAPSHOT:
        left = scrub(inner, goes)
        return node if left is inner else Extension(node.code, pack(without_gone(left)))
    if not isinstance(inner, list) or len(inner) <= _PAYLOAD:
        return node
    left = scrub(inner[_PAYLOAD], goes)
    if left is inner[_PAYLOAD]:
        return node
    inner[_PAYLOAD] = without_gone(left)
    return Extension(node.code, pack(inner))


def _scrub_object(node: Any, goes: Callable[[Facts], bool]) -> Any:
    """Objects, of serializers whose bytes only they can read."""
    if isinstance(node, tuple):
        left = [scrub(item, goes) for item in node]
        if all(new is old for new, old in zip(left, node, strict=True)):
            return node
        left = [without_gone(item) for item in left]
        return type(node)(*left) if hasattr(node, "_fields") else tuple(left)
    if type(node).__name__ == "Send" and hasattr(node, "arg"):
        arg = scrub(node.arg, goes)
        return node if arg is node.arg else type(node)(node.node, without_gone(arg))
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = [field.name for field in dataclasses.fields(node) if field.init]
        old = {name: getattr(node, name) for name in names if hasattr(node, name)}
        new = _changed(old, {name: scrub(value, goes) for name, value in old.items()})
        return node if new is old else type(node)(**new)
    return node


def revive(serde: Any, nodes: Iterable[Any]) -> list[BaseMessage]:
    """Message objects from nodes of a tree, for an archive."""
    plain = serde
    while isinstance(plain, EncryptedSerializer):
        plain = plain.serde
    messages: list[BaseMessage] = []
    for node in nodes:
        message = node
        if isinstance(node, Extension):
            message = plain.loads_typed(("msgpack", pack(node)))
        elif isinstance(node, dict) and "lc" in node:
            message = plain.loads_typed(("json", json.dumps(node).encode()))
        messages += convert_to_messages([message])
    return messages


def rewrite_value(
    serde: Any, kind: str, data: bytes | None, goes: Callable[[Facts], bool]
) -> tuple[str, bytes] | None:
    """Take messages out of a stored value, wherever in it they are.

    Args:
        serde: The saver's serializer.
        kind: The type tag.
        data: The bytes.
        goes: Whether a message goes.

    Returns:
        The new type tag and bytes, or None where the value stays as it is.

    Raises:
        UnreadableValueError: If the serializer cannot read the value.
    """
    document = open_value(serde, kind, data)
    left = scrub(document.tree, goes)
    return None if left is document.tree else document.close(without_gone(left))
