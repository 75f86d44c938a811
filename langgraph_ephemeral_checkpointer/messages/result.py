"""What a purge reports."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PurgeResult:
    """What a purge did, or in a dry run would have done.

    Attributes:
        purged_thread_ids: Threads that lost messages.
        thread_count: Threads looked at.
        message_count: Messages that went, each counted once per thread.
        row_count: Rows that were rewritten or deleted.
        kept: Why old messages stay in a thread: an interrupt waits for them, nothing tells
            how old they are, or the thread was being saved to all the time.
        untrimmed: Which channels of a thread could not be trimmed, and why.
        errors: What went wrong, by thread; nothing of such a thread was changed.
        dry_run: Whether nothing was written.
        duration_seconds: How long it took.
    """

    purged_thread_ids: list[str] = field(default_factory=list)
    thread_count: int = 0
    message_count: int = 0
    row_count: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    untrimmed: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False
    duration_seconds: float = 0.0
