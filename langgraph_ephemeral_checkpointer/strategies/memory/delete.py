"""Deleting threads from an InMemorySaver, one after the other.

The saver has no lock: a thread is read, judged, and taken out by one ``pop``, and put back if
what came out is not what was judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Recheck
from langgraph_ephemeral_checkpointer.strategies.memory.access import (
    Keys,
    Stored,
    checkpoints_of,
    keys_by_text,
)
from langgraph_ephemeral_checkpointer.strategies.memory.birth import forget_memory
from langgraph_ephemeral_checkpointer.strategies.memory.find import facts_of, waits


def delete_threads(
    saver: Any, thread_ids: Sequence[str], recheck: Recheck | None
) -> dict[str, Outcome]:
    """Read threads, judge them, and erase those that are to go.

    Args:
        saver: The InMemorySaver.
        thread_ids: The threads.
        recheck: Judges each by what is read here; None to erase whatever is there.
    """
    outcomes: dict[str, Outcome] = {}
    keys = keys_by_text(saver, thread_ids)
    rest = _rest_of(saver, {key for found in keys.values() for key in found})
    for text in thread_ids:
        try:
            why_kept = _take(saver, text, keys.get(text, ()), recheck)
        except Exception as error:  # noqa: BLE001 - the threads before it are gone already
            outcomes[text] = Outcome(KeepReason.FAILED, f"{type(error).__name__}: {error}")
            continue
        if why_kept is None:
            for key in keys[text]:
                for table, entry in rest.get(key, ()):
                    table.pop(entry, None)
                forget_memory(saver, key)
        outcomes[text] = Outcome(why_kept)
    return outcomes


def _rest_of(saver: Any, keys: Collection[Any]) -> dict[Any, list[tuple[dict[Any, Any], Any]]]:
    """List the writes and blobs of threads.

    In one pass for the whole batch, since they cannot be looked up by thread. And before any
    thread is taken out: what comes later belongs to a run that begins anew.
    """
    rest: dict[Any, list[tuple[dict[Any, Any], Any]]] = defaultdict(list)
    for table in (saver.writes, saver.blobs):
        for entry in list(table):
            if entry[0] in keys:
                rest[entry[0]].append((table, entry))
    return rest


def _take(saver: Any, text: str, keys: Keys, recheck: Recheck | None) -> KeepReason | None:
    """Judge a thread and take its checkpoints out; return why it is kept."""
    if recheck is None:
        return _take_out(saver, keys, None)
    read = checkpoints_of(saver, keys)
    why_kept = recheck(text, facts_of(saver, text, read, waits(saver, keys)))
    return _take_out(saver, keys, read) if why_kept is None else why_kept


def _take_out(saver: Any, keys: Keys, judged: Sequence[Stored] | None) -> KeepReason | None:
    storage = saver.storage
    popped = {key: storage.pop(key) for key in keys if key in storage}
    if not popped:
        return KeepReason.GONE
    # By their ids: beside a prune of as many, a save leaves the number as it was.
    taken = {
        (key, namespace, checkpoint_id)
        for key, thread in popped.items()
        for namespace, rows in list(thread.items())
        for checkpoint_id in list(rows)
    }
    if judged is None or taken == {(one.key, one.namespace, one.checkpoint_id) for one in judged}:
        return None
    for key, thread in popped.items():
        for namespace, rows in thread.items():
            storage[key][namespace].update(rows)
    return KeepReason.WOKE_UP
