"""Trimming threads to their newest checkpoints: one rule, carried out per backend.

The rule is in :mod:`langgraph_ephemeral_checkpointer.survivors`. The plans here read what
it asks for and delete the rest, inside a transaction that the caller opens and ends.
"""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.pruning.memory import prune_memory
from langgraph_ephemeral_checkpointer.pruning.outcome import PruneOutcome
from langgraph_ephemeral_checkpointer.pruning.postgres import prune_postgres
from langgraph_ephemeral_checkpointer.pruning.sqlite import prune_sqlite

__all__ = ["PruneOutcome", "prune_memory", "prune_postgres", "prune_sqlite"]
