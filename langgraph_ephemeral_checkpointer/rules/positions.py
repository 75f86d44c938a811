"""The line of each key of a TOML document. Pure.

``tomllib`` tells no lines of what it has read. A document it accepts is a row of
statements, each of which it accepts alone: so a statement ends with the first line up to
which it can be read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and indexes of arrays, from the top."""


def lines_of_keys(text: str) -> dict[KeyPath, int]:
    """Find the line, counted from 1, on which each table and key of a document begins.

    Args:
        text: A document that ``tomllib`` accepts.
    """
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, statement, parsed in _statements(text):
        if statement.lstrip().startswith("["):
            table = _table(parsed, counts, array=statement.lstrip().startswith("[["))
            for length in range(1, len(table) + 1):
                found.setdefault(table[:length], line)
            continue
        for path in _paths(parsed):
            found.setdefault((*table, *path), line)
    return found


def line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """Give the line of a key, or of the nearest table around it that has one."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines):
        for end in range(start + 1, len(lines) + 1):
            statement = "".join(lines[start:end])
            try:
                parsed = tomllib.loads(statement)
            except tomllib.TOMLDecodeError:
                continue
            if parsed:
                yield start + 1, statement, parsed
            break
        else:
            return
        start = end


def _table(parsed: dict[str, Any], counts: dict[KeyPath, int], *, array: bool) -> KeyPath:
    """Follow the header of a table: arrays on the way stand for their newest element."""
    path: KeyPath = ()
    node: Any = parsed
    while isinstance(node, dict) and node:
        (key, node), *_ = node.items()
        path = (*path, key)
        if isinstance(node, list):
            break
        if path in counts:
            path = (*path, counts[path] - 1)
    if array:
        counts[path] = counts.get(path, 0) + 1
        path = (*path, counts[path] - 1)
    return path


def _paths(node: Any) -> Iterator[KeyPath]:
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in children:
        yield (key,)
        if isinstance(child, dict | list):
            yield from ((key, *rest) for rest in _paths(child))
