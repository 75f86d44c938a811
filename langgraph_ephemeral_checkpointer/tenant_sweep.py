"""Every tenant in turn: one sweep a tenant, under one lock and with one report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from langgraph_ephemeral_checkpointer.audit import AuditError
from langgraph_ephemeral_checkpointer.errors import ColourError, StorageUnavailableError
from langgraph_ephemeral_checkpointer.resolution import Steps
from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.steps import Work
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.sweep_frame import framed
from langgraph_ephemeral_checkpointer.sweep_parts import StoppedEarly, SweepSettings, describe
from langgraph_ephemeral_checkpointer.sweep_plan import Sweep

logger = logging.getLogger(__name__)


class TenantRound:
    """Where the next sweep begins, so that a limit is not used up by the same tenants always."""

    def __init__(self) -> None:
        self._last: str | None = None

    def order(self, tenants: Sequence[str]) -> list[str]:
        """Give the tenants in the order of this sweep: those behind the last one first."""
        last = self._last
        return sorted(tenants, key=lambda one: (last is not None and one <= last, one))

    def stopped_at(self, tenant: str) -> None:
        """Note the tenant at which the limit was reached."""
        self._last = tenant


class TenantSweep:
    """One sweep in progress that goes over every tenant.

    Resolvers and callbacks run in the scope of the tenant whose thread it is. The whole is
    reported once, outside of any scope. What goes wrong with one tenant stops no other, unless
    it is the storage as a whole.

    Args:
        strategy: The storage.
        settings: What to do. A limit of deletes is one for all tenants together.
        sweep: Makes the sweep of one tenant.
        dry_run: Write nothing, and let ``turns`` be.
        turns: Where to begin.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: SweepSettings,
        sweep: Callable[[SweepSettings], Sweep],
        *,
        dry_run: bool,
        turns: TenantRound,
    ) -> None:
        self._strategy = strategy
        self._settings = settings
        self._sweep = sweep
        self._turns = turns
        self.result = SweepResult(dry_run=dry_run)

    def run(self) -> Steps[SweepResult]:
        """Sweep every tenant, under one lock, and report."""
        return framed(self._strategy, self._settings, self.result, self._each(), self._sum)

    def _each(self) -> Steps[None]:
        tenants = yield Work(self._strategy.tenants)
        left = self._settings.max_deletes_per_sweep
        for tenant in self._turns.order(tenants):
            sweep = self._sweep(replace(self._settings, max_deletes_per_sweep=left))
            self.result.by_tenant[tenant] = sweep.result
            with self._strategy.tenant_scope(tenant):
                yield from _one(tenant, sweep)
            if left and (deleted := len(sweep.result.deleted_thread_ids)):
                left -= deleted
                if left == 0 and not self.result.dry_run:
                    self._turns.stopped_at(tenant)

    def _sum(self) -> None:
        whole = self.result
        trouble = []
        for tenant, part in whole.by_tenant.items():
            whole.deleted_thread_ids += part.deleted_thread_ids
            whole.pruned_checkpoint_count += part.pruned_checkpoint_count
            whole.active_thread_count += part.active_thread_count
            whole.deferred_count += part.deferred_count
            whole.emptied_trash_count += part.emptied_trash_count
            whole.orphan_count += part.orphan_count
            whole.refused = whole.refused or part.refused
            whole.oldest_overdue_seconds = max(
                whole.oldest_overdue_seconds, part.oldest_overdue_seconds
            )
            whole.kept = {**part.kept, **whole.kept}
            whole.reasons = {**part.reasons, **whole.reasons}
            whole.errors = {**part.errors, **whole.errors}
            if "" in part.errors:
                trouble.append(f"tenant {tenant!r}: {part.errors['']}")
        if trouble:
            whole.errors[""] = "; ".join(trouble)


def _one(tenant: str, sweep: Sweep) -> Steps[None]:
    started = time.perf_counter()
    try:
        yield from sweep.work()
    except StoppedEarly:
        raise
    except Exception as error:
        sweep.result.errors[""] = describe(error)
        if isinstance(error, ColourError | StorageUnavailableError | AuditError):
            raise
        logger.exception("the sweep of tenant %r failed; the others go on", tenant)
    finally:
        sweep.count()
        sweep.result.sweep_duration_seconds = time.perf_counter() - started
