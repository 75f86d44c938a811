"""The rule itself, on rows made up for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_ephemeral_checkpointer.decisions.survivors import (
    Contents,
    LeaveWholeError,
    Row,
    freed_versions,
    replay_rows,
    survivors_of,
)


def chain(count, **contents):
    """A root namespace of `count` checkpoints, each the parent of the next."""
    rows, inside = [], {}
    for at in range(count):
        parent = f"{at - 1:03}" if at else None
        rows.append(Row("", f"{at:03}", parent))
        inside["", f"{at:03}"] = Contents(parent=parent, **contents)
    return rows, inside


def decide(rows, inside, keep):
    def read(need):
        return {
            key: contents
            for key, contents in inside.items()
            if key in need.keys or key[0] in need.namespaces
        }

    return survivors_of(rows, read, keep)


def test_a_plain_thread_keeps_exactly_its_newest():
    found = decide(*chain(9), 3)
    assert found.kept == {"": {"006", "007", "008"}}


@pytest.mark.parametrize("keep", [5, 6])
def test_a_thread_that_is_short_enough_is_not_trimmed(keep):
    assert decide(*chain(5), keep) is None


def test_channels_of_one_step_are_no_reason_to_read_more():
    rows, inside = chain(9, unstored=frozenset({"__start__", "branch:to:a", "join:a+b:c"}))
    asked = []

    def read(need):
        asked.append(need)
        return {key: inside[key] for key in need.keys}

    assert survivors_of(rows, read, 2).kept == {"": {"007", "008"}}
    assert [need.namespaces for need in asked] == [frozenset()]


def test_a_delta_channel_keeps_every_ancestor_down_to_the_one_with_a_value():
    rows, inside = chain(9, unstored=frozenset({"d"}), delta=frozenset({"d"}))
    inside["", "004"] = replace(inside["", "004"], stored=frozenset({"d"}), unstored=frozenset())
    assert decide(rows, inside, 2).kept == {"": {"004", "005", "006", "007", "008"}}


def test_a_delta_channel_without_any_value_keeps_everything_down_to_the_root():
    rows, inside = chain(5, unstored=frozenset({"d"}), delta=frozenset({"d"}))
    assert decide(rows, inside, 1).kept == {"": {f"{at:03}" for at in range(5)}}


def test_that_a_channel_is_a_delta_channel_may_be_seen_on_another_branch_alone():
    rows, inside = chain(6, unstored=frozenset({"d"}))
    inside["", "000"] = replace(inside["", "000"], stored=frozenset({"d"}), delta=frozenset({"d"}))
    assert len(decide(rows, inside, 1).kept[""]) == 6
    inside["", "000"] = replace(inside["", "000"], delta=frozenset())
    assert decide(rows, inside, 1).kept[""] == {"005"}


def test_a_thread_marked_by_langgraph_js_keeps_what_any_of_its_channels_may_need():
    rows, inside = chain(6, unstored=frozenset({"d", "branch:to:a"}))
    inside["", "000"] = replace(inside["", "000"], all_delta=True)
    inside["", "002"] = replace(inside["", "002"], stored=frozenset({"d"}))
    assert decide(rows, inside, 1).kept[""] == {"002", "003", "004", "005"}


def test_a_broken_chain_leaves_the_thread_whole():
    rows, inside = chain(6, unstored=frozenset({"d"}), delta=frozenset({"d"}))
    del inside["", "002"]
    with pytest.raises(LeaveWholeError, match="rebuilt from checkpoint 002, which is not stored"):
        decide([row for row in rows if row.id != "002"], inside, 2)


def test_what_a_trim_took_before_a_delta_channel_began_is_not_missed():
    """Trimmed in its first turn, a thread would else be left whole until the next snapshot."""
    rows, inside = chain(6, unstored=frozenset({"d"}), delta=frozenset({"d"}))
    inside["", "002"] = Contents(parent="001")  # which had no value yet
    for gone in ("000", "001"):
        del inside["", gone]
    found = decide([row for row in rows if ("", row.id) in inside], inside, 1)
    assert found.kept[""] == {"002", "003", "004", "005"}


def test_a_chain_that_is_a_loop_ends():
    rows, inside = chain(6, unstored=frozenset({"d"}), delta=frozenset({"d"}))
    inside["", "000"] = replace(inside["", "000"], parent="003")
    assert len(decide(rows, inside, 1).kept[""]) == 6


def test_the_parent_with_the_pending_sends_of_an_old_format_stays():
    rows, inside = chain(6)
    inside["", "004"] = replace(inside["", "004"], sends_parent="003")
    assert decide(rows, inside, 2).kept[""] == {"003", "004", "005"}


CALL = "sub:0d5ce2e8"


@pytest.mark.parametrize(
    ("callers", "stays"),
    [
        ([{"": "005"}], True),  # a root that stays
        ([{"": "001"}], False),  # one that goes
        ([{"": "999"}], True),  # one that is not stored (yet)
        ([{"": "001"}, {"": "005"}], True),
        ([{}], True),  # nobody knows whose it is
        ([{"": "001"}, {}], False),
        ([{"": "001", "keep": "k9"}], True),  # a persistent row that stays
        ([{"": "001", "keep": "k1"}], False),  # one that goes
    ],
)
def test_a_call_goes_only_with_what_made_it(callers, stays):
    rows, inside = chain(6)
    rows += [Row(CALL, f"c{at}", callers=caller) for at, caller in enumerate(callers)]
    for id_ in ("k1", "k9"):
        rows.append(Row("keep", id_))
        inside["keep", id_] = Contents()
    found = decide(rows, inside, 2)
    assert (CALL in found.whole, found.kept.get(CALL)) == (
        (True, None) if stays else (False, set())
    )


def test_a_call_stays_with_a_root_that_stays_for_its_delta_channel():
    rows, inside = chain(6, unstored=frozenset({"d"}), delta=frozenset({"d"}))
    rows.append(Row(CALL, "c", callers={"": "001"}))
    assert decide(rows, inside, 1).whole == {CALL}


def test_a_persistent_subgraph_keeps_what_each_kept_root_would_replay():
    rows, inside = chain(6)
    rows[5] = Row("", "005", "001", source="update")  # replays what was before its parent
    for id_ in ("000a", "001a", "003a", "003b", "004a", "005a", "005b"):
        rows.append(Row("keep", id_))
        inside["keep", id_] = Contents()
    # below 004: 003b; below 005: 004a; below 001: 000a; the newest: 005b
    assert decide(rows, inside, 2).kept["keep"] == {"003b", "004a", "000a", "005b"}


@settings(derandomize=True)
@given(st.sets(st.text(max_size=3)), st.sets(st.text(max_size=3)))
def test_a_replay_finds_the_same_row_below_every_bound_as_before(ids, bounds):
    kept = replay_rows(ids, bounds)
    assert kept <= ids
    assert max(kept, default=None) == max(ids, default=None)
    for bound in bounds:
        assert max((i for i in kept if i < bound), default=None) == max(
            (i for i in ids if i < bound), default=None
        )


@st.composite
def forests(draw):
    """A root namespace in which delta channels are stored here and there, with forks."""
    count = draw(st.integers(1, 12))
    rows, inside = [], {}
    for at in range(count):
        parent = f"{draw(st.integers(0, at - 1)):02}" if at and draw(st.integers(0, 9)) else None
        stored = draw(st.frozensets(st.sampled_from("de")))
        rows.append(Row("", f"{at:02}", parent))
        inside["", f"{at:02}"] = Contents(
            parent, stored, frozenset("de") - stored, delta=frozenset("de")
        )
    return rows, inside


@settings(derandomize=True, max_examples=200)
@given(forests(), st.integers(1, 12))
def test_every_kept_delta_channel_is_rebuilt_from_the_same_rows_as_before(forest, keep):
    rows, inside = forest
    found = decide(rows, inside, keep)
    left = {row.id for row in rows} if found is None else found.kept[""]
    newest = sorted(row.id for row in rows)[-keep:]
    assert set(newest) <= left

    def walk(id_, channel, stored):
        seen = []
        while id_ is not None and id_ in stored:
            seen.append(id_)
            if len(seen) == 1 and channel in inside["", id_].stored:
                return seen  # held by the checkpoint itself
            if len(seen) > 1 and channel in inside["", id_].stored:
                return seen
            id_ = inside["", id_].parent
        return seen

    for id_ in newest:
        for channel in "de":
            before = walk(id_, channel, {row.id for row in rows})
            assert walk(id_, channel, left) == before
    # and nothing stays that none of them needs
    needed = {i for id_ in newest for c in "de" for i in walk(id_, c, {row.id for row in rows})}
    assert found is None or left == needed


PAIRS = st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 5)))


@settings(derandomize=True)
@given(PAIRS, PAIRS)
def test_a_version_is_freed_when_and_only_when_nothing_that_stays_names_it(gone, kept):
    freed = freed_versions(gone, kept)
    assert freed.isdisjoint(kept)
    assert freed | (gone & kept) == gone
