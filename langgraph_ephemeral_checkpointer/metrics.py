"""Metrics of sweeps for Prometheus; needs the extra ``metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from langgraph_ephemeral_checkpointer.common.lazy import remedy
from langgraph_ephemeral_checkpointer.result import SweepResult

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)


class SweepMetrics:
    """Count what sweeps do.

    In an application, pass its methods to a sweeper::

        metrics = SweepMetrics()
        TTLSweeper(saver, policy, on_after_delete=metrics.deleted, on_sweep_complete=metrics.swept)

    Args:
        registry: Where the metrics are; the default one of ``prometheus_client`` if None.
        clock: The time in seconds since the epoch.

    Raises:
        ImportError: ``prometheus_client`` is not installed; the message says how to.
        ValueError: The registry has these metrics already: one object counts for all sweepers.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Gauge, Histogram
        except ImportError as error:
            raise ImportError(remedy("SweepMetrics", "metrics", error), name=error.name) from error

        where = registry if registry is not None else REGISTRY
        self._clock = clock
        self._sweeps = Counter(
            "lgec_sweeps", "Sweeps by how they ended.", ["outcome"], registry=where
        )
        self._deleted = Counter(
            "lgec_threads_deleted", "Threads deleted, by rule.", ["reason"], registry=where
        )
        self._kept = Gauge(
            "lgec_threads_kept",
            "Threads that a rule matched and the last sweep kept, by why.",
            ["reason"],
            registry=where,
        )
        self._alive = Gauge(
            "lgec_threads_alive", "Threads there after the last sweep.", registry=where
        )
        self._deferred = Gauge(
            "lgec_threads_deferred",
            "Expired threads that the last sweep left for the next.",
            registry=where,
        )
        self._pruned = Counter(
            "lgec_checkpoints_pruned",
            "Checkpoints removed from threads that live on.",
            registry=where,
        )
        self._seconds = Histogram(
            "lgec_sweep_seconds", "Duration of sweeps.", buckets=_SECONDS, registry=where
        )
        self._success = Gauge(
            "lgec_last_success_timestamp_seconds",
            "When the last sweep without any error ended.",
            registry=where,
        )
        self._overdue = Gauge(
            "lgec_oldest_overdue_seconds",
            "For how long the longest overdue thread still there has been so.",
            registry=where,
        )
        self._errors = Counter(
            "lgec_errors",
            "Sweeps that failed, and threads that could not be swept.",
            registry=where,
        )

    def deleted(self, _thread_id: str, reason: str) -> None:
        """Count a thread; a sweeper's ``on_after_delete``."""
        self._deleted.labels(reason).inc()

    def swept(self, result: SweepResult) -> None:
        """Count a sweep; a sweeper's ``on_sweep_complete``."""
        if result.dry_run:
            return
        self._sweeps.labels(outcome_of(result)).inc()
        if result.lock_held_elsewhere:
            return
        self._seconds.observe(result.sweep_duration_seconds)
        self._pruned.inc(result.pruned_checkpoint_count)
        self._errors.inc(len(result.errors))
        if "" in result.errors and not result.refused:
            return  # it saw only a part of the threads
        self._alive.set(result.active_thread_count)
        self._deferred.set(result.deferred_count)
        self._overdue.set(result.oldest_overdue_seconds)
        self._kept.clear()
        for reason in result.kept.values():
            self._kept.labels(reason).inc()
        if not result.errors:
            self._success.set(self._clock())


def outcome_of(result: SweepResult) -> str:
    """Say in a word how a sweep ended: done, partly, refused, skipped or failed."""
    if result.lock_held_elsewhere:
        return "skipped"
    if result.refused:
        return "refused"
    if "" in result.errors:
        return "failed"
    return "partly" if result.errors else "done"
