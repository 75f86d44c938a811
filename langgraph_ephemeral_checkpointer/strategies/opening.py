"""Opening a storage by its name: what the module ``open`` of a room is given, and how it refuses.

An opener is a context manager: given an :class:`Address` it gives a saver, and creates nothing.
It raises ``AddressError`` for an address that cannot be one, and ``StorageError`` for a storage
that is not there, is another's, or cannot be reached; each is one line that shows no password.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.errors import RetentionError

Saver: TypeAlias = BaseCheckpointSaver[Any]


class AddressError(RetentionError):
    """The address of a storage is of the wrong form."""


@dataclass(frozen=True, slots=True)
class TenantPlace:
    """Which tables of a tenant saver, and whose threads in them; no tenant means all."""

    table: str = "agent_threads"
    schema: str = "public"
    tenant: str | None = None


def _show_nothing(_logger: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a storage is.

    Attributes:
        dsn: A path or a connection string; empty for a storage that needs none.
        environ: The environment, where a driver reads more.
        place: The tables and the tenant, for a storage that has tenants.
        create: Make tables that are missing.
        show_log: Shows what a logger says while its context is open, for drivers that tell the
            cause of a failure only there.
    """

    dsn: Dsn
    environ: Mapping[str, str] = field(default_factory=dict)
    place: TenantPlace = TenantPlace()
    create: bool = False
    show_log: Callable[[str], AbstractContextManager[None]] = _show_nothing


Opener: TypeAlias = Callable[[Address], AbstractContextManager[Saver]]
"""Opens a saver for one command."""

Savers: TypeAlias = Callable[[], AbstractContextManager[Saver]]
"""Opens a saver for one sweep."""

Pool: TypeAlias = Callable[[Address], AbstractContextManager[Savers]]
"""Opens what savers of many sweeps share; what the storage lacks shows at the first sweep."""
