"""Help as plain text: clypi's own has boxes, which an ASCII terminal cannot show."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from clypi import Command

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.common.kinds import KINDS

_INDENT = "  "
_NARROW, _WIDE = 60, 100

# What stands for an option's value: by what its values are, else by its name.
_BY_PARSER: tuple[tuple[Any, str | None], ...] = (
    *((kind.from_line, kind.metavar) for kind in KINDS),
    (options.durations, "DURATIONS"),
    (options.path, "FILE"),
    (options.dotted, "MODULE:FUNCTION"),
    (options.port, "PORT"),
)
_BY_NAME = {
    "backend": "KIND",
    "table": "NAME",
    "schema": "NAME",
    "tenant": "NAME",
    "maintenance_role": "NAME",
    "target_dsn": "DSN",
    "metrics_host": "ADDRESS",
    "log_format": "FORMAT",
}


def help_of(command: type[Command], width: int, heading: Callable[[str], str] = str) -> str:
    """Write the help of a command from what it declares.

    Args:
        command: A command of clypi's, with subcommands or with options.
        width: Columns of the terminal; very narrow and very wide ones are not followed.
        heading: Makes a heading out of its text.
    """
    width = min(max(width, _NARROW), _WIDE)
    shown = [option for option in command.options().values() if not option.hidden]
    commands = [one for one in command.subcommands().values() if one]
    usage = [*command.full_command(), *(["COMMAND"] if commands else []), "[OPTIONS]"]
    blocks = [
        f"{heading('Usage:')} {' '.join(usage)}",
        textwrap.fill(_docstring(command), width),
        _table(heading("Commands:"), [(one.prog(), _docstring(one)) for one in commands], width),
    ]
    for group in dict.fromkeys(option.group for option in shown):
        title = f"{group.capitalize()}s:" if group else "Options:"
        rows = [(_usage(option), option.help or "") for option in shown if option.group == group]
        blocks.append(_table(heading(title), rows, width))
    blocks.append(command.epilog() or "")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _docstring(command: type[Command]) -> str:
    return inspect.getdoc(command) or ""


def _usage(option: Any) -> str:
    if option.nargs == 0:
        return str(option.display_name)
    by_name = _BY_NAME.get(option.name, option.name.upper())
    value = next((value for parser, value in _BY_PARSER if parser is option.parser), by_name)
    return f"{option.display_name} {value}"


def _table(title: str, rows: list[tuple[str, str]], width: int) -> str:
    if not rows:
        return ""
    first = max(len(name) for name, _ in rows) + 2 * len(_INDENT)
    lines = [title]
    for name, text in rows:
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=f"{_INDENT}{name}".ljust(first),
            subsequent_indent=" " * first,
        ) or [f"{_INDENT}{name}"]
    return "\n".join(lines)
