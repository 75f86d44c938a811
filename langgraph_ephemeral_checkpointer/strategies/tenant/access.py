"""One tenant's rows, and the threads of it that nobody else has locked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.tenancy.names import Names, pin
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch

T = TypeVar("T")
Batches: TypeAlias = Plan[Batch, T]
"""A plan whose steps are several statements each: the body of one transaction."""

# Only rows that somebody locks by hand can block a delete: give way before the server would
# have to choose a victim, which might be the graph. The values of a sweep differ too much for
# one plan that is good for all.
MANNERS = Statement(
    "SELECT set_config('lock_timeout', '500ms', true),"
    " set_config('plan_cache_mode', 'force_custom_plan', true)"
)
_TRY_LOCKS = "SELECT k FROM unnest(%s::bigint[]) AS u (k) WHERE pg_try_advisory_xact_lock(k)"


@dataclass(frozen=True, slots=True)
class TenantTables:
    """One tenant's part of a saver's tables."""

    names: Names
    tenant: str

    def statement(self, template: str, **params: Any) -> Statement:
        """A statement over the tenant's rows."""
        return self.names.statement(template, {"tenant": self.tenant, **params})

    def begin(self) -> list[Statement]:
        """The statements with which every transaction begins."""
        return [pin(self.tenant), MANNERS]

    def own(self, ids: Iterable[str]) -> Batches[list[str]]:
        """Lock those threads that nobody else has locked, until the transaction ends.

        Every save takes the same lock. None is waited for: a thread that is being saved is not
        one to work on.
        """
        keys = {one: self.names.key(self.tenant, one) for one in ids}
        locks = Statement(_TRY_LOCKS, (sorted(set(keys.values())),))
        *_, taken = yield [*self.begin(), locks]
        locked = {key for (key,) in taken}
        return [one for one, key in keys.items() if key in locked]
