"""The scope that was open when a run started, wherever the run calls the saver from.

LangGraph calls a saver from worker threads, and from nested graphs that start whenever somebody
reads on: no context tells there whose the run is. What a run hands to everything it does is its
config. So the first load of a run leaves the open scope in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

# LangGraph shows nobody the keys that begin like its own, and stores none of them.
_RUN: Final = "__pregel_lgec_run"
_RUNTIME: Final = "__pregel_runtime"
_TASK: Final = "__pregel_task_id"


@dataclass(frozen=True, slots=True, eq=False)
class RunStart:
    """The start of a run.

    Attributes:
        scopes: The scopes it is about: those of one saver.
        tenant: Whose scope was open; None: none was.
    """

    scopes: object
    tenant: str | None


# Where a thread id is no string, or a run goes on from a subgraph's checkpoint, LangGraph gives the
# saver a copy of the run's config, and nested graphs never see what is left in that. What they
# have of the run is the function through which its nodes write to its stream.
_by_writer: WeakKeyDictionary[FunctionType, RunStart] = WeakKeyDictionary()


def begin(scopes: object, config: RunnableConfig, tenant: Callable[[], str | None]) -> None:
    """Keep whose scope is open for the rest of a run, and for the graphs nested in it.

    Does nothing for a config that no run made, or where the run has begun before.

    Args:
        scopes: The scopes of the saver.
        config: What the run loads with; the run's own copy.
        tenant: Gives the tenant whose scope is open.
    """
    values = config.get("configurable") or {}
    if _RUNTIME not in values:
        return
    run = run_of(scopes, config) or RunStart(scopes, tenant())
    values[_RUN] = run
    if (writer := _writer(values)) is not None:
        _by_writer[writer] = run


def run_of(scopes: object, config: Mapping[str, Any]) -> RunStart | None:
    """The run that a call with this config belongs to; None: a call of its own."""
    values = config.get("configurable") or {}
    run = _found(values)
    if run is None and _TASK in values:
        return run_of_node(scopes)
    return run if run is not None and run.scopes is scopes else None


def run_of_node(scopes: object) -> RunStart | None:
    """The run in one of whose nodes this is called; None: in no node."""
    config = var_child_runnable_config.get()
    run = _found(config.get("configurable") or {}) if config else None
    return run if run is not None and run.scopes is scopes else None


def _found(values: Mapping[str, Any]) -> RunStart | None:
    run = values.get(_RUN)
    if isinstance(run, RunStart):
        return run
    if (writer := _writer(values)) is None:
        return None
    if (run := _by_writer.get(writer)) is not None:
        return run
    # A node with a timeout has one that guards the run's.
    guarded = (cell.cell_contents for cell in writer.__closure__ or ())
    found = (_by_writer.get(inner) for inner in guarded if isinstance(inner, FunctionType))
    return next(filter(None, found), None)


def _writer(values: Mapping[str, Any]) -> FunctionType | None:
    """The function that writes to the stream of one run; None: there is none of one run only."""
    writer = getattr(values.get(_RUNTIME), "stream_writer", None)
    if isinstance(writer, FunctionType) and "<locals>" in writer.__qualname__:
        return writer
    return None
