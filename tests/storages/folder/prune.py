"""Trimming a thread: the rule of survivors, on the rows of one file."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.decisions.survivors import (
    ROOT,
    Contents,
    Key,
    LeaveWholeError,
    Need,
    Row,
    survivors_of,
)
from langgraph_ephemeral_checkpointer.strategies import PruneOutcome, raw
from langgraph_ephemeral_checkpointer.strategies.births import birth_of as birth_from
from langgraph_ephemeral_checkpointer.strategies.births import has_time
from tests.storages.folder.access import Files, Thread
from tests.storages.folder.find import birth_of


def prune(files: Files, thread_id: str, keep: int, *, dry_run: bool) -> PruneOutcome:
    """Trim one thread to its newest ``keep`` root checkpoints and what those need."""
    try:
        with files.changing(thread_id) as thread:
            found = survivors_of(_rows(thread), lambda need: _read(thread, need), keep)
            if found is None:
                return PruneOutcome()
            gone = {
                (ns, one)
                for ns, one in thread.rows
                if ns not in found.whole and one not in found.kept[ns]
            }
            if dry_run:
                return PruneOutcome(len(gone))
            oldest, first = min(found.kept[ROOT]), min(thread.ids())
            if oldest != first:
                thread.birth = oldest, birth_of(thread) or _first(thread, first)
            thread.rows = {key: row for key, row in thread.rows.items() if key not in gone}
            thread.writes = {
                key: write for key, write in thread.writes.items() if key[:2] not in gone
            }
            return PruneOutcome(len(gone))
    except LeaveWholeError as error:
        return PruneOutcome(left_whole=str(error))


def _rows(thread: Thread) -> list[Row]:
    return [
        Row(ns, one, row.parent, metadata.get("source"), raw.callers(metadata))
        for (ns, one), row in thread.rows.items()
        for metadata in [raw.mapping(raw.unpack(*row.metadata), "the metadata")]
    ]


def _read(thread: Thread, need: Need) -> dict[Key, Contents]:
    keys = {key for key in thread.rows if key in need.keys or key[0] in need.namespaces}
    return {key: _contents(thread, key) for key in keys}


def _contents(thread: Thread, key: Key) -> Contents:
    row = thread.rows[key]
    checkpoint = raw.mapping(raw.unpack(*row.checkpoint), "the checkpoint")
    values = raw.mapping(checkpoint.get("channel_values"), "channel_values")
    return raw.contents(
        row.parent,
        raw.mapping(raw.unpack(*row.metadata), "the metadata"),
        raw.mapping(checkpoint.get("channel_versions"), "channel_versions"),
        frozenset(values),
        frozenset(channel for channel, value in values.items() if raw.is_snapshot(value)),
    )


def _first(thread: Thread, first: str) -> str:
    ts = None
    if not has_time(first):
        checkpoint = raw.unpack(*thread.rows[ROOT, first].checkpoint)
        ts = raw.mapping(checkpoint, "the checkpoint").get("ts")
    return birth_from(first, ts)
