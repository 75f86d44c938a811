"""What is around every sweep: the lock before it, and the report after it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from langgraph_ephemeral_checkpointer.engine.steps import Ask, Work
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError
from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasLock, HasTenants
from langgraph_ephemeral_checkpointer.sweeps.parts import StoppedEarly, SweepSettings, describe
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps

logger = logging.getLogger(__name__)


def framed(
    strategy: Strategy | HasTenants,
    settings: SweepSettings,
    result: SweepResult,
    work: Steps[None],
    count: Callable[[], None],
) -> Steps[SweepResult]:
    """Sweep once under the lock, and report also where the sweep fails halfway.

    Args:
        strategy: The storage.
        settings: Whether there is a lock, and who gets the report.
        result: Filled in while ``work`` goes on.
        work: The sweep itself.
        count: Completes ``result`` after it.
    """
    started = time.perf_counter()
    failure: Exception | None = None
    try:
        yield from _under_lock(strategy, settings, result, work)
    except Exception as error:  # noqa: BLE001 - raised again below, after the report
        failure = error
        result.errors[""] = describe(error)
    finally:
        work.close()
    count()
    result.sweep_duration_seconds = time.perf_counter() - started
    if settings.on_sweep_complete is not None:
        try:
            yield Ask(settings.on_sweep_complete, (result,), owed=True)
        except AsyncRequiredError:
            raise
        except Exception:
            logger.exception("on_sweep_complete failed; the sweep itself is done")
    if failure is not None:
        raise failure
    return result


def _under_lock(
    strategy: Strategy | HasTenants, settings: SweepSettings, result: SweepResult, work: Steps[None]
) -> Steps[None]:
    lock = strategy if isinstance(strategy, HasLock) else None
    if not settings.options.coordinate or result.dry_run:
        lock = None
    if lock is not None and not (yield Work(lock.lock)):
        result.lock_held_elsewhere = True
        return
    try:
        yield from work
    except StoppedEarly:
        pass  # reported in the result
    finally:
        if lock is not None:
            try:
                yield Work(lock.unlock)
            except Exception:
                logger.exception("the sweep lock could not be released; its session is over")
