"""Trimming one tenant's threads, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from langgraph_ephemeral_checkpointer.decisions.survivors import Key, LeaveWholeError
from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.strategies.base import PruneOutcome
from langgraph_ephemeral_checkpointer.strategies.tenant.access import Batches, TenantTables
from langgraph_ephemeral_checkpointer.tenancy.pruning import drop, facts
from langgraph_ephemeral_checkpointer.tenancy.survival import Stored, newest_roots

_IN_MEMORY = 50
"""Threads whose rows are in memory at a time."""


def prune_threads(
    tables: TenantTables, ids: Sequence[str], keep: int, *, dry_run: bool
) -> Batches[dict[str, PruneOutcome]]:
    """Trim threads; one that somebody else has locked is left for the next sweep.

    Args:
        tables: Whose.
        ids: The threads.
        keep: How many of the newest root checkpoints to keep, at least 1.
        dry_run: Delete nothing, and say what would be removed.

    Raises:
        ThreadMovedError: Not all went that was to go.
    """
    mine = list(ids)
    if dry_run:
        yield tables.begin()
    else:
        mine = yield from tables.own(ids)
    names, tenant = tables.names, tables.tenant
    outcomes: dict[str, PruneOutcome] = {}
    for start in range(0, len(mine), _IN_MEMORY):
        some = mine[start : start + _IN_MEMORY]
        found = yield [facts(names, tenant, one) for one in some]
        drops: list[Statement] = []
        for one, rows in zip(some, found, strict=True):
            thread = [Stored.read(row) for row in rows]
            try:
                kept = newest_roots(thread, keep)
            except LeaveWholeError as error:
                outcomes[one] = PruneOutcome(left_whole=str(error))
                continue
            outcomes[one] = PruneOutcome(sum(row.key not in kept for row in thread))
            drops += drop(names, tenant, one, thread, partial(_decided, kept))
        if drops and not dry_run:
            counts = yield drops
            # The third statement of each thread takes its checkpoints.
            if sum(counts[2::3]) != sum(outcomes[one].removed_checkpoints for one in some):
                raise ThreadMovedError
    return outcomes


def _decided(kept: set[Key], _thread: Sequence[Stored]) -> set[Key]:
    return kept
