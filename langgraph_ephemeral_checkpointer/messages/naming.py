"""What to remember a message by, from one save of a run to the next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from langchain_core.messages import BaseMessage

from langgraph_ephemeral_checkpointer.messages.exchanges import number, words_of
from langgraph_ephemeral_checkpointer.messages.stamps import STAMP_KEY, Name, Place


def names_of(messages: Sequence[BaseMessage], place: Place | None) -> list[Name | None]:
    """What to remember each message of a list by.

    Args:
        messages: The messages.
        place: Where the list is; None where it is a part of one only.

    Returns:
        The id of a message, where no other has it, else its words and how many say the same
        before it in this place. None for words without a place.
    """
    ids = [message.id for message in messages]
    if all(ids) and len(set(ids)) == len(ids):
        return [str(name) for name in ids]
    counts = Counter(ids)
    words = number(map(words_of, messages)) if place else []
    return [
        str(name) if name and counts[name] == 1 else (place, words[index].key) if place else None
        for index, name in enumerate(ids)
    ]


def known_stamps(messages: Sequence[BaseMessage], place: Place) -> dict[Name, str]:
    """The stamps that messages came back with from storage, by what to remember them by."""
    return {
        name: stamp
        for name, message in zip(names_of(messages, place), messages, strict=True)
        if name and isinstance(stamp := message.response_metadata.get(STAMP_KEY), str)
    }
