"""Stored values: only the messages that go leave them, and all else stays byte for byte."""

import json
from typing import Any

import langgraph.types
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send

from langgraph_ephemeral_checkpointer.messages import payloads
from langgraph_ephemeral_checkpointer.messages.documents import (
    UnreadableValueError,
    open_value,
    unpack,
)
from langgraph_ephemeral_checkpointer.messages.taking import scrub, without_gone

MESSAGES = [
    HumanMessage("GONE", id="gone"),
    AIMessage("kept", id="kept", tool_calls=[{"name": "t", "args": {"a": 1}, "id": "c"}]),
    ToolMessage("kept", id="tool", tool_call_id="c", artifact={"x": [1, 2]}),
]


def _goes(fact: Any) -> bool:
    return fact.key == "gone"


def rewrite_value(serde: Any, kind: str, data: bytes | None, goes: Any) -> Any:
    """What a purge makes of a stored value: the new type tag and bytes, None where it stays."""
    document = open_value(serde, kind, data)
    left = scrub(document.tree, goes)
    return None if left is document.tree else document.close(without_gone(left))


class Custom:
    """A class that the reader of the store does not have."""

    def model_dump(self) -> dict[str, Any]:
        return {"content": "a document", "id": "gone"}


SHAPES: dict[str, tuple[Any, Any]] = {
    "a channel": (MESSAGES, MESSAGES[1:]),
    "a write of one": (MESSAGES[0], []),
    "an input": ({"messages": MESSAGES, "n": 1}, {"messages": MESSAGES[1:], "n": 1}),
    "a task": (Send("n", {"messages": MESSAGES}), Send("n", {"messages": MESSAGES[1:]})),
    "tasks": ([Send("n", [MESSAGES[0], MESSAGES[1]])], [Send("n", [MESSAGES[1]])]),
    "a question": (Interrupt(value=MESSAGES, id="i"), Interrupt(value=MESSAGES[1:], id="i")),
}
if hasattr(langgraph.types, "Overwrite"):  # LangGraph 1.0 begins without it
    SHAPES["an overwrite"] = (
        langgraph.types.Overwrite(MESSAGES),
        langgraph.types.Overwrite(MESSAGES[1:]),
    )


@pytest.mark.parametrize("kind", ["msgpack", "pickle", "encrypted", "custom"])
@pytest.mark.parametrize("shape", SHAPES)
def test_messages_leave_values_of_every_shape(shape, kind):
    value, expected = SHAPES[shape]

    class Pickling(JsonPlusSerializer):
        """Says "msgpack" but means something else, so only it can read its bytes."""

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            tag, data = super().dumps_typed(obj)
            return tag, data[::-1]

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return super().loads_typed((data[0], data[1][::-1]))

    class Reverse:
        def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
            return "reverse", plaintext[::-1]

        def decrypt(self, _: str, ciphertext: bytes) -> bytes:
            return ciphertext[::-1]

    serde: Any = {
        "msgpack": JsonPlusSerializer(),
        "pickle": JsonPlusSerializer(pickle_fallback=True),
        "encrypted": EncryptedSerializer(Reverse()),
        "custom": Pickling(),
    }[kind]
    if kind == "pickle":
        value, expected = [value, {1j}], [expected, {1j}]  # a complex number, in no msgpack
        if shape == "a write of one":
            expected = [{1j}]
    stored = serde.dumps_typed(value)
    assert stored[0].startswith("pickle") == (kind == "pickle")

    left = rewrite_value(serde, *stored, _goes)

    assert left is not None
    assert left[0] == stored[0]
    assert serde.loads_typed(left) == expected
    assert rewrite_value(serde, *left, _goes) is None
    assert rewrite_value(serde, *stored, lambda fact: False) is None


def test_the_legacy_json_form_stays_json():
    def constructor(name: str, **kwargs: Any) -> Any:
        path = ["langchain", "schema", "messages", name]
        return {"lc": 1, "type": "constructor", "id": path, "kwargs": kwargs}

    value = {
        "messages": [
            constructor("HumanMessage", content="GONE", type="human", id="gone"),
            constructor("AIMessage", content="kept", type="ai", id="kept"),
        ]
    }
    left = rewrite_value(JsonPlusSerializer(), "json", json.dumps(value).encode(), _goes)
    assert left is not None
    assert left[0] == "json"
    assert b"GONE" not in left[1]
    assert json.loads(left[1]) == {"messages": value["messages"][1:]}


def test_what_is_no_message_is_the_same_bytes_afterwards_even_without_its_class():
    custom = Custom()
    serde = JsonPlusSerializer()
    nested = {"docs": [custom, {1: 2.5, "é": (None, b"raw")}], "messages": MESSAGES}
    tag, data = serde.dumps_typed(nested)
    hidden = data.replace(b"Custom", b"Absent")  # the class cannot be found when reading
    left = rewrite_value(serde, tag, hidden, _goes)
    assert left is not None
    expected = serde.dumps_typed({**nested, "messages": MESSAGES[1:]})[1]
    assert left[1] == expected.replace(b"Custom", b"Absent")
    document = open_value(serde, tag, hidden)
    assert document.close(document.tree) == (tag, hidden)


def test_a_message_kept_is_never_looked_into():
    """A message quoted inside another one's artifact belongs to that one."""
    outer = ToolMessage("r", id="outer", tool_call_id="c", artifact=[MESSAGES[0]])
    serde = JsonPlusSerializer()
    assert rewrite_value(serde, *serde.dumps_typed([outer, SystemMessage("s")]), _goes) is None


@pytest.mark.parametrize(
    ("tag", "data"),
    [
        ("msgpack", b"\xc1"),
        ("json", b"{"),
        ("pickle", b"x"),
        ("nonsense", b""),
        ("msgpack+aes", b""),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_so(tag, data):
    with pytest.raises(UnreadableValueError, match="could not be opened"):
        rewrite_value(JsonPlusSerializer(), tag, data, _goes)


def test_values_without_any_content_have_no_messages():
    for tag, data in (("null", b""), ("bytes", b"GONE"), ("empty", b"")):
        assert rewrite_value(JsonPlusSerializer(), tag, data, _goes) is None


def test_an_argument_that_goes_leaves_its_place_to_an_empty_list():
    """A task's message is the second argument of a Send; a third one must not become it."""
    serde = JsonPlusSerializer()
    sends = [Send("node", MESSAGES[0]), Send("node", {"one": MESSAGES[0]})]

    left = rewrite_value(serde, *serde.dumps_typed(sends), _goes)

    assert left is not None
    assert serde.loads_typed(left) == [Send("node", []), Send("node", {"one": []})]


def test_the_facts_of_a_message_are_found_while_another_thread_empties_the_cache(monkeypatch):
    """A purge that missed them would take the conversation for a value of another kind."""

    class Emptied(dict):  # type: ignore[type-arg]
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.clear()
            return found

    serde = JsonPlusSerializer()
    tree = unpack(serde.dumps_typed([MESSAGES[0]])[1])
    monkeypatch.setattr(payloads, "_known", Emptied())
    assert [payloads.conversation(tree) is not None for _ in range(3)] == [True] * 3
