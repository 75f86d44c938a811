"""What the plans of a sweep share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from langgraph_ephemeral_checkpointer.common.arguments import check_callable, checked_flag
from langgraph_ephemeral_checkpointer.decisions.expiry import Reason, ThreadFacts
from langgraph_ephemeral_checkpointer.options import SweepOptions
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.sweeps.audit import AuditLog
from langgraph_ephemeral_checkpointer.types import (
    OnAfterDelete,
    OnBeforeDelete,
    OnSweepComplete,
    PolicyResolver,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """Everything a sweep is told; see :class:`.TTLSweeper` for what each means.

    Raises:
        TypeError: A callback that cannot be called, or anything else of the wrong type.
    """

    policy: TTLPolicy
    policy_resolver: PolicyResolver | None
    safe_delete: bool
    on_before_delete: OnBeforeDelete | None
    on_sweep_complete: OnSweepComplete | None
    on_after_delete: OnAfterDelete | None
    options: SweepOptions
    orphan_age_seconds: float | None = None
    audit_log: AuditLog | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.policy, TTLPolicy):
            raise TypeError(f"policy must be a TTLPolicy, not {type(self.policy).__name__}")
        for name, callback in self.callbacks.items():
            if callback is not None:
                check_callable(name, callback)
        if self.audit_log is not None and not isinstance(self.audit_log, AuditLog):
            raise TypeError(f"audit_log must be an AuditLog, not {type(self.audit_log).__name__}")
        checked_flag("safe_delete", self.safe_delete)

    @property
    def callbacks(self) -> dict[str, Callable[..., Any] | None]:
        """What of the user's is called, by name."""
        return {
            "policy_resolver": self.policy_resolver,
            "on_before_delete": self.on_before_delete,
            "on_sweep_complete": self.on_sweep_complete,
            "on_after_delete": self.on_after_delete,
        }


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


class FewWords:
    """Logs what goes wrong with threads, but not a line for each of very many.

    Args:
        logger: Where to.
        most: So many lines.
    """

    def __init__(self, logger: logging.Logger, most: int = 10) -> None:
        self._logger = logger
        self._left = most

    def warn(self, message: str, *args: object) -> None:
        """Log one more, or nothing any more."""
        if self._left > 0:
            self._left -= 1
            more = "" if self._left else "; what else goes wrong is in the errors of the result"
            self._logger.warning(f"{message}{more}", *args)


def describe(error: BaseException) -> str:
    """Give an error as it is reported."""
    return f"{type(error).__name__}: {error}"
