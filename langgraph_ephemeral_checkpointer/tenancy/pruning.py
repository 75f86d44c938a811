"""Deleting part of a thread: the statements that carry out what a rule decides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from langgraph_ephemeral_checkpointer.decisions.survivors import Key, LeaveWholeError
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.tenancy.arrays import Texts
from langgraph_ephemeral_checkpointer.tenancy.driver import logger
from langgraph_ephemeral_checkpointer.tenancy.names import Names
from langgraph_ephemeral_checkpointer.tenancy.schema import Batch
from langgraph_ephemeral_checkpointer.tenancy.survival import Stored

Rule: TypeAlias = Callable[[Sequence[Stored]], set[Key]]
"""Gives, from the rows of a thread, those that stay."""

_FACTS = """
SELECT checkpoint_ns, checkpoint_id, parent_id, callers, source, run_id,
       channels, versions, held, delta, xmin::text
FROM {checkpoints} WHERE tenant = %(tenant)s::text AND thread_id = %(thread_id)s::text
"""
# In this order: until the last of them has run, the checkpoints tell that the thread is
# still the one that was decided on. Of a row that this transaction has written only the key
# is compared: it is the one that is saved along, and it must be there. Where a save was not
# stored, because a value that it relies on is gone, nothing may make room for it.
_UNMOVED = """
  AND (%(seen)s::text IS NULL OR %(seen)s::text = (
      SELECT md5(string_agg(concat_ws(chr(10), c.checkpoint_ns, c.checkpoint_id,
                     nullif(c.xmin::text, (txid_current() & 4294967295)::text)), chr(10)
                 ORDER BY c.checkpoint_ns, c.checkpoint_id)) FROM {checkpoints} c
      WHERE c.tenant = %(tenant)s::text AND c.thread_id = %(thread_id)s::text))
"""
_DROP_BLOBS = (
    """
DELETE FROM {blobs} t
USING unnest(%(ns)s::text[], %(channels)s::text[], %(versions)s::text[]) AS u (ns, channel, version)
WHERE t.tenant = %(tenant)s::text AND t.thread_id = %(thread_id)s::text
  AND t.checkpoint_ns = u.ns AND t.channel = u.channel AND t.version = u.version"""
    + _UNMOVED
)
_DROP_WRITES, _DROP_CHECKPOINTS = (
    f"""DELETE FROM {table} t USING unnest(%(ns)s::text[], %(ids)s::text[]) AS u (ns, id)
WHERE t.tenant = %(tenant)s::text AND t.thread_id = %(thread_id)s::text
  AND t.checkpoint_ns = u.ns AND t.checkpoint_id = u.id"""
    + _UNMOVED
    for table in ("{writes}", "{checkpoints}")
)


def facts(names: Names, tenant: str, thread_id: str) -> Statement:
    """The statement whose rows :meth:`Stored.read` takes."""
    return names.statement(_FACTS, {"tenant": tenant, "thread_id": thread_id})


def prune(names: Names, tenant: str, thread_id: str, rule: Rule) -> Plan[Batch, None]:
    """Delete what a rule does not keep. To be run in one transaction."""
    *_, found = yield [*names.lock(tenant, thread_id), facts(names, tenant, thread_id)]
    thread = [Stored.read(columns) for columns in found]
    if statements := drop(names, tenant, thread_id, thread, rule):
        yield statements


def drop(
    names: Names, tenant: str, thread_id: str, thread: Sequence[Stored], rule: Rule
) -> list[Statement]:
    """The statements that delete what a rule does not keep of a thread, given whole."""
    return drop_these(names, tenant, thread_id, thread, doomed_of(thread_id, thread, rule))


def doomed_of(thread_id: str, thread: Sequence[Stored], rule: Rule) -> list[Stored]:
    """What a rule does not keep; nothing where what has to stay cannot be established."""
    try:
        kept = rule(thread)
    except LeaveWholeError as error:
        logger.warning("thread %r is left whole: %s", thread_id, error)
        return []
    return [one for one in thread if one.key not in kept]


def _named(some: Iterable[Stored]) -> set[tuple[str, str, str]]:
    """The blobs that checkpoints name: namespace, channel and version."""
    return {(one.row.namespace, *pair) for one in some for pair in one.versions.items()}


def drop_these(
    names: Names,
    tenant: str,
    thread_id: str,
    thread: Sequence[Stored],
    doomed: Sequence[Stored],
    *,
    guarded: bool = False,
    saved: Key | None = None,
) -> list[Statement]:
    """The statements that delete some checkpoints of a thread.

    The blobs go that only deleted checkpoints named. Writes go by the checkpoints that go:
    those of a step that is just being saved may be here before their checkpoint is.

    Args:
        names: The tables.
        tenant: Whose thread.
        thread_id: The thread.
        thread: All its checkpoints.
        doomed: Those to delete.
        guarded: ``thread`` was read in an earlier transaction: delete only if the thread
            has the same checkpoints still, written by the same transactions.
        saved: One of them that the same transaction stores, just before.

    Returns:
        Nothing where nothing goes, else statements of which the last counts checkpoints.
    """
    if not doomed:
        return []
    key = {
        "tenant": tenant,
        "thread_id": thread_id,
        "seen": seen(thread, saved) if guarded else None,
    }
    gone = {one.key for one in doomed}
    freed = _named(doomed) - _named(one for one in thread if one.key not in gone)
    blobs = {
        **key,
        "ns": Texts(ns for ns, _, _ in freed),
        "channels": Texts(channel for _, channel, _ in freed),
        "versions": Texts(version for _, _, version in freed),
    }
    places = {
        **key,
        "ns": Texts(one.row.namespace for one in doomed),
        "ids": Texts(one.row.id for one in doomed),
    }
    return [
        names.hot(_DROP_BLOBS, blobs, fetch=False),
        names.hot(_DROP_WRITES, places, fetch=False),
        names.hot(_DROP_CHECKPOINTS, places, fetch=False),
    ]


def seen(thread: Iterable[Stored], saved: Key | None = None) -> str:
    """What the guards compare: the rows and who wrote them; of the one just ``saved`` its key."""
    rows = sorted(
        one.key if one.key == saved else (*one.key, one.written_by or "") for one in thread
    )
    text = "\n".join("\n".join(row) for row in rows)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
