"""What a prune did to one thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PruneOutcome:
    """What a prune did to one thread.

    Attributes:
        removed_checkpoints: How many checkpoint rows were really removed.
        left_whole: Why nothing was removed although the thread is too long, else None.
    """

    removed_checkpoints: int = 0
    left_whole: str | None = None
