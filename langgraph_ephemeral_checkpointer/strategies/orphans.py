"""Orphans: rows that no checkpoint leads to, left by runs whose thread was deleted under them.

Two kinds, and when each is taken for an orphan:

*Writes* of a checkpoint that is not stored, if the checkpoint's id is older than the limit.
A run stores the writes of a step and its checkpoint side by side, in either order, so young
ones may still get theirs. The pending sends that checkpoints of LangGraph before 1.0 read from
their parent are left where a stored checkpoint names that parent.

*Blobs* (Postgres, memory) that no checkpoint of their thread and namespace references, if every
id in the thread is older than the limit. A blob carries no time of its own; on Postgres it is
stored in one transaction with the checkpoint that brings it, so a look sees both or none. In
memory it is stored a moment before, so there a blob must be seen unreferenced twice, with the
limit between.

An id that tells no time keeps its rows: ages are never guessed. The tables of the tenant savers
have the time of each write in a column instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

OrphanKind: TypeAlias = Literal["writes", "blobs"]

SWEEP_LIMIT = 2_000
"""Checkpoints with writes, and namespaces with blobs, that a sweep looks at; the next goes on."""
PAGE_LIMIT = 5_000
"""The same for one transaction where everything is looked at."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """Rows that belong together and to no checkpoint.

    Attributes:
        kind: ``"writes"`` or ``"blobs"``.
        thread_id: Whose they were, as text.
        checkpoint_ns: In which namespace.
        name: The id of the missing checkpoint, or the channel of a blob.
        version: The version of a blob; empty for writes.
        rows: How many rows they are.
        tenant: Whose they are, where the storage has tenants.
    """

    kind: OrphanKind
    thread_id: str
    checkpoint_ns: str
    name: str
    version: str
    rows: int
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class OrphanPage:
    """What one look found.

    Attributes:
        orphans: The orphans of this part of the tables.
        next: Where the next look begins; None after the end.
    """

    orphans: Sequence[Orphan]
    next: Any = None


__all__ = ["Orphan", "OrphanKind", "OrphanPage"]
