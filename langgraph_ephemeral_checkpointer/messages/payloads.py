"""Messages inside stored values: finding them. Independent of storage.

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

from langgraph_ephemeral_checkpointer.langgraph_names import (
    OVERWRITE,
    SNAPSHOT_CLASS,
    SNAPSHOT_CODE,
)
from langgraph_ephemeral_checkpointer.messages.documents import Extension, pack, unpack
from langgraph_ephemeral_checkpointer.messages.exchanges import Facts, facts_from, number

# Extension codes of JsonPlusSerializer. Those of objects hold [module, name, payload, ...].
OBJECTS = frozenset({0, 1, 2, 3, 4, 5})
PYDANTIC = frozenset({4, 5})
PAYLOAD = 2  # where the payload stands in an object
MESSAGE_FIELDS = frozenset({"content", "type", "response_metadata"})


def fields_of(node: Any) -> Mapping[str, Any] | None:
    """The fields of a message, or None where the node is none."""
    if isinstance(node, BaseMessage):
        return vars(node)
    if isinstance(node, Extension) and node.code in PYDANTIC:
        inner = unpack(node.data)
        if isinstance(inner, list) and len(inner) > PAYLOAD:
            fields = inner[PAYLOAD]
            if isinstance(fields, dict) and fields.keys() >= MESSAGE_FIELDS:
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
_NEW: Any = object()


def facts_at(node: Any) -> Facts | None:
    """The facts of a message, or None where the node is none."""
    if not isinstance(node, Extension):
        fields = fields_of(node)
        return None if fields is None else facts_from(fields)
    name = hashlib.blake2b(node.data, digest_size=16, salt=bytes([node.code])).digest()
    facts = _known.get(name, _NEW)
    if facts is _NEW:
        fields = fields_of(node)
        facts = None if fields is None else facts_from(fields)
        if len(_known) >= _KNOWN_AT_MOST:
            _known.clear()  # by any thread at any time: what is asked for is not read twice
        _known[name] = facts
    return facts  # type: ignore[no-any-return]  # but for _NEW


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
        return tree.code == SNAPSHOT_CODE
    return type(tree).__name__ == SNAPSHOT_CLASS


def is_overwrite(tree: Any) -> bool:
    """Whether a write replaces the channel's value instead of adding to it."""
    if isinstance(tree, Extension) and tree.code in OBJECTS:
        inner = unpack(tree.data)
        return isinstance(inner, list) and inner[:2] == ["langgraph.types", "Overwrite"]
    if isinstance(tree, dict):
        return set(tree) == {OVERWRITE}
    return type(tree).__name__ == "Overwrite"


def _inside(tree: Any) -> Any:
    if not (is_snapshot(tree) or is_overwrite(tree)):
        return tree
    if isinstance(tree, Extension):
        inner = unpack(tree.data)
        if tree.code == SNAPSHOT_CODE:
            return inner
        payload = inner[PAYLOAD]
        return payload.get("value") if isinstance(payload, dict) else payload
    return tree[OVERWRITE] if isinstance(tree, dict) else tree.value


def written(tree: Any) -> list[Facts]:
    """The messages a write to a message channel adds, whatever form the node gave them.

    Messages, (role, text) pairs, dicts and plain strings, alone, in a list or in an
    Overwrite; what cannot be a message is passed over.
    """
    node = _inside(tree)
    items = node if isinstance(node, list) else [] if node is None else [node]
    facts = (_facts_of_any(item) for item in items)
    return number(fact for fact in facts if fact is not None)


def holds_messages(tree: Any) -> bool | None:
    """Whether a write has messages in it, as objects and not in a form that stands for one.

    None where something in it cannot be a message, in whatever form. Plain texts, pairs and
    dicts may be anything: an order to remove a message tells no more than they do.
    """
    node = _inside(tree)
    items = node if isinstance(node, list) else [] if node is None else [node]
    if any(_facts_of_any(item) is None for item in items):
        return None
    facts = map(facts_at, items)
    return any(fact is not None and not fact.removes for fact in facts)


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
        if tree.code == SNAPSHOT_CODE:
            return Extension(tree.code, pack(items))
        inner = unpack(tree.data)
        old = inner[PAYLOAD]
        inner[PAYLOAD] = {**old, "value": items} if isinstance(old, dict) else items
        return Extension(tree.code, pack(inner))
    return {OVERWRITE: items} if isinstance(tree, dict) else type(tree)(items)


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
    if isinstance(node, Extension) and node.code == SNAPSHOT_CODE:
        return [unpack(node.data)]
    if isinstance(node, Extension) and node.code in OBJECTS:
        inner = unpack(node.data)
        return inner[PAYLOAD : PAYLOAD + 1] if isinstance(inner, list) else []
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
    if isinstance(tree, Extension) and tree.code in OBJECTS:
        (tree,) = _parts(tree) or [None]
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = {field.name: getattr(tree, field.name, None) for field in dataclasses.fields(tree)}
    return tree if isinstance(tree, dict) and all(isinstance(name, str) for name in tree) else None


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
