"""TTLSweeper: what users hold in their hands."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Unpack

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.common.arguments import (
    check_callable,
    checked_flag,
    positive_seconds,
)
from langgraph_ephemeral_checkpointer.engine.background import BackgroundLoop
from langgraph_ephemeral_checkpointer.engine.fair_lock import Turns
from langgraph_ephemeral_checkpointer.engine.plan import adrive, drive
from langgraph_ephemeral_checkpointer.engine.steps import AsyncSteps, SyncSteps, is_async_callable
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError
from langgraph_ephemeral_checkpointer.options import MoreArguments, SweepOptions
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    HasLock,
    HasTenants,
    HasTrash,
    Prunes,
)
from langgraph_ephemeral_checkpointer.strategies.registry import check_saver, detect_strategy
from langgraph_ephemeral_checkpointer.sweeps.audit import AuditLog
from langgraph_ephemeral_checkpointer.sweeps.orphans import OrphanMethods, OrphanRound
from langgraph_ephemeral_checkpointer.sweeps.parts import SweepSettings
from langgraph_ephemeral_checkpointer.sweeps.sweep import Sweep
from langgraph_ephemeral_checkpointer.sweeps.tenants import TenantSweep
from langgraph_ephemeral_checkpointer.sweeps.undo import UndoMethods
from langgraph_ephemeral_checkpointer.types import (
    OnAfterDelete,
    OnBeforeDelete,
    OnSweepComplete,
    PolicyResolver,
)

logger = logging.getLogger(__name__)

DAY = 86_400

_under_way: ContextVar[frozenset[int]] = ContextVar("_under_way", default=frozenset())


class TTLSweeper(UndoMethods, OrphanMethods):
    """Delete expired threads of a checkpointer, and trim the others.

    Args:
        checkpointer: Any ``BaseCheckpointSaver``. It stays the caller's: it is never closed.
        policy: When a thread is expired.
        policy_resolver: Gives each thread a policy of its own, or a ``PolicyOverride``.
            Called once per thread and sweep. If it raises, ``policy`` is used; if it returns
            anything else, the thread is kept and reported.
        enable_coordination: Let only one of several instances sweep at a time. Postgres only, or a
            strategy that ``HasLock``; elsewhere a warning is logged.
        safe_delete: Read each thread again in the transaction that deletes it, and keep it
            if it woke up. Off, a delete is still whole.
        on_before_delete: ``(thread_id, policy, reason)``, before each delete, outside any
            transaction. Only False keeps the thread, and so does an exception.
        on_sweep_complete: Receives the result at the end of every sweep.
        on_after_delete: ``(thread_id, reason)``, once for each thread really deleted.
        batch_size: Threads per delete transaction, at least 1.
        max_deletes_per_sweep: Stop after this many deletes, longest overdue first. Where a sweep
            goes over several tenants it is one limit for all, whosever threads they are.
        grace_seconds: Keep what is deleted in a trash for so long, in seconds or as a timedelta;
            None deletes for good. A run that was under way when its thread was deleted brings
            the thread back as soon as it saves, and :meth:`restore` brings back any. SQLite and
            Postgres; :meth:`setup` is needed once.
        orphan_age_seconds: Remove writes and values that belong to no checkpoint, left by
            runs whose thread was deleted, once they are older, in seconds or as a timedelta (a day
            unless given); None leaves them.
        max_delete_percent: Refuse a sweep whose rules match more than this share of all
            threads: nothing is deleted or pruned, and the result says so (``refused``). It
            costs a second scan, and with a resolver the memory of its answers. Several
            tenants are judged each by itself.
        audit_log: Gets a line before and a line after each thread is deleted or trimmed; if
            it cannot be written, the sweep stops and nothing more is deleted.
        strategy: How the storage is worked on, instead of the one for the saver's type.
        clock: The time in seconds since the epoch.
        options: How to sweep, as one object, which a rules file has too; an argument that says
            something else than it does is refused.
        more: Options that have no argument of their own above.

    Callbacks may be asynchronous under ``asweep()`` and ``start()``. Synchronous ones run
    there on the event loop.

    Raises:
        TypeError: An argument of the wrong type; the message says what to pass.
        ValueError: A number out of range, or a rule that the checkpointer cannot follow.
        UnsupportedCheckpointerError: A checkpointer that cannot be swept.
    """

    def __init__(
        self,
        checkpointer: BaseCheckpointSaver[Any],
        policy: TTLPolicy,
        *,
        policy_resolver: PolicyResolver | None = None,
        enable_coordination: bool = False,
        safe_delete: bool = True,
        on_before_delete: OnBeforeDelete | None = None,
        on_sweep_complete: OnSweepComplete | None = None,
        on_after_delete: OnAfterDelete | None = None,
        batch_size: int = 500,
        max_deletes_per_sweep: int | None = None,
        grace_seconds: float | timedelta | None = None,
        orphan_age_seconds: float | timedelta | None = DAY,
        max_delete_percent: float | None = None,
        audit_log: AuditLog | None = None,
        strategy: Strategy | None = None,
        clock: Callable[[], float] = time.time,
        options: SweepOptions | None = None,
        **more: Unpack[MoreArguments],
    ) -> None:
        check_saver(checkpointer)
        if strategy is not None and not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be an instance of Strategy, not {strategy!r}")
        check_callable("clock", clock)
        if options is not None and not isinstance(options, SweepOptions):
            raise TypeError(f"options must be SweepOptions, not {type(options).__name__}")
        if orphan_age_seconds is not None:
            orphan_age_seconds = positive_seconds("orphan_age_seconds", orphan_age_seconds)
        self._settings = SweepSettings(
            policy=policy,
            policy_resolver=policy_resolver,
            safe_delete=safe_delete,
            on_before_delete=on_before_delete,
            on_sweep_complete=on_sweep_complete,
            on_after_delete=on_after_delete,
            options=(options or SweepOptions()).with_arguments(
                {
                    "enable_coordination": enable_coordination,
                    "batch_size": batch_size,
                    "max_deletes_per_sweep": max_deletes_per_sweep,
                    "grace_seconds": grace_seconds,
                    "max_delete_percent": max_delete_percent,
                    **more,
                }
            ),
            orphan_age_seconds=orphan_age_seconds,
            audit_log=audit_log,
        )
        self._strategy = strategy or detect_strategy(checkpointer)
        self._check_storage(checkpointer)
        self._orphan_age_seconds = orphan_age_seconds
        self._orphan_round = OrphanRound()
        self._clock = clock
        self._turns = Turns()
        self._loop = BackgroundLoop(self._tick, "langgraph-ephemeral-checkpointer")

    def _check_storage(self, checkpointer: BaseCheckpointSaver[Any]) -> None:
        """Refuse what the storage cannot do, and warn of what has no effect on it."""
        saver, strategy = type(checkpointer).__name__, type(self._strategy).__name__
        if self._settings.policy.max_checkpoints_per_thread is not None and not isinstance(
            self._strategy, Prunes
        ):
            raise ValueError(
                f"max_checkpoints_per_thread is not supported for {saver} "
                f"({strategy} cannot prune); leave the rule out"
            )
        if self._settings.options.grace is not None and not isinstance(self._strategy, HasTrash):
            raise ValueError(
                f"grace_seconds is not supported for {saver} "
                f"({strategy} has no trash, what it deletes is gone); "
                "leave it out, and keep copies by on_before_delete where you need them"
            )
        if self._settings.options.coordinate and not isinstance(self._strategy, HasLock):
            logger.warning(
                "enable_coordination has no effect for %s: %s has no lock that instances share",
                saver,
                strategy,
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._strategy).__name__}, {self._settings.policy})"

    @property
    def strategy(self) -> Strategy:
        """How the storage is worked on."""
        return self._strategy

    def sweep(self, *, dry_run: bool = False, no_trash: bool = False) -> SweepResult:
        """Sweep once, on the calling thread; a sweep in progress is waited for.

        Args:
            dry_run: Write nothing and report what a live sweep would do.
            no_trash: Erase on the spot, in spite of ``grace_seconds``, and with each thread
                what the trash has of it already.

        Returns:
            What was done. Threads that could not be worked on are in its ``errors``.

        Raises:
            TypeError: An argument that is neither True nor False.
            ValueError: The clock gave no time.
            NotSetUpError: ``grace_seconds`` was given and :meth:`setup` was never called.
            AsyncRequiredError: The saver or a callback is asynchronous, or another sweep of this
                sweeper is under way in the event loop of this thread.
            TenantRequiredError: No tenant is in scope, and the role does not see every one.
            StorageError: The threads could not be read.
            AuditError: The audit log cannot be written; the sweep stopped.
            RuntimeError: Called by a callback of a sweep of this sweeper.
        """
        if not self._strategy.runs_sync:
            raise AsyncRequiredError(
                f"{type(self._strategy.checkpointer).__name__} is asynchronous: "
                "use 'await sweeper.asweep()' instead of sweep()"
            )
        for name, callback in self._settings.callbacks.items():
            if callback is not None and is_async_callable(callback):
                raise AsyncRequiredError(
                    f"{name} is asynchronous: use 'await sweeper.asweep()' instead of sweep()"
                )
        with self._mine(), self._turns.wait():
            return drive(self._plan(dry_run, no_trash).run(), SyncSteps(self._strategy).perform)

    async def asweep(self, *, dry_run: bool = False, no_trash: bool = False) -> SweepResult:
        """Sweep once, without blocking the event loop; otherwise as :meth:`sweep`.

        Cancelled, it finishes the batch in progress and stops.

        Raises:
            AsyncRequiredError: The saver belongs to another event loop, which runs.
            RetentionError: As for :meth:`sweep`, except that callbacks may be asynchronous.
        """
        self._check_loop()
        with self._mine():
            async with self._turns.await_turn():
                steps = AsyncSteps(self._strategy)
                result = await adrive(self._plan(dry_run, no_trash).run(), steps.perform)
                steps.raise_if_cancelled()
                return result

    async def start(self, interval_seconds: float | timedelta = 300) -> None:
        """Sweep now and again after each interval, in a task of the running event loop.

        Returns once the task runs.

        Args:
            interval_seconds: Pause between two sweeps, in seconds or as a timedelta, lengthened
                or shortened by up to a tenth at random.

        Raises:
            TypeError: The interval is neither a number nor a timedelta.
            ValueError: It is not finite and > 0.
            RuntimeError: Started already.
        """
        await self._loop.start(interval_seconds)

    async def stop(self) -> None:
        """Let the sweep in progress finish and end the task; may be called at any time."""
        await self._loop.stop()

    async def _tick(self) -> None:
        # A callback of a sweep may have called start(): the task inherited its mark.
        _under_way.set(_under_way.get() - {id(self)})
        await self.asweep()

    def _check_loop(self) -> None:
        # The lock of an asynchronous saver would wake a graph in the wrong loop, which hangs.
        home = getattr(self._strategy.checkpointer, "loop", None)
        if (
            isinstance(home, asyncio.AbstractEventLoop)
            and home.is_running()
            and home is not asyncio.get_running_loop()
        ):
            raise AsyncRequiredError(
                f"the {type(self._strategy.checkpointer).__name__} belongs to another event loop: "
                "sweep it in the loop it was made in"
            )

    def _plan(self, dry_run: bool, no_trash: bool) -> Sweep | TenantSweep:
        checked_flag("dry_run", dry_run)
        checked_flag("no_trash", no_trash)
        now = self._read_clock()

        def sweep() -> Sweep:
            return Sweep(
                self._strategy,
                self._settings,
                now=now,
                dry_run=dry_run,
                no_trash=no_trash,
                orphans=self._orphan_round,
            )

        if isinstance(self._strategy, HasTenants) and self._strategy.spans_tenants:
            return TenantSweep(self._strategy, self._settings, sweep, dry_run=dry_run)
        return sweep()

    def _read_clock(self) -> float:
        now = self._clock()
        try:
            seconds = float(now) if isinstance(now, int | float) else math.nan
        except OverflowError:
            seconds = math.inf
        if not math.isfinite(seconds):
            raise ValueError(f"clock must return seconds since the epoch, not {now!r}")
        return seconds

    @contextmanager
    def _mine(self) -> Iterator[None]:
        # A callback that sweeps again would wait for itself for ever.
        if id(self) in _under_way.get():
            raise RuntimeError("a callback of a sweep must not start another of the same sweeper")
        token = _under_way.set(_under_way.get() | {id(self)})
        try:
            yield
        finally:
            _under_way.reset(token)
