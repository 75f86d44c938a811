"""The options that commands share, each declared once.

clypi reads only the fields a command class annotates itself, so a command lists the
options it takes and gives them these declarations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from clypi import arg

from langgraph_ephemeral_checkpointer.cli.durations import parse_duration
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.cli.secrets import Dsn, shown
from langgraph_ephemeral_checkpointer.policy import TTLPolicy

BACKENDS = ("memory", "sqlite", "postgres")

_COUNT = re.compile(r"[0-9]{1,18}")


def one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    """Make the reader of an option that takes one of some words."""

    def read(raw: Any) -> str:
        if raw not in choices:
            raise ValueError(f"{shown(raw)} is none of {', '.join(choices)}")
        return str(raw)

    return read


def count(raw: Any) -> int:
    """Read a whole number >= 1."""
    if not _COUNT.fullmatch(raw) or int(raw) < 1:
        raise ValueError(f"{shown(raw)} is no whole number >= 1")
    return int(raw)


def duration(raw: Any) -> float:
    """Read a duration, in seconds."""
    return parse_duration(raw)


def dsn(raw: Any) -> Dsn:
    """Read where the storage is."""
    if not raw:
        raise ValueError("it is empty")
    return Dsn(raw)


BACKEND: str = arg(
    parser=one_of(BACKENDS),
    help=f"The kind of storage, one of: {', '.join(BACKENDS)}. memory is an empty saver, to try "
    "the command with. Required.",
)
DSN: Dsn | None = arg(
    None,
    parser=dsn,
    help="The SQLite file, or the connection string of the Postgres server. Taken from the "
    "environment variable LGEC_DSN where it is not given, which keeps passwords out of the "
    "list of processes.",
)
IDLE_TTL: float | None = arg(
    None,
    parser=duration,
    group="rule",
    help="Expire threads without a new checkpoint for this long. Durations are seconds, or 90s, "
    "15m, 2h, 1h30m, 7d, 4w.",
)
HARD_AGE_TTL: float | None = arg(
    None,
    parser=duration,
    group="rule",
    help="Expire threads whose first checkpoint is older than this, used or not.",
)
MAX_CHECKPOINTS: int | None = arg(
    None,
    parser=count,
    group="rule",
    help="Keep only the newest N checkpoints of each thread, and what they need.",
)
INTERRUPTED_TTL: float | None = arg(
    None,
    parser=duration,
    group="rule",
    help="Expire threads that wait for a human answer after this long; without it, they are "
    "kept by the idle rule.",
)
JSON: bool = arg(False, help="Write JSON, for machines.")
YES: bool = arg(False, help="Do not ask; needed where nobody can be asked.")
DEBUG: bool = arg(False, help="Show tracebacks and everything that is logged.")


class HasRules(Protocol):
    """A command that takes the rules of a policy."""

    idle_ttl: float | None
    hard_age_ttl: float | None
    max_checkpoints: int | None
    interrupted_ttl: float | None


def policy_of(command: HasRules) -> TTLPolicy:
    """Make the policy that the options of a command ask for.

    Raises:
        UsageError: None of the rules is given.
    """
    rules = (
        command.idle_ttl,
        command.hard_age_ttl,
        command.max_checkpoints,
        command.interrupted_ttl,
    )
    if all(rule is None for rule in rules):
        raise UsageError(
            "at least one rule is required: --idle-ttl, --hard-age-ttl, --max-checkpoints or "
            "--interrupted-ttl"
        )
    return TTLPolicy(*rules)
