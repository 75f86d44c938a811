"""What the installed versions of LangGraph can do.

A test of something newer than the oldest allowed versions selects itself by these when it
is collected: a module guards it with ``if HAS_DELTA:``, a parametrization leaves a case
out. Nothing is skipped: on the newest versions every flag is True, and
``test_features.py`` says so.
"""

from __future__ import annotations

from importlib.util import find_spec

from langgraph import types
from langgraph.checkpoint.base import BaseCheckpointSaver

HAS_DELTA = find_spec("langgraph.channels.delta") is not None
"""DeltaChannel, which stores what changed and not the value."""

HAS_OVERWRITE = hasattr(types, "Overwrite")
"""``Overwrite``, which replaces the value of a channel that otherwise collects."""

HAS_SUBGRAPH_REPLAY = find_spec("langgraph._internal._replay") is not None
"""A replay loads the states that subgraphs had then; before that they went on from the newest."""

HAS_CONFORMANCE = find_spec("langgraph.checkpoint.conformance") is not None
"""The conformance suite of savers."""

HAS_AGENTS = HAS_DELTA and find_spec("deepagents") is not None
"""An agent of deepagents; the releases that go with an older LangGraph cannot be imported."""

HAS_UPSTREAM_PRUNE = hasattr(BaseCheckpointSaver, "prune")
"""The methods ``prune``, ``copy_thread`` and ``delete_for_runs`` of a saver."""
