"""What the installed versions of LangGraph can do.

A test of something newer than the oldest allowed versions selects itself by these when it
is collected: a module guards it with ``if HAS_DELTA:``, a parametrization leaves a case
out. Nothing is skipped: on the newest versions every flag is True, and
``test_features.py`` says so.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec

from langgraph.checkpoint.base import BaseCheckpointSaver

HAS_DELTA = find_spec("langgraph.channels.delta") is not None
"""DeltaChannel, which stores what changed and not the value."""

HAS_UPSTREAM_PRUNE = hasattr(BaseCheckpointSaver, "prune")
"""The methods ``prune``, ``copy_thread`` and ``delete_for_runs`` of a saver."""


def _imports(name: str) -> bool:
    """Say whether a package is there and fits the installed versions of what it builds on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may import deprecated parts of its dependencies
        try:
            import_module(name)
        except ImportError:
            return False
    return True


HAS_DEEPAGENTS = _imports("deepagents")
"""Whether an agent of deepagents can be made: old releases install beside what breaks them."""
