"""What a storage is asked that not every storage can tell: sizes, and whose threads it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.strategies.base import Size, Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import (
    FindsOrphans,
    HasTenants,
    MeasuresSizes,
)
from langgraph_ephemeral_checkpointer.sweeps.resolution import Steps


def sizes_of(strategy: Strategy, thread_ids: Sequence[str]) -> Steps[Mapping[str, Size]]:
    """Return the sizes of threads, as far as the storage can tell them."""
    if not isinstance(strategy, MeasuresSizes):
        return {}
    sizes: Mapping[str, Size] = yield Work(partial(strategy.measure_threads, thread_ids))
    return sizes


def tenant_of(strategy: Strategy | FindsOrphans) -> str | None:
    """Return whose threads a storage shows at this moment; None where it has no tenants."""
    return strategy.tenant if isinstance(strategy, HasTenants) else None
