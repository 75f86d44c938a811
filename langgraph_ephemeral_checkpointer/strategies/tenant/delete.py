"""Deleting one tenant's threads, one batch in one transaction.

A batch is locked, read and judged, and what is to go is erased. Every save takes the thread's lock,
so what is read under it is what is deleted. Rows that came past the saver show in what the delete
took, or after it, and roll everything back.
"""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_ephemeral_checkpointer.errors import ThreadMovedError
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Recheck
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import DIGEST
from langgraph_ephemeral_checkpointer.strategies.rows import waiting_threads
from langgraph_ephemeral_checkpointer.strategies.tenant.access import Batches, TenantTables
from langgraph_ephemeral_checkpointer.strategies.tenant.find import AGGREGATES, WAITING, facts_of
from langgraph_ephemeral_checkpointer.tenancy.arrays import Texts
from langgraph_ephemeral_checkpointer.tenancy.erasing import erase_statements

_ROWS_OF = f"""
    SELECT {AGGREGATES}, {DIGEST} FROM {{checkpoints}}
    WHERE tenant = %(tenant)s::text AND thread_id = ANY (%(threads)s::text[])
    GROUP BY thread_id
"""
_STILL_THERE = """
    SELECT u.thread_id FROM unnest(%(threads)s::text[]) AS u (thread_id)
    CROSS JOIN LATERAL (
        SELECT FROM {checkpoints} c
        WHERE c.tenant = %(tenant)s::text AND c.thread_id = u.thread_id LIMIT 1
    ) AS found
"""
_ERASE_CHECKPOINTS = f"""
    WITH gone AS (
        DELETE FROM {{checkpoints}}
        WHERE tenant = %(tenant)s::text AND thread_id = ANY (%(threads)s::text[])
        RETURNING checkpoint_id
    )
    SELECT count(*), {DIGEST} FROM gone
"""


def delete_threads(
    tables: TenantTables, ids: Sequence[str], recheck: Recheck | None
) -> Batches[dict[str, Outcome]]:
    """Lock threads, read and judge them, and erase those that are to go.

    Args:
        tables: Whose.
        ids: The threads.
        recheck: Judges each by what is read here; None to erase whatever is locked.

    Raises:
        ThreadMovedError: What was erased is not what was judged, or not all there is.
    """
    mine = yield from tables.own(ids)

    threads, others = Texts(mine), Texts(set(ids).difference(mine))
    found, writes, there = yield [
        tables.statement(_ROWS_OF, threads=threads),
        tables.statement(WAITING, threads=threads if recheck else Texts(())),
        tables.statement(_STILL_THERE, threads=others),
    ]
    rows = {row[0]: row[:-1] for row in found}
    digests = {row[0]: row[-1] for row in found}
    waiting, busy = waiting_threads(writes), {row[0] for row in there}

    outcomes = {}
    for one in ids:
        if one in rows:
            facts = facts_of(rows[one], one in waiting)
            outcomes[one] = Outcome(None if recheck is None else recheck(one, facts))
        else:
            outcomes[one] = Outcome(KeepReason.BUSY if one in busy else KeepReason.GONE)

    doomed = [one for one, outcome in outcomes.items() if outcome.kept is None]
    if not doomed:
        return outcomes
    _, erase_blobs, erase_writes = erase_statements(tables.names, tables.tenant, doomed)
    # Not by their number alone: beside a delete of as many, a save leaves that as it was.
    (taken,), *_, left = yield [
        tables.statement(_ERASE_CHECKPOINTS, threads=Texts(doomed)),
        erase_blobs,
        erase_writes,
        tables.statement(_STILL_THERE, threads=Texts(doomed)),
    ]
    judged = sum(rows[one][1] for one in doomed), sum(digests[one] for one in doomed)
    if left or (recheck is not None and taken != judged):
        raise ThreadMovedError
    return outcomes
