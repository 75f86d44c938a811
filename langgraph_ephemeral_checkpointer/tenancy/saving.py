"""One save, and what of its thread goes with it, as a plan (see :mod:`.plans`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from langgraph_ephemeral_checkpointer.decisions.survivors import LeaveWholeError
from langgraph_ephemeral_checkpointer.engine.plan import Plan, Statement
from langgraph_ephemeral_checkpointer.errors import RetentionError, ThreadDeletedError
from langgraph_ephemeral_checkpointer.tenancy import statements as sql
from langgraph_ephemeral_checkpointer.tenancy.driver import logger
from langgraph_ephemeral_checkpointer.tenancy.memory import Memory
from langgraph_ephemeral_checkpointer.tenancy.names import Names
from langgraph_ephemeral_checkpointer.tenancy.plans import Step, Transaction
from langgraph_ephemeral_checkpointer.tenancy.pruning import (
    Rule,
    doomed_of,
    drop_these,
    facts,
    prune,
    seen,
)
from langgraph_ephemeral_checkpointer.tenancy.rows import Save
from langgraph_ephemeral_checkpointer.tenancy.survival import Stored, newest_roots

_ROW_XID = 0xFFFF_FFFF
"""A row shows the number of the transaction that wrote it without its epoch."""


class Saving:
    """The saves of one saver.

    Args:
        names: The tables.
        keep: How many of the newest root checkpoints to keep; None: all.
    """

    def __init__(self, names: Names, keep: int | None) -> None:
        self._names = names
        self._keep = keep
        self._memory = Memory()

    def forget(self, thread: Hashable) -> None:
        """Drop what is known of a thread, because it was deleted."""
        self._memory.forget(thread)

    def save(self, wanted: Save, *, joins: bool = False) -> Plan[Step, None]:
        """Store one checkpoint, and prune its thread, in one round trip.

        Of a thread with subgraphs or delta channels, what has to go is decided here,
        beforehand, on what the memory remembers. Where that is not what is there, it
        goes in a round trip of its own.

        Args:
            wanted: The checkpoint.
            joins: It is a part of a transaction of the caller's. Nothing is decided
                beforehand then, nor remembered: within one transaction a row can change,
                and change back, and was written by that transaction all along.

        Raises:
            ThreadDeletedError: The thread was deleted under the run, and one of its
                channels can only be rebuilt from what is gone.
        """
        return self._joined(wanted) if joins else self._save(wanted)

    def _joined(self, wanted: Save) -> Plan[Step, None]:
        self.forget(wanted.target.thread)
        try:
            yield from self._save(wanted)
        finally:
            self.forget(wanted.target.thread)

    def _save(self, wanted: Save) -> Plan[Step, None]:
        if self._keep is None:
            return self._save_more(wanted)
        if wanted.target.ns:
            return self._save_inner(wanted)
        alone = self._memory.plain(wanted.target.thread)
        if alone is None or wanted.delta:
            return self._save_any(wanted, self._keep)
        if self._keep == 1 and alone and wanted.target.checkpoint_id is not None:
            return self._replace(wanted)
        return self._save_plain(wanted, self._keep)

    def _save_more(self, wanted: Save) -> Plan[Step, None]:
        """Where nothing is to go."""
        yield from self._store(wanted, sql.SAVE, {})

    def _save_inner(self, wanted: Save) -> Plan[Step, None]:
        """To a subgraph's namespace: what goes of it goes with the next save of the root."""
        (answer, *_), _ = yield from self._store(wanted, sql.SAVE, {})
        stored = _stored(wanted, answer[2])
        self._memory.saved(wanted.target.thread, stored)

    def _replace(self, wanted: Save) -> Plan[Step, None]:
        """To a plain thread of which, as far as is known, the parent is all there is."""
        whose = wanted.target.thread
        query = self._names.hot(sql.SAVE_AND_REPLACE, wanted.params(whole=False), fetch=False)
        _, stored = yield [*self._names.lock(*whose), query]
        if not stored:
            # Whole at once: as likely as not, what it relies on has been deleted.
            yield from self._save_plain(wanted, 1, whole=True)

    def _save_plain(self, wanted: Save, keep: int, *, whole: bool = False) -> Plan[Step, None]:
        """To a thread that had neither subgraphs nor delta channels at its last save."""
        template, more = sql.SAVE_AND_TRIM_PLAIN, {"keep": keep}
        (answer, *_), _ = yield from self._store(wanted, template, more, whole=whole)
        _, _, special, place = answer
        if special:  # somebody else has put some there
            whose = wanted.target.thread
            _, found = yield [*self._names.lock(*whose), facts(self._names, *whose)]
            yield from self._trim(wanted, [Stored.read(row) for row in found], keep)
        else:
            self._learn_plain(wanted, place)

    def _learn_plain(self, wanted: Save, place: str | None) -> None:
        """Remember a plain thread; a save that goes on from what it pushes out was alone."""
        alone = place in (None, wanted.target.checkpoint_id)
        self._memory.learn_plain(wanted.target.thread, alone=alone)

    def _save_any(self, wanted: Save, keep: int) -> Plan[Step, None]:
        whose = wanted.target.thread
        known = self._memory.rows(whose)
        expected: str | None = None
        doomed: list[Stored] = []
        drops: list[Statement] = []
        if known:
            new = _stored(wanted)
            thread = [*(one for one in known if one.key != new.key), new]
            try:
                kept = newest_roots(thread, keep)
            except LeaveWholeError:
                pass  # as it is remembered; what is there will be told
            else:
                expected = seen(one for one in thread if one.key != new.key)
                doomed = [one for one in thread if one.key not in kept]
                drops = drop_these(self._names, *whose, thread, doomed, guarded=True, saved=new.key)
        more = {"keep": keep, "seen": expected}
        found, gone = yield from self._store(wanted, sql.SAVE_AND_TRIM, more, drops)
        _, _, special, place, written_by, *_ = found[0]
        if not special:
            self._learn_plain(wanted, place)
            return
        stored = _stored(wanted, written_by)
        # Where there is nothing to tell, the rest of that one row is empty.
        others = [Stored.read(row) for _, _, _, _, _, *row in found if row[0] is not None]
        if others:
            thread = [*(one for one in others if one.key != stored.key), stored]
            yield from self._trim(wanted, thread, keep)
        elif gone and not gone[-1]:
            self._memory.forget(whose)
        else:
            self._memory.saved(whose, stored, [one.key for one in doomed])

    def _store(
        self,
        wanted: Save,
        template: str,
        more: dict[str, Any],
        drops: Sequence[Statement] = (),
        *,
        whole: bool = False,
    ) -> Plan[Step, tuple[list[Any], list[int]]]:
        """Store it; gives what the statement told, and what the ``drops`` took."""
        target = wanted.target
        lock = self._names.lock(*target.thread)
        while True:
            params = wanted.params(whole=whole) | more
            _, found, *gone = yield [*lock, self._names.hot(template, params), *drops]
            missing, orphaned, *_ = found[0]
            if orphaned:
                raise ThreadDeletedError(
                    f"thread {target.thread_id!r} was deleted while a graph was running on it: "
                    f"checkpoint {wanted.checkpoint_id} was not saved, because its parent "
                    f"{target.checkpoint_id}, from which a channel is rebuilt, is gone (or newer "
                    "checkpoints, of another run or of a host whose clock is ahead, have pushed it "
                    "out). Start the run again"
                )
            if not missing:
                return found, gone
            # The run saved only what changed, relying on values that are gone: it still
            # has them all in hand, so the checkpoint is stored whole, which relies on none.
            whole = True

    def _trim(self, wanted: Save, thread: Sequence[Stored], keep: int) -> Plan[Step, None]:
        """Prune a thread as it was a moment ago; if it has moved since, read it again."""
        whose = wanted.target.thread
        rule: Rule = partial(newest_roots, keep=keep)
        self._memory.learn(whose, thread)
        doomed = doomed_of(whose[1], thread, rule)
        if not doomed:
            return
        statements = drop_these(self._names, *whose, thread, doomed, guarded=True)
        try:
            *_, gone = yield [*self._names.lock(*whose), *statements]
            if gone:
                self._memory.gone(whose, [one.key for one in doomed])
            else:
                self._memory.forget(whose)
                yield Transaction(prune(self._names, *whose, rule))
        except RetentionError:
            # The save itself is done; the next one prunes what this one left.
            logger.exception("thread %r was saved but not pruned", whose[1])


def _stored(wanted: Save, transaction: int | None = None) -> Stored:
    by = None if transaction is None else str(transaction & _ROW_XID)
    return Stored.of(wanted, by)
