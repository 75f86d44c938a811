"""Random histories, and the property a prune has to keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.support.backends import open_pair
from tests.support.prune_graphs import RUNS, Driver, exact, new_thread, shape

COMMANDS = (
    "plain", "fan", "fan ask", "call", "call ask", "call deep", "keep", "keep ask",
    "keep deep", "plain wait",
)  # fmt: skip
DURABILITIES = ("sync", "async", "exit")


@dataclass(frozen=True)
class History:
    """What to do, how often delta channels are stored, and what is looked at afterwards."""

    operations: tuple[dict[str, Any], ...]
    frequency: int
    keep: int
    afterwards: tuple[dict[str, Any], ...] = ()


def operations(commands: tuple[str, ...] = COMMANDS) -> st.SearchStrategy[dict[str, Any]]:
    at = st.integers(0, 12)
    durability = st.sampled_from(DURABILITIES)
    command = st.sampled_from(commands)
    turn = st.fixed_dictionaries(
        {"kind": st.just("turn"), "cmd": command, "durability": durability}
    )
    return st.one_of(
        turn,
        turn,
        st.fixed_dictionaries(
            {"kind": st.just("resume"), "which": st.integers(0, 2), "durability": durability}
        ),
        st.fixed_dictionaries({"kind": st.just("update"), "cmd": command}, optional={"at": at}),
        st.fixed_dictionaries({"kind": st.just("overwrite")}, optional={"at": at}),
        st.fixed_dictionaries({"kind": st.just("copy"), "at": at}),
        st.fixed_dictionaries({"kind": st.just("travel"), "at": at, "durability": durability}),
        st.fixed_dictionaries({"kind": st.just("turn"), "cmd": command, "at": at}),
    )


def histories(
    commands: tuple[str, ...] = COMMANDS, frequencies: tuple[int, ...] = (1, 2, 5, 1000)
) -> st.SearchStrategy[History]:
    return st.builds(
        History,
        operations=st.lists(operations(commands), min_size=2, max_size=7).map(tuple),
        frequency=st.sampled_from(frequencies),
        keep=st.integers(1, 6),
        afterwards=st.lists(operations(commands), max_size=2).map(tuple),
    )


def check(kind: str, locate: Callable[[str], tuple[str, str]], history: History) -> int:
    """Prune a history, and compare everything that is kept with a twin that was not pruned.

    Returns:
        How many checkpoints the prune removed.

    Raises:
        AssertionError: If anything that is kept reads, replays or goes on differently.
    """
    return asyncio.run(_check(kind, locate(kind), history))


async def _check(kind: str, where: tuple[str, str], history: History) -> int:
    async with open_pair(kind, where) as (place, twin):
        thread_id = new_thread()
        pruned = Driver(place, thread_id, history.frequency)
        whole = Driver(twin, thread_id, history.frequency)
        for operation in history.operations:
            await pruned.perform(operation)
        await place.copy_to(twin, thread_id)

        kept = (await whole.ids())[: history.keep]
        before = place.rows(thread_id)
        outcome = await place.prune(thread_id, history.keep)
        after = place.rows(thread_id)
        assert outcome.left_whole is None, outcome
        gone = before["checkpoints"] - after["checkpoints"]
        assert outcome.removed_checkpoints == len(gone)
        assert {key for key in before["writes"] - after["writes"] if key not in gone} == set()
        assert {("", id_) for id_ in kept} <= after["checkpoints"]

        for at in (None, *kept):
            _same(exact(await pruned.state(at)), exact(await whole.state(at)), f"state at {at}")
        _same(await _history(pruned, kept), await _history(whole, kept), "history")
        if gone and "blobs" in after:
            referenced = {key for key in place.references(thread_id) if key in before["blobs"]}
            assert after["blobs"] == referenced, "blobs"

        goes_on = [{"kind": "resume"}, {"kind": "turn", "cmd": "keep"}]
        for operation in (*goes_on, *history.afterwards):
            await _alike(
                f"{operation}",
                lambda side, operation=operation: _going_on(side, operation, history.keep),
                pruned,
                whole,
            )
        for at in kept[:4]:
            await _alike(f"replay from {at}", lambda side, at=at: _replay(side, at), pruned, whole)
            await _alike(f"branch from {at}", lambda side, at=at: _branch(side, at), pruned, whole)
        return len(gone)


async def _history(side: Driver, kept: list[str]) -> list[Any]:
    return [
        exact(state)
        for state in await side.history()
        if state.config["configurable"]["checkpoint_id"] in kept
    ]


async def _going_on(side: Driver, operation: dict[str, Any], keep: int) -> Any:
    # Positions count from the newest, and only what is kept may be addressed.
    if "at" in operation:
        operation = {**operation, "at": operation["at"] % keep}
    return await side.perform(operation)


async def _replay(side: Driver, at: str) -> Any:
    try:
        return await side.invoke(None, at)
    except Exception as error:  # noqa: BLE001 - it is an answer, too
        return type(error).__name__


async def _branch(side: Driver, at: str) -> Any:
    try:
        fork = await side.update({"plain": ["f"], "delta": ["f"], "cmd": "keep"}, at, "a")
        return await side.invoke(None, fork["configurable"]["checkpoint_id"])
    except Exception as error:  # noqa: BLE001 - it is an answer, too
        return type(error).__name__


async def _alike(what: str, act: Callable[[Driver], Any], pruned: Driver, whole: Driver) -> None:
    seen = []
    for side in (pruned, whole):
        RUNS.clear()
        given = await act(side)
        if isinstance(given, dict):
            given.pop("__interrupt__", None)
        seen.append((given, sorted(RUNS), shape(await side.state())))
    _same(seen[0], seen[1], what)


def _same(one: Any, other: Any, what: str) -> None:
    assert one == other, f"{what}:\n  pruned {one}\n  whole  {other}"
