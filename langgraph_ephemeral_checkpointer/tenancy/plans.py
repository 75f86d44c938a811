"""What the savers do with the database, written once for both colours.

A plan yields batches of statements. A batch is one transaction and one network round
trip. A plan that has to read before it can write in the same transaction yields a
:class:`Transaction` instead, whose own plan's batches share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_ephemeral_checkpointer.engine.plan import Plan
from langgraph_ephemeral_checkpointer.tenancy import statements as sql
from langgraph_ephemeral_checkpointer.tenancy.arrays import Texts
from langgraph_ephemeral_checkpointer.tenancy.names import Names, pin
from langgraph_ephemeral_checkpointer.tenancy.rows import (
    Target,
    TypedSerializer,
    column_filter,
    listed,
    load_tuple,
    matches,
)
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch

_FIRST_PAGE = 32
_LARGEST_PAGE = 1024
_HISTORY_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Transaction:
    """A plan whose batches share one transaction; the step's answer is its result.

    ``alone``: never as a part of the caller's transaction, who might roll it back.
    """

    plan: Plan[Batch, Any]
    alone: bool = False


Step: TypeAlias = Batch | Transaction


def store_writes(
    names: Names, target: Target, params: Mapping[str, Any], *, over: bool
) -> Plan[Step, None]:
    """Store the writes of a task; ``over`` replaces those that are there already."""
    template = sql.WRITE_OVER if over else sql.WRITE_ONCE
    yield [pin(target.tenant, hot=True), names.hot(template, params, fetch=False)]


def load(
    names: Names, serde: TypedSerializer, target: Target
) -> Plan[Step, CheckpointTuple | None]:
    """Load one checkpoint, or the newest of its namespace."""
    template = sql.LOAD_ONE if target.checkpoint_id else sql.LOAD_NEWEST
    params = {
        "tenant": target.tenant,
        "thread_id": target.thread_id,
        "ns": target.ns,
        "id": target.checkpoint_id,
    }
    _, rows = yield [pin(target.tenant, hot=True), names.hot(template, params)]
    return load_tuple(serde, rows[0]) if rows else None


class Listing:
    """A listing, page by page: no cursor stays open between two pages.

    Args:
        names: The tables.
        serde: Loads the state.
        tenant: Whose checkpoints.
        thread_id: Only this thread's.
        config: Whose namespace and checkpoint id, where it has them, narrow the listing.
        wanted: What the metadata must contain.
        before: Only checkpoints with a smaller id than this one's.
        limit: At most so many.
    """

    def __init__(
        self,
        names: Names,
        serde: TypedSerializer,
        tenant: str,
        thread_id: str | None,
        config: RunnableConfig | None,
        *,
        wanted: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        configurable = (config or {}).get("configurable", {})
        conditions = {
            "thread_id": thread_id,
            "ns": configurable.get("checkpoint_ns"),
            "id": configurable.get("checkpoint_id") or None,
            "before": ((before or {}).get("configurable") or {}).get("checkpoint_id"),
            **column_filter(wanted),
        }
        self._names = names
        self._serde = serde
        self._tenant = tenant
        self._conditions = {k: v for k, v in conditions.items() if v is not None}
        self._wanted = wanted or {}
        self._left = None if limit is None else int(limit)
        self._size = _FIRST_PAGE
        self.done = self._left is not None and self._left <= 0

    def page(self) -> Plan[Step, list[CheckpointTuple]]:
        """Load the next page; sets ``done`` with the last one."""
        size = self._size if self._left is None else min(self._left, self._size)
        self._size = min(2 * self._size, _LARGEST_PAGE)
        order = [name for name in sql.LIST_CONDITIONS if name in self._conditions]
        params = {"tenant": self._tenant, "page": size, **self._conditions}
        _, rows = yield [
            pin(self._tenant),
            self._names.statement(sql.list_page(order), params),
        ]
        found = [listed(load_tuple(self._serde, row), self._tenant) for row in rows]
        found = [one for one in found if matches(one.metadata, self._wanted)]
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        self.done = len(rows) < size or self._left == 0
        if rows:
            thread_id, ns, checkpoint_id, *_ = rows[-1]
            self._conditions |= {
                "after_id": checkpoint_id,
                "after_thread": thread_id,
                "after_ns": ns,
            }
        return found


def history(
    names: Names, serde: TypedSerializer, target: Target, channels: Sequence[str]
) -> Plan[Step, Mapping[str, Any]]:
    """What delta channels are rebuilt from: per channel, writes oldest first, and a seed.

    Returns:
        Per channel ``writes``, and ``seed`` where an ancestor holds a value.
    """
    found: dict[str, dict[str, Any]] = {channel: {"writes": []} for channel in channels}
    wanted = list(found)
    start: str | None = target.checkpoint_id
    seen: set[str] = set()
    pages: list[list[Sequence[Any]]] = []
    while wanted:
        params = {
            "tenant": target.tenant,
            "thread_id": target.thread_id,
            "ns": target.ns,
            "id": start,
            "wanted": Texts(wanted),
            "page": _HISTORY_PAGE,
        }
        _, rows = yield [pin(target.tenant), names.statement(sql.HISTORY_PAGE, params)]
        writes: list[Sequence[Any]] = []
        depth = 0
        for row in rows:
            kind, at, name, value_kind, blob, *_ = row
            if kind == "write":
                writes.append(row)
            elif kind == "value":
                found[name]["seed"] = serde.loads_typed((value_kind, blob))
            else:
                depth, start = at, name
        pages.append(writes)
        wanted = [channel for channel in wanted if "seed" not in found[channel]]
        if depth < _HISTORY_PAGE or start is None or start in seen:
            break
        seen.add(start)
    for writes in reversed(pages):
        # Deepest ancestor first, then the order in which a step applies its tasks' writes.
        for _, _, channel, kind, blob, task_id, _, _ in sorted(
            writes, key=lambda row: (-row[1], row[6], row[5], row[7])
        ):
            value = serde.loads_typed((kind, blob))
            found[channel]["writes"].append((task_id, channel, value))
    return found
