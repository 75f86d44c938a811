"""Asking before what cannot be undone."""

from __future__ import annotations

import sys

from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.failures import CommandError, UsageError


def confirm(question: str, *, yes: bool, console: Console) -> None:
    """Ask on a terminal; elsewhere ``--yes`` must have been given.

    Args:
        question: What is about to happen, without a question mark.
        yes: Whether ``--yes`` was given.
        console: Where the question is shown.

    Raises:
        UsageError: Nobody can be asked, and ``--yes`` is missing.
        CommandError: The answer was not yes.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{question}: this needs --yes where nobody can be asked")
    console.flush()
    console.message(f"{question}? Type yes to go on:")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")
