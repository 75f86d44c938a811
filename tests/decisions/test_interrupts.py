"""A task waits for a human if it interrupted and has written no output since."""

import pytest

from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human


@pytest.mark.parametrize(
    ("writes", "waits"),
    [
        ([], False),
        ([("a", "messages")], False),
        ([("a", "__error__")], False),
        ([("a", "__interrupt__")], True),
        ([("a", "__interrupt__"), ("a", "__resume__")], True),  # answered, not finished with it
        ([("a", "__interrupt__"), ("a", "__error__")], True),  # failed after the answer
        ([("a", "__interrupt__"), ("a", "messages")], False),
        ([("a", "messages"), ("a", "__interrupt__")], False),  # whatever the order
        ([("a", "__interrupt__"), ("a", "__no_writes__")], False),  # finished with nothing to say
        ([("a", "__interrupt__"), ("a", "branch:to:next")], False),
        ([("a", "__interrupt__"), ("b", "messages")], True),  # another task's output
        ([("a", "__interrupt__"), ("b", "__interrupt__"), ("a", "messages")], True),
        ([("null", "__resume__"), ("a", "__interrupt__")], True),
    ],
)
def test_who_waits(writes, waits):
    assert waits_for_human(writes) is waits
