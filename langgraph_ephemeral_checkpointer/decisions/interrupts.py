"""Which tasks wait for a human answer. Pure: writes of one checkpoint go in.

LangGraph mirrors an interrupt of a subgraph on the newest root checkpoint, so the
writes of that one checkpoint tell everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from langgraph_ephemeral_checkpointer.langgraph_names import CONTROL_CHANNELS, INTERRUPT


def waits_for_human(writes: Iterable[tuple[str, str]]) -> bool:
    """Say whether any task of a checkpoint waits for a human answer.

    Args:
        writes: Task id and channel of every write on the newest root checkpoint.

    Returns:
        True if some task interrupted and has written no output since. An answer alone
        (``__resume__``) does not end the waiting: the task has not finished with it.
    """
    interrupted: set[str] = set()
    finished: set[str] = set()
    for task_id, channel in writes:
        if channel == INTERRUPT:
            interrupted.add(task_id)
        elif channel not in CONTROL_CHANNELS:
            finished.add(task_id)
    return not interrupted <= finished
