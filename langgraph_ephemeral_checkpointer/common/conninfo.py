"""Connection strings of Postgres, whose passwords a driver's message may show."""

from __future__ import annotations

import re

UNREADABLE = (
    "the connection string cannot be read (it is not shown, it may hold a password); write "
    "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters as %40 and the "
    "like, or 'host=... dbname=...'"
)
"""What to say in place of a driver that cannot read one, and quotes it."""

AMBIGUOUS = (
    "cannot connect to Postgres; what the driver says is not shown, because it may "
    "hold a part of the password: write the characters @ / ? # in it as %40 %2F %3F %23"
)
"""What to say in place of a driver that took a part of the password for something else."""

_SCHEME = re.compile(r"(?i)[a-z][a-z0-9+.-]*://")


def shown(word: str) -> str:
    """Give a word for a message, or not if it may be a misplaced connection string."""
    return repr(word) if len(word) <= 30 and not re.search(r"[@=/]", word) else "a value"


def is_url(text: str) -> bool:
    """Say whether a connection string has the form of a URL."""
    return _SCHEME.match(text) is not None


def is_ambiguous(text: str) -> bool:
    """Say whether a driver may take a part of the password for something else.

    It would then show that part in its messages. That is so for a URL with one of
    ``@ / ? #`` in the password that is not percent-encoded.
    """
    if not is_url(text):
        return False
    userinfo, at, _ = text.split("://", 1)[1].rpartition("@")
    return bool(at) and re.search(r"[@/?#\s]", userinfo) is not None
