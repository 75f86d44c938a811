"""Every tenant in turn: one sweep a tenant, under one lock and with one report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError, StorageUnusableError
from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasTenants
from langgraph_ephemeral_checkpointer.sweeps.audit import AuditError
from langgraph_ephemeral_checkpointer.sweeps.frame import framed
from langgraph_ephemeral_checkpointer.sweeps.limit import oldest_first
from langgraph_ephemeral_checkpointer.sweeps.parts import StoppedEarly, SweepSettings, describe
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps
from langgraph_ephemeral_checkpointer.sweeps.sweep import Sweep

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TenantSweep:
    """One sweep in progress that goes over every tenant.

    Resolvers and callbacks run in the scope of the tenant whose thread it is. The whole is
    reported once, outside of any scope. What goes wrong with one tenant stops no other, unless
    it is the storage as a whole.

    Args:
        strategy: The storage.
        settings: What to do. A limit of deletes is one for all tenants together.
        sweep: Makes the sweep of one tenant.
        dry_run: Write nothing.
    """

    def __init__(
        self,
        strategy: HasTenants,
        settings: SweepSettings,
        sweep: Callable[[], Sweep],
        *,
        dry_run: bool,
    ) -> None:
        self._strategy = strategy
        self._settings = settings
        self._sweep = sweep
        self.result = SweepResult(dry_run=dry_run)

    def run(self) -> Steps[SweepResult]:
        """Sweep every tenant, under one lock, and report."""
        return framed(self._strategy, self._settings, self.result, self._each(), self._sum)

    def _each(self) -> Steps[None]:
        tenants = yield Work(self._strategy.tenants)
        limit = self._settings.options.max_deletes
        if limit is None:
            for tenant in tenants:
                part = self._part(tenant)
                yield from part.attempt(part.sweep.work())
        else:
            yield from self._limited([self._part(tenant) for tenant in tenants], limit)

    def _limited(self, parts: Sequence[_Part], limit: int) -> Steps[None]:
        begun = []
        for part in parts:
            goes_on = yield from part.attempt(part.sweep.begin())
            begun += [part] if goes_on else []

        def attempt(number: int, steps: Steps[T]) -> Steps[T | None]:
            return begun[number].attempt(steps)

        yield from oldest_first(
            [part.sweep for part in begun],
            limit,
            attempt,
            resolves=self._settings.policy_resolver is not None,
        )
        for part in begun:
            yield from part.attempt(part.sweep.finish())

    def _part(self, tenant: str) -> _Part:
        part = _Part(tenant, self._sweep(), partial(self._strategy.tenant_scope, tenant))
        self.result.by_tenant[tenant] = part.sweep.result
        return part

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


class _Part:
    """The sweep of one tenant, whose steps run in the tenant's scope."""

    def __init__(
        self, tenant: str, sweep: Sweep, scope: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._tenant = tenant
        self.sweep = sweep
        self._scope = scope
        self._failed = False

    def attempt(self, steps: Steps[T]) -> Steps[T | None]:
        """Run steps, unless earlier ones failed; what goes wrong stops no other tenant."""
        if self._failed:
            steps.close()
            return None
        started = time.perf_counter()
        result = self.sweep.result
        try:
            with self._scope():
                return (yield from steps)
        except StoppedEarly:
            raise
        except Exception as error:
            self._failed = True
            result.errors[""] = describe(error)
            if isinstance(error, AsyncRequiredError | StorageUnusableError | AuditError):
                raise
            logger.exception("the sweep of tenant %r failed; the others go on", self._tenant)
            return None
        finally:
            self.sweep.count()
            result.sweep_duration_seconds += time.perf_counter() - started
