"""What every command is."""

from __future__ import annotations

from clypi import Command

from langgraph_ephemeral_checkpointer.cli.console import Console

PROGRAM = "langgraph-ephemeral-checkpointer"
DONE, FAILED = 0, 1


class Executable(Command):
    """A command that does something.

    ``execute`` takes the place of clypi's ``run``: under an event loop Ctrl-C would only be
    noticed when a synchronous sweep is over.
    """

    @classmethod
    def parents(cls) -> list[str]:
        """Name what comes before the command on the line."""
        return [PROGRAM]

    @classmethod
    def operand(cls) -> str | None:
        """Name the field that a word without an option is the value of, if there is one."""
        return None

    def __repr__(self) -> str:
        """Show nothing of what the user typed; clypi's shows every field."""
        return f"<{type(self).__name__}>"

    def execute(self, console: Console) -> int:
        """Do it, and give the exit status."""
        raise NotImplementedError
