"""What every command is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clypi import Command, arg

from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.common.kinds import Option

PROGRAM = "langgraph-ephemeral-checkpointer"
DONE, FAILED = 0, 1


class Executable(Command):
    """A command that does something.

    ``execute`` takes the place of clypi's ``run``: under an event loop Ctrl-C would only be
    noticed when a synchronous sweep is over.
    """

    def __init_subclass__(cls, *, takes: Mapping[str, Sequence[Option]] | None = None) -> None:
        """Give the command options that are declared elsewhere, as if it had them itself.

        Args:
            takes: The options by the group they are listed under in the help.
        """
        super().__init_subclass__()
        # clypi reads the fields of a class from its own annotations, and does so after this.
        for group, options in (takes or {}).items():
            for one in options:
                flag = one.kind.metavar is None
                cls.__annotations__[one.key] = bool if flag else one.kind.type | None
                default = False if flag else None
                parser = None if flag else one.kind.from_line
                setattr(cls, one.key, arg(default, parser=parser, group=group, help=one.help))

    @classmethod
    def parents(cls) -> list[str]:
        """Name what comes before the command on the line."""
        return [PROGRAM]

    @classmethod
    def operand(cls) -> str | None:
        """Name the field that a word without an option is the value of, if there is one."""
        return None

    @classmethod
    def renamed(cls) -> Mapping[str, str]:
        """Give the options that have another name now, by the old name."""
        return {}

    @classmethod
    def names_rules(cls) -> bool:
        """Say whether the first message of the command is by which rules it deletes."""
        return False

    def __repr__(self) -> str:
        """Show nothing of what the user typed; clypi's shows every field."""
        return f"<{type(self).__name__}>"

    def execute(self, console: Console) -> int:
        """Do it, and give the exit status."""
        raise NotImplementedError
