"""How a command fails: in one line, by one of two exceptions."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.errors import RetentionError


class UsageError(RetentionError):
    """The command line cannot be understood; see --help."""


class CommandError(RetentionError):
    """The command could not be carried out."""
