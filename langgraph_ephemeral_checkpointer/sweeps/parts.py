"""What the plans of a sweep share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from langgraph_ephemeral_checkpointer.audit import AuditLog
from langgraph_ephemeral_checkpointer.expiry import Reason, ThreadFacts
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.types import (
    OnAfterDelete,
    OnBeforeDelete,
    OnSweepComplete,
    PolicyResolver,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """Everything a sweep is told; see :class:`.TTLSweeper` for what each means."""

    policy: TTLPolicy
    policy_resolver: PolicyResolver | None
    enable_coordination: bool
    safe_delete: bool
    on_before_delete: OnBeforeDelete | None
    on_sweep_complete: OnSweepComplete | None
    on_after_delete: OnAfterDelete | None
    batch_size: int
    max_deletes_per_sweep: int | None
    grace_seconds: float | None = None
    orphan_age_seconds: float | None = None
    max_delete_percent: float | None = None
    audit_log: AuditLog | None = None


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A thread to be deleted; sorts by what has been overdue longest."""

    overdue_since: float
    thread_id: str
    facts: ThreadFacts = field(compare=False)
    policy: TTLPolicy = field(compare=False)
    reason: Reason = field(compare=False)


class StoppedEarly(Exception):  # noqa: N818 - a signal, not an error
    """The storage went away during the deletes; what is left waits for the next sweep."""


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut a row of items into lists of at most ``size``."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def describe(error: BaseException) -> str:
    """Give an error as it is reported."""
    return f"{type(error).__name__}: {error}"
