"""The pure rules: stamps, exchanges, and what trimming may and may not take."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from langgraph_ephemeral_checkpointer.messages.exchanges import facts_of, number, split, verdicts
from langgraph_ephemeral_checkpointer.messages.first_seen import FirstSeen
from langgraph_ephemeral_checkpointer.messages.stamps import parse_stamp
from langgraph_ephemeral_checkpointer.retention import (
    oldest_message_time,
    stamp_messages,
    trim_messages,
)

START = datetime(2024, 1, 1, tzinfo=UTC)
KEY = "checkpointed_at"


def _at(message: Any, day: float | None) -> Any:
    """The message with a stamp so many days after the start; None for no stamp."""
    return message if day is None else stamp_messages([message], START + timedelta(days=day))[0]


@st.composite
def conversations(draw: Any) -> list[Any]:
    """Conversations of all kinds of messages, in time order, some of them without stamps."""
    messages: list[Any] = []
    day = 0.0
    open_calls: list[str] = []
    for n in range(draw(st.integers(0, 25))):
        day += draw(st.floats(0, 10))
        stamp = draw(st.sampled_from([day, day, day, None]))
        kind = draw(st.sampled_from(["human", "human", "ai", "calls", "tool", "system", "chat"]))
        ident = draw(st.sampled_from([f"id{n}", None]))
        if kind == "human":
            messages.append(_at(HumanMessage(draw(st.sampled_from(["hi", "ok"])), id=ident), stamp))
        elif kind == "ai":
            messages.append(_at(AIMessage("answer", id=ident), stamp))
        elif kind == "calls":
            # Ids that are used again in a later turn, as models that count their calls do.
            ids = [f"call_{k}" for k in range(draw(st.integers(1, 3)))]
            calls = [{"name": "t", "args": {}, "id": call} for call in ids]
            open_calls = [call for call in open_calls if call not in ids] + ids
            messages.append(_at(AIMessage("", tool_calls=calls, id=ident), stamp))
        elif kind == "tool" and open_calls:
            call = open_calls.pop(draw(st.integers(0, len(open_calls) - 1)))
            messages.append(_at(ToolMessage("r", tool_call_id=call, id=ident), stamp))
        elif kind == "system":
            messages.append(_at(SystemMessage("rules", id=ident), stamp))
        elif kind == "chat":
            messages.append(_at(ChatMessage(role="user", content="hey", id=ident), stamp))
    return messages


def _pairs(messages: list[Any]) -> list[tuple[int, int]]:
    """(identity of the calling message, identity of the result) for every answered call."""
    callers: dict[str, Any] = {}
    pairs = []
    for message in messages:
        if isinstance(message, ToolMessage) and message.tool_call_id in callers:
            pairs.append((id(callers[message.tool_call_id]), id(message)))
        for call in getattr(message, "tool_calls", []):
            callers[call["id"]] = message
    return pairs


@settings(max_examples=400, derandomize=True, deadline=None)
@given(conversations(), st.floats(-5, 200))
def test_trimming_takes_whole_old_exchanges_and_nothing_else(messages, day):
    cutoff = START + timedelta(days=day)
    before = list(messages)
    kept = trim_messages(messages, cutoff)
    here = {id(message) for message in kept}

    assert messages == before  # the list that came in is as it was
    assert [id(m) for m in messages if id(m) in here] == [id(m) for m in kept]  # same, in order
    assert all(id(m) in here for m in messages if m.type == "system")
    for caller, result in _pairs(messages):
        assert (caller in here) == (result in here)
    assert trim_messages(kept, cutoff) == kept
    facts = number(map(facts_of, messages))
    for exchange in split(facts):
        opener = next(
            (i for i in exchange if facts[i].role in {"human", "user"}),
            next((i for i in exchange if facts[i].role != "system"), None),
        )
        going = {i for i in exchange if id(messages[i]) not in here}
        others = {i for i in exchange if facts[i].role != "system"}
        assert going in (set(), others)  # whole, or not at all
        if going:
            assert facts[opener].stamp is not None
            assert all(
                fact.stamp is None or fact.stamp < cutoff for fact in map(facts.__getitem__, going)
            )


@settings(max_examples=200, derandomize=True, deadline=None)
@given(conversations(), st.floats(-5, 200))
def test_the_exchange_in_progress_and_the_protected_ones_stay(messages, day):
    cutoff = START + timedelta(days=day)
    facts = number(map(facts_of, messages))
    exchanges = split(facts)
    if not exchanges:
        return
    last = verdicts(facts, cutoff, keep_last=True)
    assert not any(last[i] for i in exchanges[-1])
    first = facts[exchanges[0][0]].key
    assert not any(verdicts(facts, cutoff, protected={first})[i] for i in exchanges[0])


def test_old_exchanges_that_nothing_holds_do_go():
    """Each rule above would also hold for a function that trims nothing."""
    messages = [
        _at(SystemMessage("s"), 0),
        _at(AIMessage("welcome"), 0),
        _at(HumanMessage("a"), 1),
        _at(AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": "call_0"}]), 1),
        _at(ToolMessage("r", tool_call_id="call_0"), 9),
        _at(HumanMessage("b"), 20),
        _at(AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": "call_0"}]), 20),
        _at(ToolMessage("r", tool_call_id="call_0"), 20),
    ]
    kept = trim_messages(messages, START + timedelta(days=10))
    assert kept == [messages[0], *messages[5:]]
    assert trim_messages(messages, START + timedelta(days=30)) == [messages[0]]


def test_an_unstamped_exchange_in_front_does_not_hold_the_stamped_ones_behind_it():
    messages = [
        HumanMessage("nobody knows when"),
        AIMessage("?"),
        _at(HumanMessage("old"), 1),
        _at(AIMessage("old"), 1),
        _at(HumanMessage("new"), 50),
    ]
    assert trim_messages(messages, START + timedelta(days=40)) == [*messages[:2], messages[4]]


def test_a_result_that_came_in_a_later_exchange_keeps_its_call():
    """A call and its result on two sides of a human message stay or go together."""
    call = {"name": "t", "args": {}, "id": "c"}
    messages = [
        _at(HumanMessage("a"), 1),
        _at(AIMessage("", tool_calls=[call]), 1),
        _at(HumanMessage("wait, also"), 50),
        _at(ToolMessage("r", tool_call_id="c"), 50),
    ]
    assert trim_messages(messages, START + timedelta(days=40)) == messages
    assert trim_messages(messages, START + timedelta(days=60)) == []


def test_tool_results_inside_human_content_blocks_count_too():
    call = {"name": "t", "args": {}, "id": "c"}
    block = [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]
    messages = [
        _at(HumanMessage("a"), 1),
        _at(AIMessage("", tool_calls=[call]), 1),
        _at(HumanMessage(block), 50),
    ]
    assert trim_messages(messages, START + timedelta(days=40)) == messages


def test_an_exchange_goes_when_all_of_it_is_old():
    messages = [_at(HumanMessage("post when it rains"), 1), _at(AIMessage("it rains"), 50)]
    assert trim_messages(messages, START + timedelta(days=40)) == messages
    assert trim_messages(messages, START + timedelta(days=51)) == []


def test_a_summary_is_no_younger_than_the_message_it_was_put_in_front_of():
    """It is written today, and stands for what was said before that message."""
    summary = HumanMessage("so far", additional_kwargs={"lc_source": "summarization"})
    messages = [
        _at(SystemMessage("rules"), 0),
        _at(summary, 50),
        _at(AIMessage("a"), 5),
        _at(HumanMessage("q"), 45),
        _at(AIMessage("a"), 46),
    ]
    assert trim_messages(messages, START + timedelta(days=40)) == [messages[0], *messages[3:]]
    assert trim_messages(messages, START + timedelta(days=4)) == messages
    alone = [messages[1], *messages[3:]]
    assert trim_messages(alone, START + timedelta(days=45)) == alone
    assert trim_messages(alone, START + timedelta(days=46)) == [messages[3], messages[4]]
    assert trim_messages([messages[1]], START + timedelta(days=49)) == [messages[1]]
    assert trim_messages([summary, messages[2]], START + timedelta(days=49)) == [
        summary,
        messages[2],
    ]  # nobody knows when it was written


def test_without_a_human_message_each_message_goes_by_its_own_age():
    """A result of a tool goes with its call, wherever it stands."""
    calls = [{"name": "t", "args": {}, "id": ident} for ident in ("c", "d")]
    messages = [
        _at(SystemMessage("rules"), 0),
        _at(AIMessage("a"), 1),
        _at(AIMessage("", tool_calls=calls[:1]), 2),
        _at(AIMessage("", tool_calls=calls[1:]), 3),
        _at(AIMessage("b"), 4),
        _at(ToolMessage("r", tool_call_id="c"), 50),
        _at(ToolMessage("r", tool_call_id="d"), 5),
    ]
    kept = trim_messages(messages, START + timedelta(days=40))
    assert kept == [messages[0], messages[2], messages[5]]
    assert trim_messages(messages, START) == messages
    assert trim_messages(messages, START + timedelta(days=51)) == messages[:1]
    facts = number(map(facts_of, messages))
    assert split(facts)[-1] == [3, 6]  # the one in progress is that of the last message
    assert not any(verdicts(facts, START + timedelta(days=51), keep_last=True)[i] for i in (3, 6))


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2024-03-01T12:00:00+02:00", "2024-03-01T10:00:00+00:00"),
        ("2024-03-01T12:00:00Z", "2024-03-01T12:00:00+00:00"),
        ("2024-03-01T12:00:00.123456", "2024-03-01T12:00:00.123456+00:00"),
        ("2024-03-01", "2024-03-01T00:00:00+00:00"),
        ("2024-03-012024-03-03", "2024-03-03T00:00:00+00:00"),
        ("2024-03-01T00:00:00.1234562024-03-02T00:00:00Z", "2024-03-02T00:00:00+00:00"),
        ("2024-03-02T00:00:00-05:002024-03-02T01:00:00+00:00", "2024-03-02T05:00:00+00:00"),
        (datetime(2024, 3, 1), "2024-03-01T00:00:00+00:00"),
        ("yesterday", None),
        ("2024-02-31", None),
        ("2024-03-01T00:00:00Zjunk", None),
        ("2024-03-01junk2024-03-02", None),
        ("", None),
        (1_700_000_000, None),
        (None, None),
        (["2024-03-01"], None),
    ],
)
def test_stamps_in_any_zone_and_form(stamp, expected):
    moment = parse_stamp(stamp)
    assert (moment and moment.isoformat()) == expected


def test_merged_chunks_are_as_old_as_their_youngest_part():
    chunks = [
        stamp_messages([AIMessageChunk(text)], START + timedelta(days=day))[0]
        for day, text in enumerate("abc")
    ]
    merged = chunks[0] + chunks[1] + chunks[2]
    assert oldest_message_time([merged]) == START + timedelta(days=2)


def test_stamping_makes_new_messages_and_leaves_stamped_ones_alone():
    kinds: list[Any] = [
        HumanMessage([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": "x"}]),
        AIMessage("a", tool_calls=[{"name": "t", "args": {}, "id": "c"}]),
        ToolMessage("r", tool_call_id="c", artifact=object()),
        SystemMessage("s"),
        FunctionMessage(name="f", content="r"),
        ChatMessage(role="critic", content="c"),
        AIMessageChunk("x"),
    ]
    before = [message.model_copy(deep=False) for message in kinds]
    stamped = stamp_messages(kinds, datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1))))

    assert kinds == before
    assert all(KEY not in message.response_metadata for message in kinds)
    assert {m.response_metadata[KEY] for m in stamped} == {"2023-12-31T23:00:00.000000+00:00"}
    assert [type(m) for m in stamped] == [type(m) for m in kinds]
    again = stamp_messages(stamped, START)
    assert all(new is old for new, old in zip(again, stamped, strict=True))
    odd = HumanMessage("x", response_metadata={KEY: "garbage"})
    order = RemoveMessage(id="x")
    assert stamp_messages([odd, order], START) == [odd, order]
    assert trim_messages([odd], START + timedelta(days=1)) == [odd]
    assert oldest_message_time([*stamped, odd]) == datetime(2023, 12, 31, 23, tzinfo=UTC)
    assert oldest_message_time([odd, HumanMessage("y")]) is None


def test_first_seen_is_bounded_and_forgets_the_least_recently_used_thread():
    seen = FirstSeen(limit=10)
    for thread in "abcdef":
        seen.stamps(thread, [f"{n}" for n in range(3)], f"first of {thread}")
    assert len(seen) <= 10
    assert seen.stamps("f", ["0"], "later") == ["first of f"]
    assert seen.stamps("a", ["0"], "later") == ["later"]
    assert len(seen) <= 10
    seen.stamps("big", [f"{n}" for n in range(1000)], "x")
    assert len(seen) <= 10
    seen.forget("big")
    assert len(seen) == 0


@pytest.mark.parametrize(
    "wrong", [None, 5.0, "2026-01-01", datetime(2026, 1, 1, tzinfo=UTC).date()]
)
def test_a_moment_that_is_none_is_refused(wrong):
    for function, name in ((stamp_messages, "now"), (trim_messages, "cutoff")):
        with pytest.raises(TypeError, match=f"{name} must be a datetime"):
            function([HumanMessage("q")], wrong)


@pytest.mark.parametrize(
    "wrong", [HumanMessage("q"), ["q"], [("user", "q")], [{"role": "user", "content": "q"}]]
)
def test_what_is_no_list_of_messages_is_refused(wrong):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for call in (
        lambda: stamp_messages(wrong, moment),
        lambda: trim_messages(wrong, moment),
        lambda: oldest_message_time(wrong),
    ):
        with pytest.raises(TypeError, match="messages must be"):
            call()


def test_any_iterable_of_messages_will_do():
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    stamped = stamp_messages((m for m in [HumanMessage("q"), AIMessage("a")]), moment)
    assert oldest_message_time(iter(stamped)) == moment
    assert trim_messages(iter(stamped), moment) == stamped
