"""How a command fails: in one line that says whether to try again or to change something."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.errors import RetentionError, RetryableError


class UsageError(RetentionError):
    """The command line cannot be understood; see --help."""


class CommandError(RetentionError):
    """The command could not be carried out."""


def told(error: Exception, *, repeats: bool = False) -> str:
    """Return the line that tells of an error.

    Args:
        error: What went wrong.
        repeats: The command tries again by itself, so that only what no retry mends needs a word.
    """
    text = str(error) or type(error).__name__
    if isinstance(error, RetryableError):
        return text if repeats or "again" in text else f"{text}; try again"
    if repeats and isinstance(error, RetentionError):
        return f"{text}; every sweep fails until that is changed"
    return text
