"""Data source names, whose passwords are never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

from langgraph_ephemeral_checkpointer.common import conninfo
from langgraph_ephemeral_checkpointer.common.dsn import backend_by_dsn, plain

HIDDEN = "***"

_PASSWORD_KEY = re.compile(r"(?i)(password\s*=\s*)('(?:\\.|[^'\\])*'|[^\s&]+)")
_USERINFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*:/{1,2}[^\s:/@]*):[^\s]*@")


class Dsn:
    """Where the storage is: a path or a connection string. Its text is not shown by accident.

    Args:
        text: As the user gave it.
    """

    __slots__ = ("_text", "_typed")

    def __init__(self, text: str) -> None:
        self._text = plain(text)
        self._typed = text

    def __repr__(self) -> str:
        return f"Dsn({HIDDEN})"

    def __bool__(self) -> bool:
        return bool(self._text)

    def reveal(self) -> str:
        """Give the text as a driver takes it, to connect with and for nothing else."""
        return self._text

    def shown(self) -> str:
        """Give the text for a message, or words instead where it may hold a password."""
        known = "@" in self._text or "password" in self._text.lower()
        return "the file that the DSN names" if known else repr(self._text)

    def backend(self) -> str | None:
        """Give the backend that it tells by its form or its file; None where it tells none."""
        return backend_by_dsn(self._typed)

    def is_url(self) -> bool:
        """Say whether it has the form of a URL."""
        return conninfo.is_url(self._text)

    def is_ambiguous(self) -> bool:
        """Say whether a driver may take a part of the password for something else, and show it."""
        return conninfo.is_ambiguous(self._text)

    def secrets(self) -> set[str]:
        """Give every text that must not be shown: the passwords, as typed and decoded."""
        found = {self._unquote(value) for _, value in _PASSWORD_KEY.findall(self._text)}
        if self.is_url():
            rest = self._text.split("://", 1)[1]
            for at in (place.start() for place in re.finditer("@", rest)):
                _, colon, password = rest[:at].partition(":")
                found.add(password if colon else "")
        found |= {os.environ.get("PGPASSWORD", "")}
        found |= {unquote(secret) for secret in found}
        if len(found - {""}) > 0:
            found |= {self._text, self._typed}
        return found - {""}

    @staticmethod
    def _unquote(value: str) -> str:
        quoted = len(value) > 1 and value[0] == value[-1] == "'"
        return re.sub(r"\\(.)", r"\1", value[1:-1] if quoted else value)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Take secrets out of a text: those given, and whatever looks like a password in a DSN.

    Args:
        text: What is about to be shown.
        secrets: Texts that must not be in it.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _USERINFO.sub(rf"\1:{HIDDEN}@", text)
    return _PASSWORD_KEY.sub(rf"\1{HIDDEN}", text)
