"""SweepResult: what one sweep did."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class KeepReason(enum.StrEnum):
    """Why a thread that a rule matched was not deleted."""

    INTERRUPTED = "interrupted"
    """It waits for a human answer, which is not idleness."""
    AGE_UNKNOWN = "age_unknown"
    """Neither its checkpoint ids nor their ``ts`` tell a time; ages are never guessed."""
    VETOED = "vetoed"
    """``on_before_delete`` returned False."""
    CALLBACK_FAILED = "callback_failed"
    """``on_before_delete`` raised."""
    INVALID_POLICY = "invalid_policy"
    """The resolver returned neither a TTLPolicy nor a PolicyOverride."""
    WOKE_UP = "woke_up"
    """It got a new checkpoint, or a question for a human, after it was found."""
    BUSY = "busy"
    """Another session holds a lock on it, for instance another sweeper."""
    RESTORED = "restored"
    """It came back out of the trash less than one grace period ago."""
    UNFINISHED = "unfinished"
    """Only subgraphs of it are stored: the run that saves its root may still be going on."""
    GONE = "gone"
    """Somebody else deleted it after it was found."""
    FAILED = "failed"
    """The delete failed and was rolled back, or was not tried since it could take other threads
    too; ``errors`` has the message."""


@dataclass
class SweepResult:
    """What one sweep did, or in a dry run would have done.

    Every thread that a rule matched is in exactly one of ``deleted_thread_ids``,
    ``kept`` and ``deferred_count``.

    Attributes:
        deleted_thread_ids: Threads deleted by this sweep and no other; with a grace period,
            moved to the trash.
        pruned_checkpoint_count: Checkpoint rows removed from threads that live on.
        active_thread_count: Threads still alive after this sweep.
        sweep_duration_seconds: Wall-clock seconds.
        dry_run: Nothing was written.
        lock_held_elsewhere: Skipped, because another instance was sweeping.
        kept: Threads expired by a rule and yet kept, and why.
        deferred_count: Expired threads left for the next sweep, by the limit or because
            the storage went away.
        errors: Messages by thread id. The key ``""`` stands for the sweep as a whole.
        reasons: The rule by which each of ``deleted_thread_ids`` goes.
        emptied_trash_count: Threads that left the trash for good, their grace being over.
        orphan_count: Rows removed that belonged to no checkpoint any more.
        refused: Nothing was deleted, because ``max_delete_percent`` would have been exceeded;
            ``errors[""]`` has the numbers.
        oldest_overdue_seconds: For how long the longest overdue thread that is still there
            after this sweep has been so; 0 if none is.
        by_tenant: Where one sweep went over several tenants, what it did for each. Thread ids
            are ambiguous then: the lists and counts above are those of all tenants together,
            and what is kept by thread id above is that of the first tenant that has the id.
    """

    deleted_thread_ids: list[str] = field(default_factory=list)
    pruned_checkpoint_count: int = 0
    active_thread_count: int = 0
    sweep_duration_seconds: float = 0.0
    dry_run: bool = False
    lock_held_elsewhere: bool = False
    kept: dict[str, KeepReason] = field(default_factory=dict)
    deferred_count: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    emptied_trash_count: int = 0
    orphan_count: int = 0
    refused: bool = False
    oldest_overdue_seconds: float = 0.0
    by_tenant: dict[str, SweepResult] = field(default_factory=dict)
