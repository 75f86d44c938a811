"""Public names that need an optional package, imported when they are first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def optional_name(module: str, name: str, extras: Mapping[str, tuple[str, str]]) -> Any:
    """Import a name for the ``__getattr__`` of a module.

    Args:
        module: The module that was asked.
        name: For what it was asked.
        extras: Its optional names: the module each is in, and the extra that brings what
            that needs.

    Raises:
        AttributeError: It is none of them.
        ImportError: What it needs is not installed; the message says how to install it.
    """
    if name not in extras:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    where, extra = extras[name]
    try:
        found = import_module(where)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} needs more packages ({error}); install them with: "
            f"pip install 'langgraph-ephemeral-checkpointer[{extra}]'",
            name=error.name,
        ) from error
    return getattr(found, name)
