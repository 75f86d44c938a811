"""Which threads are expired, and by which rule. Pure: facts and the time go in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from langgraph_ephemeral_checkpointer.policy import IdleTrimPolicy, TTLPolicy
from langgraph_ephemeral_checkpointer.result import KeepReason

Reason: TypeAlias = Literal["idle_ttl", "hard_age_ttl", "interrupted_ttl"]


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """What a scan tells of one thread, without its state.

    Attributes:
        thread_id: The id as text.
        newest_at: Time of the newest checkpoint over all namespaces, in seconds since the
            epoch; None where it cannot be known.
        born_at: Time of the first checkpoint the thread ever had, pruned ones included;
            None where it cannot be known.
        checkpoint_count: Checkpoints in all namespaces.
        root_checkpoint_count: Checkpoints in the root namespace.
        interrupted: Whether the head waits for a human answer; None where nobody looked.
    """

    thread_id: str
    newest_at: float | None
    born_at: float | None
    checkpoint_count: int
    root_checkpoint_count: int
    interrupted: bool | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which threads a scan must report; it may report more.

    A thread is wanted if its newest checkpoint is older than ``newest_before``, its birth
    is before ``born_before``, it has more than ``more_checkpoints_than`` root checkpoints,
    or its age is unknown, unless its newest id alone shows that it is alive. Times are seconds
    since the epoch; a rule that is None wants nothing.

    Where only ``newest_before`` is asked for, a thread whose greatest id is a UUID version 6 from
    before ``unread_before`` may be reported by that id alone, in ``Page.unread``.
    """

    newest_before: float | None = None
    born_before: float | None = None
    more_checkpoints_than: int | None = None
    unread_before: float | None = None

    def matches(self, facts: ThreadFacts) -> bool:
        """Say whether a scan must report the thread."""
        return (
            facts.newest_at is None
            or facts.born_at is None
            or (self.newest_before is not None and facts.newest_at < self.newest_before)
            or (self.born_before is not None and facts.born_at < self.born_before)
            or (
                self.more_checkpoints_than is not None
                and facts.root_checkpoint_count > self.more_checkpoints_than
            )
        )


def wanted_by(policy: TTLPolicy, now: float) -> Wanted:
    """Say which threads a policy can touch at all.

    Args:
        policy: The policy of every thread.
        now: Seconds since the epoch.
    """
    idle = [
        ttl for ttl in (policy.idle_ttl_seconds, policy.interrupted_ttl_seconds) if ttl is not None
    ]
    hard = policy.hard_age_ttl_seconds
    return Wanted(
        newest_before=_before(now, min(idle)) if idle else None,
        born_before=_before(now, hard) if hard is not None else None,
        more_checkpoints_than=policy.max_checkpoints_per_thread,
    )


def idle_before(policy: TTLPolicy, now: float) -> float | None:
    """Say when a thread's newest checkpoint alone settles that it goes, by the idle rule.

    Args:
        policy: The policy of every thread.
        now: Seconds since the epoch.

    Returns:
        The moment before which it must have been, if the thread waits for no human answer; None
        where another rule may match as well, or have matched before.
    """
    if policy.hard_age_ttl_seconds is not None or policy.max_checkpoints_per_thread is not None:
        return None
    idle = policy.idle_ttl_seconds
    return None if idle is None else _before(now, idle)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say of a thread.

    Attributes:
        reason: The rule by which the thread goes, or None.
        kept: Why it stays although a rule matched, or None.
        overdue_since: When it expired, in seconds since the epoch; orders a limited sweep.
    """

    reason: Reason | None = None
    kept: KeepReason | None = None
    overdue_since: float = 0.0


ALIVE = Verdict()


def verdicts(facts: ThreadFacts, policy: TTLPolicy, now: float) -> tuple[Verdict, Verdict]:
    """Judge a thread of which nobody looked yet whether it waits for a human answer.

    Args:
        facts: What else is known of it.
        policy: The policy that is in force for it.
        now: Seconds since the epoch.

    Returns:
        The verdict if it does not wait, and the verdict if it does. Where they are equal,
        nobody needs to look.
    """
    return _judge(facts, False, policy, now), _judge(facts, True, policy, now)


def judge(facts: ThreadFacts, policy: TTLPolicy, now: float) -> Verdict:
    """Decide about one thread.

    Args:
        facts: What is known of it. ``interrupted`` None is taken as not interrupted; see
            :func:`verdicts` for a thread of which that is not known.
        policy: The policy that is in force for it.
        now: Seconds since the epoch.

    Returns:
        The verdict. Where several rules match, the reason is the one that matched first
        in time.
    """
    return _judge(facts, bool(facts.interrupted), policy, now)


def _judge(facts: ThreadFacts, interrupted: bool, policy: TTLPolicy, now: float) -> Verdict:
    hard, idle = policy.hard_age_ttl_seconds, policy.idle_ttl_seconds
    matched: list[tuple[float, Reason]] = []
    unknown = False
    if hard is not None:
        unknown = facts.born_at is None
        if facts.born_at is not None and facts.born_at < _before(now, hard):
            matched.append((facts.born_at + hard, "hard_age_ttl"))
    quiet_ttl, quiet_reason = _quiet_rule(interrupted, policy)
    if quiet_ttl is not None:
        unknown = unknown or facts.newest_at is None
        if facts.newest_at is not None and facts.newest_at < _before(now, quiet_ttl):
            matched.append((facts.newest_at + quiet_ttl, quiet_reason))
    if matched:
        overdue_since, reason = min(matched)
        return Verdict(reason, None, overdue_since)
    if unknown:
        return Verdict(kept=KeepReason.AGE_UNKNOWN)
    if (
        interrupted
        and idle is not None
        and facts.newest_at is not None
        and facts.newest_at < _before(now, idle)
    ):
        return Verdict(kept=KeepReason.INTERRUPTED)
    return ALIVE


def trim_to(facts: ThreadFacts, policy: TTLPolicy, now: float) -> int | None:
    """Say to how many root checkpoints a thread that lives on is to be trimmed; None: not at all.

    Args:
        facts: What is known of it.
        policy: The policy that is in force for it.
        now: Seconds since the epoch.
    """
    keep = policy.max_checkpoints_per_thread
    if keep is None or facts.root_checkpoint_count <= keep:
        return None
    if isinstance(policy, IdleTrimPolicy):
        after = policy.trim_after_idle_seconds
        assert after is not None  # noqa: S101 - for the type checker; the policy checks it
        if facts.newest_at is None or facts.newest_at >= _before(now, after):
            return None
    return keep


def _quiet_rule(interrupted: bool, policy: TTLPolicy) -> tuple[float | None, Reason]:
    if interrupted:
        return policy.interrupted_ttl_seconds, "interrupted_ttl"
    return policy.idle_ttl_seconds, "idle_ttl"


def _before(now: float, ttl: float) -> float:
    try:
        return now - ttl
    except OverflowError:  # an int beyond every float: longer than any history
        return -math.inf


def still_expired(
    facts: ThreadFacts | None, policy: TTLPolicy, reason: Reason, now: float
) -> KeepReason | None:
    """Judge a thread again at its delete, by what the deleting transaction reads.

    Args:
        facts: The facts as re-read, ``interrupted`` included; None if the thread is gone.
        policy: The policy that matched.
        reason: The rule that matched, as the callbacks were told.
        now: The time of the sweep, in seconds since the epoch.

    Returns:
        None to delete, else why it is kept. A thread that woke up but is still expired
        by another rule is kept for the next sweep, which tells the callbacks the truth.
    """
    if facts is None:
        return KeepReason.GONE
    verdict = judge(facts, policy, now)
    if verdict.reason == reason:
        return None
    return verdict.kept or KeepReason.WOKE_UP
