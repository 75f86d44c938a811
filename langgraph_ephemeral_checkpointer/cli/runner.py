"""Sweeping until told to stop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from types import FrameType
from typing import Any

from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, FAILED
from langgraph_ephemeral_checkpointer.cli.failures import UsageError, told
from langgraph_ephemeral_checkpointer.cli.output import summary, sweep_json
from langgraph_ephemeral_checkpointer.cli.settings import Settings
from langgraph_ephemeral_checkpointer.common.durations import format_duration
from langgraph_ephemeral_checkpointer.engine.background import BackgroundLoop, jittered
from langgraph_ephemeral_checkpointer.metrics import SweepMetrics, outcome_of
from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasLock
from langgraph_ephemeral_checkpointer.strategies.opening import Savers
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper

FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 60.0
FAILURES_SHOWN = 10
"""Threads that are named, of those that could not be worked on in a sweep."""


class Health:
    """What the probes are told.

    Args:
        unready_after: So many failed sweeps in a row make it not ready.
    """

    def __init__(self, unready_after: int) -> None:
        self._unready_after = unready_after
        self.failures = 0
        """Failed sweeps in a row."""

    def note(self, failure: str | None) -> None:
        """Note how a sweep ended: None if well."""
        self.failures = 0 if failure is None else self.failures + 1

    def answer(self) -> tuple[int, str, bytes]:
        """Give the answer to a readiness probe."""
        if self.failures < self._unready_after:
            return 200, "text/plain; charset=utf-8", b"ready\n"
        text = f"not ready: the last {self.failures} sweeps failed\n"
        return 503, "text/plain; charset=utf-8", text.encode()


def retry_pause(interval: float, failures: int) -> float:
    """Give the seconds until the next try after so many failures in a row.

    It doubles from five seconds (or the interval, if that is shorter) to a minute (or the
    interval, if that is longer): a database that was restarted is soon swept again, and one
    that is away for long is not pestered.
    """
    doubled = min(interval, FIRST_RETRY_SECONDS) * 2.0 ** min(failures - 1, 30)
    return float(min(doubled, max(interval, LONGEST_RETRY_SECONDS)))


class Runner:
    """Sweep once or again and again, and tell of each sweep.

    Args:
        settings: What to do.
        savers: Opens the storage for a sweep.
        console: Gets a message for each sweep.
        health: Is told how each sweep ended.
        metrics: Counts what is done.
        write_json: Write each result to standard output too.
        once: Stop after the first sweep.
        dry_run: Write nothing, and tell what live sweeps would do.
    """

    def __init__(
        self,
        settings: Settings,
        savers: Savers,
        console: Console,
        health: Health,
        *,
        metrics: SweepMetrics | None = None,
        write_json: bool = False,
        once: bool = False,
        dry_run: bool = False,
    ) -> None:
        self._settings = settings
        self._savers = savers
        self._console = console
        self._health = health
        self._metrics = metrics
        self._write_json = write_json
        self._once = once
        self._dry_run = dry_run
        self._deleted = 0
        self._reported = self._partly = self._begun = False
        self._fatal: Exception | None = None
        self._sweeper: TTLSweeper | None = None

    def run(self, interval: float) -> int:
        """Sweep until a signal comes.

        Args:
            interval: Seconds between two sweeps.

        Returns:
            The exit status.

        Raises:
            UsageError: The backend cannot do what is asked.
        """
        asyncio.run(self._main(interval))
        if self._fatal is not None:
            raise self._fatal
        return FAILED if self._once and (self._health.failures or self._partly) else DONE

    async def _main(self, interval: float) -> None:
        stopped = asyncio.Event()

        async def tick() -> None:
            await self._tick()
            if self._once or self._fatal is not None:
                stopped.set()

        loop = BackgroundLoop(tick, "sweeps", self._pause)
        with _signals(stopped):
            if not self._once:
                every = format_duration(interval)
                self._console.message(f"sweeping every {every}", event="started")
            await loop.start(interval)
            await stopped.wait()
            if not self._once:
                self._console.message("told to stop: the batch is finished", event="stopping")
            await loop.stop(now=True)
        if not self._once:
            self._console.message("stopped", event="stopped")

    def _pause(self, interval: float) -> float:
        if self._once or not self._health.failures:
            return jittered(interval)
        pause = jittered(retry_pause(interval, self._health.failures))
        self._console.message(f"next try in {format_duration(pause)}", event="retry")
        return pause

    async def _tick(self) -> None:
        self._deleted, self._reported = 0, False
        failure: str | None
        try:
            with self._savers() as saver:
                sweeper = self._settings.sweeper_for(
                    saver, on_after_delete=self._note_deleted, on_sweep_complete=self._note_sweep
                )
                if self._sweeper is not None:
                    sweeper.go_on_from(self._sweeper)
                self._sweeper = sweeper
                self._begin()
                result = await sweeper.asweep(dry_run=self._dry_run)
                failure = self._tell(result)
        except asyncio.CancelledError:
            self._console.message(
                f"{self._deleted} threads were deleted by the sweep in progress",
                event="cancelled",
                deleted=self._deleted,
            )
            raise
        except UsageError as error:
            self._fatal = error
            failure = str(error)
        except Exception as error:  # noqa: BLE001 - the next sweep is tried whatever it was
            self._begin()
            self._console.traceback(error)
            failure = told(error, repeats=True)
            self._console.failure(f"the sweep failed: {failure}", event="sweep", outcome="failed")
            if not self._reported:  # the storage could not even be opened
                self._note_sweep(SweepResult(errors={"": failure}))
        self._health.note(failure)
        # It has said once that coordination has no effect here.
        if self._sweeper is not None and not isinstance(self._sweeper.strategy, HasLock):
            once_said = replace(self._settings.sweep, coordinate=False)
            self._settings = replace(self._settings, sweep=once_said)

    def _begin(self) -> None:
        """Say by which rules it is swept, once it is sure that what is asked can be done."""
        if not self._begun:
            self._begun = True
            dry = "dry run: nothing is written"
            first = dry if self._dry_run else self._settings.in_words()
            self._console.release(first, event="rules")

    def _note_deleted(self, thread_id: str, reason: str) -> None:
        self._deleted += 1
        if self._metrics is not None:
            self._metrics.deleted(thread_id, reason)

    def _note_sweep(self, result: SweepResult) -> None:
        self._reported = True
        if self._metrics is not None:
            self._metrics.swept(result)

    def _tell(self, result: SweepResult) -> str | None:
        """Tell of a sweep, and give what makes it a failed one, or None."""
        if self._write_json:
            self._console.line(sweep_json(result, self._console))
            self._console.flush()
        outcome = outcome_of(result)
        fields: dict[str, Any] = {
            "event": "sweep",
            "outcome": outcome,
            "dry_run": result.dry_run,
            "deleted": len(result.deleted_thread_ids),
            "kept": len(result.kept),
            "deferred": result.deferred_count,
            "pruned": result.pruned_checkpoint_count,
            "alive": result.active_thread_count,
            "seconds": round(result.sweep_duration_seconds, 3),
        }
        if outcome == "skipped":
            self._console.message("another instance is sweeping these tables", **fields)
            return None
        whole = result.errors.get("")
        if whole is not None:
            said = f"the sweep was {whole}" if result.refused else f"stopped early: {whole}"
            self._console.failure(said, **fields)
            return whole
        self._console.message(summary(result), **fields)
        for thread_id, error in islice(result.errors.items(), FAILURES_SHOWN):
            self._console.failure(
                f"{self._console.quote(thread_id)}: {error}", event="thread", thread=thread_id
            )
        if (more := len(result.errors) - FAILURES_SHOWN) > 0:
            self._console.failure(f"and {more} more threads could not be worked on", event="more")
        self._partly = bool(result.errors)
        return None


@contextmanager
def _signals(stopped: asyncio.Event) -> Iterator[None]:
    """Set the event at SIGTERM or Ctrl-C; a second one of them ends the process at once."""
    loop = asyncio.get_running_loop()

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, before[signal.Signals(number)])
        loop.call_soon_threadsafe(stopped.set)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
