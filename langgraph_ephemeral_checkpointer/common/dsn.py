"""What a DSN says of its storage, and the form in which a driver takes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_POSTGRES = re.compile(r"(?i)postgres(?:ql)?(?:\+(?:psycopg|psycopg2|asyncpg))?://")
_SQLITE = re.compile(r"(?i)sqlite:///")
_HEADER = b"SQLite format 3\0"


def plain(text: str) -> str:
    """Give a DSN as a driver takes it.

    Args:
        text: As typed. SQLAlchemy's ``postgresql+psycopg://`` loses the name of its driver,
            ``sqlite:///FILE`` is the file, and a ``~`` at the beginning of a path is expanded.
    """
    if match := _POSTGRES.match(text):
        return f"postgresql://{text[match.end() :]}" if "+" in match[0] else text
    if match := _SQLITE.match(text):
        text = text[match.end() :]
    return os.path.expanduser(text)  # noqa: PTH111 - of an unknown user it stays as it is


def backend_by_dsn(text: str) -> str | None:
    """Give the backend that a DSN tells: by its scheme, or by the file that it names.

    Args:
        text: As typed.

    Returns:
        None where it tells none: an empty file may become anything.
    """
    if _POSTGRES.match(text):
        return "postgres"
    if _SQLITE.match(text):
        return "sqlite"
    try:
        with Path(plain(text)).open("rb") as file:
            return "sqlite" if file.read(len(_HEADER)) == _HEADER else None
    except (OSError, ValueError):
        return None
