"""The options that commands share, each declared once.

clypi reads only the fields a command class annotates itself, so a command lists the
options it takes and gives them these declarations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from clypi import arg

from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.common.conninfo import shown
from langgraph_ephemeral_checkpointer.common.durations import doubt, parse_duration
from langgraph_ephemeral_checkpointer.common.kinds import KINDS, declared
from langgraph_ephemeral_checkpointer.common.kinds import count as count
from langgraph_ephemeral_checkpointer.common.kinds import duration as duration
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.options import SweepOptions
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.rules.reading import BACKENDS
from langgraph_ephemeral_checkpointer.strategies.opening import TenantPlace
from langgraph_ephemeral_checkpointer.strategies.registry import STORAGES

TENANT_BACKEND = next(storage.name for storage in STORAGES if storage.has_tenants)
PLAIN_BACKENDS = tuple(one for one in BACKENDS if one != TENANT_BACKEND)

_DOTTED = re.compile(r"[^\W0-9][\w.]*:[^\W0-9][\w.]*")
_PORT = re.compile(r"[0-9]{1,5}")
_LAST_PORT = 65535

RULES = {"rule": declared(TTLPolicy)}
SWEEPING = {**RULES, "sweep option": [one for one in declared(SweepOptions) if not one.again]}
RUNNING = {**RULES, "sweep option": declared(SweepOptions)}
"""What commands take: rules alone, how to sweep besides, and that again and again."""


def one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    """Make the reader of an option that takes one of some words."""

    def read(raw: Any) -> str:
        if raw not in choices:
            raise ValueError(f"{shown(raw)} is none of {', '.join(choices)}")
        return str(raw)

    return read


def backend_with_trash(raw: Any) -> str:
    """Read the kind of storage of a command of the trash."""
    if raw == TENANT_BACKEND:
        raise ValueError(
            f"{TENANT_BACKEND} has no trash, a sweep of it deletes for good: see 'sweep --dry-run' "
            "first, and leave --grace out"
        )
    return one_of(PLAIN_BACKENDS)(raw)


def dsn(raw: Any) -> Dsn:
    """Read where the storage is."""
    if not raw:
        raise ValueError("it is empty")
    return Dsn(raw)


def path(raw: Any) -> str:
    """Read the name of a file; a ``~`` at its beginning is expanded."""
    if not raw or "\0" in raw:
        raise ValueError("it is empty" if not raw else "no file has such a name")
    return os.path.expanduser(str(raw))  # noqa: PTH111 - of an unknown user it stays as it is


def dotted(raw: Any) -> str:
    """Read ``module:function``."""
    if not _DOTTED.fullmatch(raw):
        raise ValueError(f"{shown(raw)} is not of the form module:function")
    return str(raw)


def port(raw: Any) -> int:
    """Read the number of a port; 0 is any that is free."""
    if not _PORT.fullmatch(raw) or int(raw) > _LAST_PORT:
        raise ValueError(f"{shown(raw)} is no port")
    return int(raw)


def durations(raw: Any) -> tuple[float, ...]:
    """Read durations with commas between them."""
    return tuple(parse_duration(part.strip()) for part in str(raw).split(","))


def doubt_of(parser: Any, raw: str) -> str | None:
    """Say what a value may mean instead of what its parser makes of it; None where it is clear."""
    if parser is durations:
        return next(filter(None, (doubt(part.strip()) for part in raw.split(","))), None)
    return next((kind.doubt(raw) for kind in KINDS if kind.from_line is parser), None)


def text(raw: Any) -> str:
    """Read a word that is not empty."""
    if not raw:
        raise ValueError("it is empty")
    return str(raw)


_TELLS = "Not needed where the DSN tells: postgresql://..., sqlite:///FILE, or an SQLite file."

PLAIN_BACKEND: str | None = arg(
    None,
    parser=backend_with_trash,
    help=f"The kind of storage, one of: {', '.join(PLAIN_BACKENDS)}. memory is an empty saver, to "
    f"try the command with. {_TELLS}",
)
BACKEND: str | None = arg(
    None,
    parser=one_of(BACKENDS),
    help=f"The kind of storage, one of: {', '.join(BACKENDS)}. memory is an empty saver, to try "
    f"the command with. {_TELLS}",
)
BACKEND_OR_FILE: str | None = arg(
    None,
    parser=one_of(BACKENDS),
    help=f"The kind of storage, one of: {', '.join(BACKENDS)}. memory is an empty saver, to try "
    f"the command with. May stand in the rules file. {_TELLS}",
)
DSN: Dsn | None = arg(
    None,
    parser=dsn,
    help="The SQLite file, or the connection string of the Postgres server. Taken from the "
    "environment variable LGEC_DSN where it is not given, which keeps passwords out of the "
    "list of processes.",
)
SERVER_DSN: Dsn | None = arg(
    None,
    parser=dsn,
    help="The connection string of the Postgres server. Taken from the environment variable "
    "LGEC_DSN where it is not given, which keeps passwords out of the list of processes.",
)
TABLE: str | None = arg(
    None,
    parser=text,
    group="tenant-postgres option",
    help="The table of the tenant saver (default: agent_threads).",
)
SCHEMA: str | None = arg(
    None,
    parser=text,
    group="tenant-postgres option",
    help="The schema of its tables (default: public).",
)
TENANT: str | None = arg(
    None,
    parser=text,
    group="tenant-postgres option",
    help="The tenant whose threads are meant; this or --all-tenants is required.",
)
ALL_TENANTS: bool = arg(
    False,
    group="tenant-postgres option",
    help="Every tenant in turn, for a role that sees them all (see 'ddl --maintenance-role').",
)
CONFIG: str | None = arg(
    None,
    parser=path,
    help="A rules file (TOML), or a langgraph.json for its checkpointer.ttl. An option on the "
    "line comes before the same key in the file; rules on the line replace its [policy].",
)
RESOLVER: str | None = arg(
    None,
    parser=dotted,
    help="A Python function from a thread id to its policy, as module:function.",
)
AUDIT_LOG: str | None = arg(
    None,
    parser=path,
    help="Add a line of JSON to this file before and after each thread is deleted or trimmed; "
    "if it cannot be written, nothing is deleted.",
)
HASH_IDS: bool = arg(
    False,
    help="Write hashes of thread ids into the audit log, keyed where the environment variable "
    "LGEC_HASH_KEY is set.",
)
LOG_FORMAT: str = arg(
    "text",
    parser=one_of(("text", "json")),
    help="How messages are written: text or json (one object per line).",
)
JSON: bool = arg(False, help="Write JSON, for machines.")
YES: bool = arg(False, help="Do not ask; needed where nobody can be asked.")
DEBUG: bool = arg(False, help="Show tracebacks and everything that is logged.")


class HasTables(Protocol):
    """A command that says which tables of a tenant saver it is about."""

    table: str | None
    schema: str | None


class HasTenant(HasTables, Protocol):
    """A command that says whose threads it is about."""

    tenant: str | None
    all_tenants: bool


def tables_of(command: HasTables, tenant: str | None = None) -> TenantPlace:
    """Say where the tables are that a command is about."""
    default = TenantPlace()
    return TenantPlace(command.table or default.table, command.schema or default.schema, tenant)


def tenants_of(command: HasTenant) -> TenantPlace:
    """Say whose threads a command is about.

    Raises:
        UsageError: Not exactly one of ``--tenant`` and ``--all-tenants`` is given.
    """
    if (command.tenant is not None) == command.all_tenants:
        raise UsageError(
            "--tenant and --all-tenants exclude each other"
            if command.all_tenants
            else "--tenant NAME or --all-tenants is required"
        )
    return tables_of(command, command.tenant)


def place_of(command: Any, backend: str) -> TenantPlace | None:
    """Say whose threads a command is about where its backend has tenants; None elsewhere.

    Raises:
        UsageError: Options of tenants are missing, or given for another backend.
    """
    if backend == TENANT_BACKEND:
        return tenants_of(command)
    for name in ("table", "schema", "tenant", "all_tenants"):
        if getattr(command, name, None):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is only for --backend {TENANT_BACKEND}")
    return None


def given(command: Any, where: type) -> dict[str, Any]:
    """Give what a command line says of the options that a dataclass declares, by field."""
    said = {one.name: getattr(command, one.key, None) for one in declared(where)}
    return {name: value for name, value in said.items() if value is not None and value is not False}


def policy_of(command: Any) -> TTLPolicy | None:
    """Make the policy that the options of a command ask for; None if none of them is given."""
    rules = given(command, TTLPolicy)
    return TTLPolicy(**rules) if rules else None
