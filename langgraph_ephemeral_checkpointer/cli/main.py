"""The program: reads its arguments, runs a command, and decides the exit status."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from langgraph_ephemeral_checkpointer.cli.app import Program
from langgraph_ephemeral_checkpointer.cli.arguments import Chosen, HelpWanted, choose, read
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, FAILED, Executable
from langgraph_ephemeral_checkpointer.cli.failures import UsageError, told
from langgraph_ephemeral_checkpointer.cli.helptext import help_of
from langgraph_ephemeral_checkpointer.errors import RetentionError
from langgraph_ephemeral_checkpointer.sweeps.audit import version

WRONG_USAGE, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: The words after the name of the program; those of the process where None.

    Returns:
        The exit status: 0 done, 1 failed or partly failed, 2 wrong usage, 130 interrupted.
        Whatever goes wrong, no exception leaves this function.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console(sys.stdout, sys.stderr, os.environ, debug="--debug" in words)
    try:
        with console.logging():
            status = _run(words, console)
            console.release()
            console.flush()
    except KeyboardInterrupt as interrupt:
        console.traceback(interrupt)
        console.failure("interrupted")
        return INTERRUPTED
    except UsageError as error:
        console.forget()
        console.traceback(error)
        console.failure(f"{error}; see --help")
        return WRONG_USAGE
    except RetentionError as error:
        console.traceback(error)
        console.failure(told(error))
        return FAILED
    except Exception as error:  # noqa: BLE001 - the exit status tells it, and --debug shows it
        console.traceback(error)
        console.failure(f"{type(error).__name__}: {error} (--debug shows where)")
        return FAILED
    return status


def _run(words: Sequence[str], console: Console) -> int:
    console.hold()
    chosen = choose(Program, words)
    wanted = read(chosen) if isinstance(chosen, Chosen) else chosen
    if isinstance(wanted, Executable):
        console.structured = getattr(wanted, "log_format", None) == "json"
        if not wanted.names_rules():
            console.release()
        return wanted.execute(console)
    if isinstance(wanted, HelpWanted):
        width = shutil.get_terminal_size((80, 24)).columns
        console.write(help_of(wanted.command, width, lambda text: console.paint(text, "bold")))
    else:
        console.line(f"{Program.prog()} {version()}")
    return DONE
