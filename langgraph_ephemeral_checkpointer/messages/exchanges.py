"""Which exchanges of a conversation go. Pure: facts about messages in, verdicts out.

An exchange is a human message and everything up to the next one. Whole exchanges go or
stay, so a tool result neither outlives its call nor loses it, and one goes when all of it
is old. Where no human speaks, each message is an exchange of its own, with the results of
the tools it calls.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from langchain_core.messages import BaseMessage

from langgraph_ephemeral_checkpointer.messages.arguments import check_messages, check_moment
from langgraph_ephemeral_checkpointer.messages.stamps import STAMP_KEY, as_utc, parse_stamp

M = TypeVar("M", bound=BaseMessage)

HUMAN = frozenset({"human", "user"})
_SYSTEM = frozenset({"system", "developer"})
NO_ID = "\0sha256:"
"""What the key of a message without an id begins with."""

SUMMARY_SOURCE = "summarization"
"""What LangChain's middleware writes under ``lc_source`` of a message that sums others up."""

_ROLES = {"assistant": "ai", "user": "human", "developer": "system"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What retention needs to know of one message, whether it was decoded or not."""

    role: str
    """``human``, ``ai``, ``tool``, ``system``, ``remove`` or another."""
    key: str
    """Names the message in its thread: its id, or a digest of what it says."""
    stamp: datetime | None
    """When it was first saved, in UTC; None where nothing tells."""
    calls: tuple[str, ...] = ()
    """Ids of the tool calls it makes."""
    answers: tuple[str, ...] = ()
    """Ids of the tool calls it answers."""
    removes: bool = False
    """Whether it is no message but the order to remove the one named by ``key``."""
    summary: bool = False
    """Whether it stands for what was said before the messages behind it."""


def facts_from(fields: Mapping[str, Any]) -> Facts:
    """The facts of a message given as the mapping of its fields, as serializers store it."""
    role = _role(fields)
    content = fields.get("content")
    calls, answers = [], []
    for name in ("tool_calls", "invalid_tool_calls"):
        calls += [call.get("id") for call in _dicts(fields.get(name))]
    answers.append(fields.get("tool_call_id"))
    answers += [
        block.get("tool_use_id") for block in _dicts(content) if block.get("type") == "tool_result"
    ]
    metadata, more = fields.get("response_metadata"), fields.get("additional_kwargs")
    return Facts(
        role=role,
        key=str(fields["id"]) if fields.get("id") else _digest(role, fields),
        stamp=parse_stamp(metadata.get(STAMP_KEY)) if isinstance(metadata, Mapping) else None,
        calls=tuple(str(call) for call in calls if call),
        answers=tuple(str(answer) for answer in answers if answer),
        removes=role == "remove",
        summary=isinstance(more, Mapping) and more.get("lc_source") == SUMMARY_SOURCE,
    )


def _role(fields: Mapping[str, Any]) -> str:
    return _role_named(str(fields.get("type") or ""), str(fields.get("role") or ""))


@lru_cache(maxsize=1000)  # every save asks for the role of every message again
def _role_named(kind: str, own: str) -> str:
    role = (kind or own).removesuffix("Chunk").removesuffix("Message").lower()
    if role == "chat":  # ChatMessage carries the role of its own
        role = own.lower() or "chat"
    return _ROLES.get(role, role)


def is_human(message: BaseMessage) -> bool:
    """Whether a message opens an exchange."""
    return _role(vars(message)) in HUMAN


def is_summary(message: BaseMessage) -> bool:
    """Whether LangChain's middleware wrote a message in place of what was said before."""
    return bool(message.additional_kwargs.get("lc_source") == SUMMARY_SOURCE)


def facts_of(message: BaseMessage) -> Facts:
    """The facts of a message object."""
    return facts_from(vars(message))


def words_of(message: BaseMessage) -> Facts:
    """The facts of a message object, named by what it says, whether it has an id or not."""
    facts = facts_of(message)
    if facts.key.startswith(NO_ID):
        return facts
    return replace(facts, key=_digest(facts.role, vars(message)))


def number(facts: Iterable[Facts]) -> list[Facts]:
    """Tell messages without an id and with the same words apart by their order."""
    seen: Counter[str] = Counter()
    numbered = []
    for fact in facts:
        if fact.key.startswith(NO_ID):
            seen[fact.key] += 1
            if (count := seen[fact.key]) > 1:
                numbered.append(replace(fact, key=f"{fact.key}/{count}"))
                continue
        numbered.append(fact)
    return numbered


def digest_of(key: str) -> str | None:
    """What the key of a message without an id says of its words; None for an id."""
    return key[: len(NO_ID) + 64] if key.startswith(NO_ID) else None


def _digest(role: str, fields: Mapping[str, Any]) -> str:
    said = [role, fields.get("name"), fields.get("content"), fields.get("tool_call_id")]
    said.append([call.get("id") for call in _dicts(fields.get("tool_calls"))])
    text = json.dumps(said, sort_keys=True, default=repr)
    return NO_ID + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def split(messages: Sequence[Facts]) -> list[list[int]]:
    """The exchanges of a conversation, each as the indices of its messages.

    Messages before the first human one belong to the first exchange. In a conversation
    without a human message each message is one, together with the results of its calls.

    Returns:
        The exchanges; the last message of the conversation is in the last one.
    """
    if not any(message.role in HUMAN for message in messages):
        return _split_by_calls(messages)
    exchanges: list[list[int]] = []
    opened = False
    for index, message in enumerate(messages):
        if message.role in HUMAN and opened:
            exchanges.append([index])
        elif exchanges:
            exchanges[-1].append(index)
        else:
            exchanges.append([index])
        opened = opened or message.role in HUMAN
    return exchanges


def _split_by_calls(messages: Sequence[Facts]) -> list[list[int]]:
    exchanges: list[list[int]] = []
    called: dict[str, list[int]] = {}
    rules_only = True
    for index, message in enumerate(messages):
        home = next((called[answer] for answer in message.answers if answer in called), None)
        if home is None and exchanges and (rules_only or message.role in _SYSTEM):
            home = exchanges[-1]
        if home is None:
            exchanges.append(home := [])
        home.append(index)
        called |= dict.fromkeys(message.calls, home)
        rules_only = rules_only and message.role in _SYSTEM
    return sorted(exchanges, key=lambda exchange: exchange[-1])


def opening(messages: Sequence[Facts], exchange: Sequence[int]) -> Facts | None:
    """The message an exchange is named by.

    That is its human message; without one, its first that is not a system message. None
    where there are system messages only.
    """
    first = None
    for index in exchange:
        message = messages[index]
        if message.role in HUMAN:
            return message
        if first is None and message.role not in _SYSTEM:
            first = message
    return first


def openings_in_progress(messages: Sequence[Facts]) -> set[str]:
    """The keys of the messages that opened what a step goes on with.

    That is the last exchange. Where no human speaks, nothing tells where the work that is
    going on began: then it is all of them.
    """
    exchanges = split(messages)
    if exchanges and any(message.role in HUMAN for message in messages):
        exchanges = exchanges[-1:]
    first = (opening(messages, exchange) for exchange in exchanges)
    return {message.key for message in first if message}


Identity: TypeAlias = tuple[str, datetime | None]
"""What is one exchange wherever it is stored: the key and the age of what opened it."""


def verdicts(
    messages: Sequence[Facts],
    cutoff: datetime,
    *,
    keep_last: bool = False,
    protected: Collection[str] = frozenset(),
    lasting: Collection[Identity] = frozenset(),
) -> list[bool]:
    """Decide which messages go.

    An exchange goes when everything in it is older than the cut-off. It stays when nothing
    tells the age of the message that opened it, when it is protected, and when a tool call
    on either side of its border ties it to one that stays. System messages always stay.

    Args:
        messages: The conversation, in order, dated.
        cutoff: What was saved at or after this moment is young.
        keep_last: Keep the last exchange whatever its age: it is in progress.
        protected: Keys of messages whose exchange stays whatever its age.
        lasting: Exchanges that stay because something young is in another version of them.

    Returns:
        For each message whether it goes.
    """
    exchanges = split(messages)
    home = {index: n for n, exchange in enumerate(exchanges) for index in exchange}
    stays = [
        not _expired(messages, exchange, cutoff)
        or identity(messages, exchange) in lasting
        or any(messages[index].key in protected for index in exchange)
        for exchange in exchanges
    ]
    if keep_last and stays:
        stays[-1] = True
    _spread(stays, _ties(messages, home))
    return [
        not stays[home[index]] and message.role not in _SYSTEM
        for index, message in enumerate(messages)
    ]


def dated(messages: Sequence[Facts], born: Mapping[str, datetime]) -> list[Facts]:
    """The same messages, each with its age in place of its stamp.

    A summary that LangChain's middleware put in front of messages is of the day it was written,
    but stands for what was said before them: it is no younger than the first of them.

    Args:
        messages: The conversation, in order.
        born: Ages known from elsewhere, by message key; they count before the stamp.
    """
    found = []
    behind = None
    for message in reversed(messages):
        moment = message.stamp
        if moment is None or not message.key.startswith(NO_ID):
            moment = born.get(message.key, moment)  # else: the same words may be older
        if message.summary and moment and behind:
            moment = min(moment, behind)
        elif message.role not in _SYSTEM and not message.summary:
            behind = moment or behind
        found.append(message if moment == message.stamp else replace(message, stamp=moment))
    return found[::-1]


def facts_in(messages: Iterable[BaseMessage]) -> list[Facts]:
    """The facts of a conversation of message objects, dated by their stamps."""
    return dated(number(map(facts_of, messages)), {})


def identity(messages: Sequence[Facts], exchange: Sequence[int]) -> Identity | None:
    """What tells that exchanges in two versions of a conversation are one."""
    message = opening(messages, exchange)
    return (message.key, message.stamp) if message else None


def is_young(message: Facts, cutoff: datetime) -> bool:
    """Whether a message may not go yet. Rules for the model are of no age."""
    if message.role in _SYSTEM:
        return False
    return message.stamp is not None and message.stamp >= as_utc(cutoff)


def _expired(messages: Sequence[Facts], exchange: Sequence[int], cutoff: datetime) -> bool:
    message = opening(messages, exchange)
    if message is None or message.stamp is None:
        return False
    return not any(is_young(messages[index], cutoff) for index in exchange)


def _ties(messages: Sequence[Facts], home: Mapping[int, int]) -> list[tuple[int, int]]:
    """Pairs of exchanges with a tool call in one and its result in the other.

    A result belongs to the nearest call of that id before it: ids are only unique within
    a turn where a model counts its calls itself.
    """
    called: dict[str, int] = {}
    ties: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        ties += [
            (called[answer], home[index])
            for answer in message.answers
            if called.get(answer, home[index]) != home[index]
        ]
        for call in message.calls:
            called[call] = home[index]
    return ties


def _spread(stays: list[bool], ties: Sequence[tuple[int, int]]) -> None:
    changed = bool(ties)
    while changed:
        changed = False
        for one, other in ties:
            if stays[one] != stays[other]:
                stays[one] = stays[other] = changed = True


def trim_messages(messages: Iterable[M], cutoff: datetime) -> list[M]:
    """Drop the exchanges that are older than a moment.

    Args:
        messages: A conversation, in order; it is not changed.
        cutoff: Exchanges all of whose messages were stamped before it go; naive means UTC.

    Returns:
        A new list with the messages that stay, the same objects in the same order: every
        system message, every exchange with a message that is not older or whose opening
        message has no readable stamp, and whatever a tool call ties to an exchange that stays.

    Raises:
        TypeError: Something in it is no message, or ``cutoff`` is no datetime.
    """
    check_moment(cutoff, "cutoff")
    messages = check_messages(messages)
    goes = verdicts(facts_in(messages), cutoff)
    return [message for message, gone in zip(messages, goes, strict=True) if not gone]
