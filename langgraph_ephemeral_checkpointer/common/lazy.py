"""Public names whose modules are imported when they are first asked for."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def remedy(what: str, extra: str, error: ImportError) -> str:
    """Say how to install what ``what`` needs, which the extra of this package brings."""
    return (
        f"{what} needs more packages ({error}); install them with: "
        f"pip install 'langgraph-ephemeral-checkpointer[{extra}]'"
    )


def lazily(module: str, name: str, where: Mapping[str, tuple[str, str | None]]) -> Any:
    """Import a name for the ``__getattr__`` of a module.

    Args:
        module: The module that was asked.
        name: For what it was asked.
        where: Its names: the module each is in, and the extra that brings what that needs, if
            any.

    Raises:
        AttributeError: It is none of them.
        ImportError: What it needs is not installed; the message says how to install it.
    """
    if name not in where:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    source, extra = where[name]
    try:
        found = import_module(source)
    except ModuleNotFoundError as error:
        if extra is None:
            raise
        raise ImportError(remedy(name, extra, error), name=error.name) from error
    return getattr(found, name)
