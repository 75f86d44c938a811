"""Finding threads: a page of files, and what a file tells of its thread."""

from __future__ import annotations

from dataclasses import replace

from langgraph_ephemeral_checkpointer.strategies import (
    Page,
    ThreadFacts,
    Wanted,
    waits_for_human,
)
from langgraph_ephemeral_checkpointer.strategies.births import time_of_birth
from langgraph_ephemeral_checkpointer.strategies.payload import first_and_last, time_of_checkpoint
from tests.storages.folder.access import Files, Thread


def scan(files: Files, wanted: Wanted | None, after: str | None, limit: int) -> Page:
    """Read the next page; the cursor is the name of a file."""
    names = [name for name in files.names() if after is None or name > after]
    threads = [files.read(name) for name in names[:limit]]
    facts = [facts_of(thread) for thread in threads if thread and thread.rows]
    return Page(
        [one for one in facts if wanted is None or wanted.matches(one)],
        len(facts),
        names[limit - 1] if len(names) > limit else None,
    )


def facts_of(thread: Thread) -> ThreadFacts:
    """What is known of a thread: its times and counts, not its state."""
    born_at, newest_at = first_and_last(
        [time_of_checkpoint(one, *row.checkpoint) for (_, one), row in thread.rows.items()]
    )
    facts = ThreadFacts(
        thread.id, newest_at, born_at, len(thread.rows), len(thread.ids()), waits(thread)
    )
    birth = time_of_birth(birth_of(thread))
    return facts if birth is None or born_at is None else replace(facts, born_at=birth)


def birth_of(thread: Thread) -> str | None:
    """What a trim has noted of the first checkpoint, while the oldest it kept is there."""
    oldest, birth = thread.birth or ("", None)
    return birth if ("", oldest) in thread.rows else None


def waits(thread: Thread) -> bool:
    """Whether the newest root checkpoint waits for a human."""
    head = max(thread.ids(), default=None)
    return waits_for_human(
        (task, write.channel)
        for (ns, one, task, _), write in thread.writes.items()
        if (ns, one) == ("", head)
    )
