"""What is read of threads in an InMemorySaver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.strategies.base import Page
from langgraph_ephemeral_checkpointer.strategies.births import time_of_birth
from langgraph_ephemeral_checkpointer.strategies.memory.access import (
    Keys,
    Stored,
    checkpoints_of,
    keys_by_text,
)
from langgraph_ephemeral_checkpointer.strategies.memory.birth import memory_birth_of
from langgraph_ephemeral_checkpointer.strategies.payload import first_and_last, time_of_checkpoint


def scan(saver: Any, wanted: Wanted | None, after: Any, limit: int) -> Page:
    """Read the next page; the cursor holds the ids that the first page found."""
    ids, start = after or (list(keys_by_text(saver)), 0)
    page = ids[start : start + limit]
    keys = keys_by_text(saver, page)
    read = [facts_of(saver, text, checkpoints_of(saver, keys.get(text, ()))) for text in page]
    found = [facts for facts in read if facts is not None]
    end = start + limit
    return Page(
        [facts for facts in found if wanted is None or wanted.matches(facts)],
        len(found),
        (ids, end) if end < len(ids) else None,
    )


def find_interrupted(saver: Any, thread_ids: Sequence[str]) -> set[str]:
    """Return which threads wait for a human answer."""
    keys = keys_by_text(saver, thread_ids)
    return {text for text in thread_ids if waits(saver, keys.get(text, ()))}


def facts_of(
    saver: Any, text: str, stored: Sequence[Stored], interrupted: bool | None = None
) -> ThreadFacts | None:
    """Make the facts of one thread.

    Args:
        saver: The InMemorySaver.
        text: The thread.
        stored: Its checkpoints.
        interrupted: Whether it waits for a human answer, where that was read.

    Returns:
        None where there is no checkpoint: reading an unknown thread leaves an empty key behind.
    """
    if not stored:
        return None
    born_at, newest_at = first_and_last(
        [time_of_checkpoint(one.checkpoint_id, *one.row[0]) for one in stored]
    )
    births = [time_of_birth(memory_birth_of(saver, key)) for key in {one.key for one in stored}]
    if born_at is not None:
        born_at = min([born_at, *(birth for birth in births if birth is not None)])
    return ThreadFacts(
        thread_id=text,
        newest_at=newest_at,
        born_at=born_at,
        checkpoint_count=len(stored),
        root_checkpoint_count=sum(one.namespace == "" for one in stored),
        interrupted=interrupted,
    )


def waits(saver: Any, keys: Keys) -> bool:
    """Say whether a thread waits for a human answer, by the writes of its newest root."""
    roots = [
        (checkpoint_id, key)
        for key in keys
        for checkpoint_id in list(saver.storage.get(key, {}).get("", {}))
    ]
    if not roots:
        return False
    head, key = max(roots, key=lambda root: root[0])
    writes = list(saver.writes.get((key, "", head), {}).values())
    return waits_for_human((task_id, channel) for task_id, channel, *_ in writes)
