"""From the words of a command line to a command of clypi's, and never to another one.

clypi has the declarations, their readers, defaults and help. Its loop over the words is
not used, because what it does with some of them is wrong for a tool that deletes: it looks
at ``sys.argv[-1]``, whatever it is parsing, and drops every option where that is ``help``;
it drops what follows ``--``; it takes the value ``help`` for a call for help and ends with
status 0; of a repeated option it keeps the last; and the environment can replace all words
(``_CLYPI_CURRENT_ARGS``). The grammar here is small and has no such corners::

    COMMAND (--flag | --option VALUE | --option=VALUE | OPERAND)*

One word of a command that has an operand may stand without its option.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from clypi import Command

from langgraph_ephemeral_checkpointer.cli.executable import Executable
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.cli.options import doubt_of
from langgraph_ephemeral_checkpointer.common.conninfo import shown

HELP = ("-h", "--help")
VERSION = "--version"

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=Command)


@dataclass(frozen=True, slots=True)
class HelpWanted:
    """The user asks for the help of a command."""

    command: type[Command]


@dataclass(frozen=True, slots=True)
class VersionWanted:
    """The user asks for the version."""


@dataclass(frozen=True, slots=True)
class Chosen(Generic[C]):
    """A command of the program, without its options."""

    command: type[C]
    words: Sequence[str]


def choose(
    program: type[Command], words: Sequence[str]
) -> Chosen[Any] | HelpWanted | VersionWanted:
    """Find the command that the first word names.

    Args:
        program: The command that has the commands as its subcommands.
        words: The command line without the name of the program.

    Raises:
        UsageError: There is no such command.
    """
    commands = {name: command for name, command in program.subcommands().items() if name}
    if not words:
        raise UsageError(f"a command is missing: one of {', '.join(commands)}")
    first = words[0]
    if first in HELP or list(words) == ["help"]:
        return HelpWanted(program)
    if first == VERSION:
        return VersionWanted()
    command = commands.get(first)
    if command is None:
        what = (
            "the command comes first, then its options" if first[:1] == "-" else "no such command"
        )
        raise UsageError(f"{shown(first)}: {what}{did_you_mean(first, commands)}")
    return Chosen(command, words[1:])


def read(chosen: Chosen[C]) -> C | HelpWanted:
    """Read the options of a command; values that may mean something else are logged.

    Raises:
        UsageError: An option that is unknown, given twice, without a value, with a value that
            cannot be read, or missing; or a word that belongs to no option.
    """
    command = chosen.command
    options = {option.display_name: option for option in command.options().values()}
    given: dict[str, Any] = {}
    # A word that begins with "-" is never an operand: it would have been an option.
    bare = command.operand() if issubclass(command, Executable) else None
    renamed = command.renamed() if issubclass(command, Executable) else {}
    operand = None if bare is None else command.options()[bare].display_name
    words = iter(chosen.words)
    for word in words:
        if word in HELP:
            return HelpWanted(command)
        name, equals, value = word.partition("=")
        if operand is not None and not word.startswith("-"):
            name, equals, value = operand, "=", word
        if name not in options:
            if new := renamed.get(name):
                raise UsageError(f"{name} is called {new} now")
            raise UsageError(_unknown(word, options))
        option = options[name]
        if option.name in given:
            raise UsageError(f"{name} is given twice")
        if option.nargs == 0:
            if equals:
                raise UsageError(f"{name} takes no value")
            given[option.name] = True
            continue
        if not equals:
            value = next(words, "-")
            if value.startswith("-"):
                raise UsageError(
                    f"{name} needs a value (one that begins with '-' is given as {name}=VALUE)"
                )
        try:
            given[option.name] = option.parser(value)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
        if (doubt := doubt_of(option.parser, value)) is not None:
            logger.warning("%s: %s", name, doubt)
    for option in options.values():
        if option.name not in given and not option.has_default():
            raise UsageError(f"{option.display_name} is required")
    return command(**given)


def _unknown(word: str, options: Iterable[str]) -> str:
    if word == "--":
        return "'--' has no meaning here; every value belongs to an option"
    if not word.startswith("-"):
        return (
            f"{shown(word)}: a word that belongs to no option; values are given as --option VALUE"
        )
    name = word.partition("=")[0]
    return f"{shown(name)}: no such option{did_you_mean(name.replace('_', '-'), options)}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at what a word may be a slip of; empty where nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
