"""How much threads take in an InMemorySaver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.strategies.base import Size
from langgraph_ephemeral_checkpointer.strategies.memory.access import checkpoints_of, keys_by_text
from langgraph_ephemeral_checkpointer.strategies.rows import sizes_of


def measure(saver: Any, thread_ids: Sequence[str]) -> dict[str, Size]:
    """Add up the lengths of what is serialized."""
    keys = keys_by_text(saver, thread_ids)
    found: dict[str, list[list[Any]]] = {"checkpoints": [], "blobs": [], "writes": []}
    for text in keys:
        found["checkpoints"] += (
            [text, 1, _length(one.row[0]) + _length(one.row[1])]
            for one in checkpoints_of(saver, keys[text])
        )
    texts = {key: text for text, own in keys.items() for key in own}
    for entry, blob in list(saver.blobs.items()):
        if entry[0] in texts:
            found["blobs"].append([texts[entry[0]], 1, _length(blob)])
    for entry, writes in list(saver.writes.items()):
        if entry[0] in texts:
            lengths = [_length(write[2]) for write in list(writes.values())]
            found["writes"].append([texts[entry[0]], len(lengths), sum(lengths)])
    return sizes_of({table: _summed(rows) for table, rows in found.items()})


def _length(serialized: Any) -> int:
    """Give the length of what a serializer made: a type tag and bytes."""
    return len(serialized[1] or b"")


def _summed(rows: Iterable[Sequence[Any]]) -> list[tuple[str, int, int]]:
    totals: dict[str, tuple[int, int]] = {}
    for text, count, size in rows:
        counts, sizes = totals.get(text, (0, 0))
        totals[text] = counts + count, sizes + size
    return [(text, *total) for text, total in totals.items()]
