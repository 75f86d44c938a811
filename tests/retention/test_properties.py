"""Whatever the conversation: what a save and what a purge may take, and what they never do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer.retention import (
    RetainedCheckpointer,
    oldest_message_time,
    purge_messages,
    stamp_messages,
    trim_messages,
)

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
MONTH = timedelta(days=30)


def _at(message: Any, day: float) -> Any:
    return stamp_messages([message], BEGIN + timedelta(days=day))[0]


@st.composite
def turns(draw: Any) -> list[list[Any]]:
    """Conversations turn by turn, as agents make them: every kind of message, in time order."""
    day, found = 0.0, []
    for turn in range(draw(st.integers(1, 8))):
        day += draw(st.floats(0, 15))
        ident = iter(f"{turn}.{n}" for n in range(99))
        block = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": "x"}]
        said = draw(st.sampled_from(["hi", block]))
        messages = [_at(HumanMessage(said, id=next(ident)), day)]
        if not turn or draw(st.integers(0, 4)) == 0:
            messages.insert(
                draw(st.integers(0, 1)), _at(SystemMessage("rules", id=next(ident)), day)
            )
        for _ in range(draw(st.integers(0, 2))):
            day += draw(st.floats(0, 3))
            calls = [
                {"name": "t", "args": {}, "id": f"call_{n}"} for n in range(draw(st.integers(1, 3)))
            ]
            messages.append(_at(AIMessage("", tool_calls=calls, id=next(ident)), day))
            for call in draw(st.permutations(calls)):
                day += draw(st.floats(0, 3))
                result = ToolMessage([{"type": "text", "text": "r"}], tool_call_id=call["id"])
                messages.append(_at(result.model_copy(update={"id": next(ident)}), day))
        kind = draw(st.sampled_from(["answer", "chunks", "chat", "none"]))
        if kind == "answer":
            messages.append(_at(AIMessage("answer", id=next(ident)), day))
        elif kind == "chunks":
            one = _at(AIMessageChunk("an", id=f"{turn}.chunk"), day)
            day += draw(st.floats(0, 3))
            messages.append(one + _at(AIMessageChunk("swer", id=f"{turn}.chunk"), day))
        elif kind == "chat":
            messages.append(_at(ChatMessage(role="critic", content="hm", id=next(ident)), day))
        found.append(messages)
    return found


def _ended(exchange: list[Any]) -> datetime:
    ends = (oldest_message_time([m]) for m in exchange if m.type != "system")
    return max(end for end in ends if end is not None)


def _check(before: list[list[Any]], after: list[Any], cutoff: datetime, last: bool) -> None:
    """Whether what is left is what may be left: ``last``, whether the last exchange may go."""
    flat = [message for exchange in before for message in exchange]
    here = {message.id for message in after}
    assert after == [message for message in flat if message.id in here]  # in order, and equal
    assert {m.id for m in flat if m.type == "system"} <= here
    for n, exchange in enumerate(before):
        others = {m.id for m in exchange if m.type != "system"}
        old = _ended(exchange) < cutoff and (last or n < len(before) - 1)
        # Whole exchanges go or stay, so that no call and no result is left alone.
        assert others & here == (set() if old else others)


def _checkpoint(day: float, messages: list[Any]) -> Any:
    ticks = 0x01B21DD213814000 + int((BEGIN + timedelta(days=day)).timestamp() * 1e7)
    digits = f"{ticks:015x}"
    return {
        "v": 4,
        "id": f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}-8000-000000000000",
        "ts": (BEGIN + timedelta(days=day)).isoformat(),
        "channel_values": {"messages": messages},
        "channel_versions": {"messages": f"{int(day * 1000):032}.0"},
        "versions_seen": {},
    }


def _put(saver: Any, day: float, messages: list[Any], config: Any = CONFIG) -> Any:
    made = _checkpoint(day, messages)
    return saver.put(config, made, {"source": "loop", "step": 1}, made["channel_versions"])


def _loaded(saver: Any) -> list[Any]:
    return list(saver.get_tuple(CONFIG).checkpoint["channel_values"]["messages"])


@settings(max_examples=150, derandomize=True, deadline=None)
@given(turns(), st.floats(0, 300))
def test_a_save_takes_whole_old_exchanges_but_the_last_and_nothing_else(before, day):
    now = BEGIN + timedelta(days=day)
    saver = RetainedCheckpointer(InMemorySaver(), max_age=MONTH, clock=now.timestamp)
    _put(saver, 500, [message for exchange in before for message in exchange])
    after = _loaded(saver)
    _check(before, after, now - MONTH, last=False)
    _put(saver, 501, after)
    assert _loaded(saver) == after  # trimming twice is trimming once


@settings(max_examples=100, derandomize=True, deadline=None)
@given(turns(), st.floats(0, 300), st.data())
def test_a_purge_takes_whole_old_exchanges_from_every_checkpoint_and_nothing_else(
    before, day, data
):
    """From older checkpoints too, and from writes with orders to remove messages in them."""
    now = BEGIN + timedelta(days=day)
    saver, config = InMemorySaver(), CONFIG
    for n in range(1, len(before) + 1):
        so_far = [message for exchange in before[:n] for message in exchange]
        config = _put(saver, 500 + n, so_far, config)
        removed = data.draw(st.sampled_from(so_far))
        orders = [RemoveMessage(id=removed.id), *(before[n] if n < len(before) else [])]
        saver.put_writes(config, [("messages", orders)], f"task {n}")
    clock: Any = now.timestamp

    result = purge_messages(saver, MONTH, clock=clock)

    assert (result.errors, result.untrimmed) == ({}, {})
    assert set(result.kept) <= {"t"}
    assert all("goes on" in why for why in result.kept.values())
    found = list(saver.list(CONFIG))[::-1]
    assert len(found) == len(before)
    gone: set[Any] = set()
    for n, one in enumerate(found, start=1):
        after = one.checkpoint["channel_values"]["messages"]
        _check(before[:n], after, now - MONTH, last=True)
        gone |= {m.id for exchange in before[:n] for m in exchange} - {m.id for m in after}
    for one in found:
        for _, _, value in one.pending_writes:
            assert not [m for m in value if m.id in gone and m.type != "system"]
    assert result.message_count == len(gone)
    again = purge_messages(saver, MONTH, clock=clock)
    assert (again.purged_thread_ids, again.row_count) == ([], 0)
    assert [c.checkpoint for c in saver.list(CONFIG)] == [c.checkpoint for c in found[::-1]]


@st.composite
def channels(draw: Any) -> list[Any]:
    """What a channel of messages may hold: conversations, parts of them, posts of a bot."""
    flat = [message for exchange in draw(turns()) for message in exchange]
    kinds = draw(st.sampled_from([{"human"}, {"human", "system"}, {"chat"}, set()]))
    flat = [message for message in flat if message.type not in kinds]
    return flat[draw(st.integers(0, 4)) :]


def _calls(messages: list[Any]) -> list[tuple[str, str]]:
    """(id of the calling message, id of the result) of every call that was answered."""
    callers, pairs = {}, []
    for message in messages:
        if isinstance(message, ToolMessage) and message.tool_call_id in callers:
            pairs.append((callers[message.tool_call_id], message.id))
        callers |= {call["id"]: message.id for call in getattr(message, "tool_calls", [])}
    return pairs


@settings(max_examples=200, derandomize=True, deadline=None)
@given(channels(), st.floats(0, 200))
def test_saves_and_purges_agree_on_what_is_old_in_any_channel(messages, day):
    """A purge takes what a save takes, and the last exchange; neither takes what is young."""
    now = BEGIN + timedelta(days=day)
    saved = RetainedCheckpointer(InMemorySaver(), max_age=MONTH, clock=now.timestamp)
    _put(saved, 500, messages)
    by_save = _loaded(saved)
    purged = InMemorySaver()
    _put(purged, 500, messages)

    purge_messages(purged, MONTH, clock=now.timestamp)

    by_purge = _loaded(purged)
    assert by_purge == trim_messages(messages, now - MONTH)
    here, there = {m.id for m in by_purge}, {m.id for m in by_save}
    assert here <= there
    others = [m for m in messages if m.id in there - here]
    assert not others or others[-1] is [m for m in messages if m.type != "system"][-1]
    for message in messages:
        moment = oldest_message_time([message])
        assert message.id in here or (moment is not None and moment < now - MONTH)
    for caller, result in _calls(messages):
        assert (caller in here) == (result in here)
        assert (caller in there) == (result in there)
    purge_messages(saved, MONTH, clock=now.timestamp)
    assert _loaded(saved) == by_purge
