"""Any other saver, through the public methods that every saver has."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_saved
from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.engine.plan import Plan
from langgraph_ephemeral_checkpointer.errors import (
    AsyncRequiredError,
    StorageError,
    StorageUnusableError,
    UnsupportedCheckpointerError,
)
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Page, Recheck, Strategy
from langgraph_ephemeral_checkpointer.strategies.listings import doubt_about

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListThreads:
    """List one thread's checkpoints, or those of all threads where it is None.

    ``seen`` is what earlier listings saw; the answer adds to it. ``namespace`` is for savers
    that leave namespaces out unless one is named.
    """

    thread_id: Any = None
    seen: dict[str, _Seen] = field(default_factory=dict)
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class GetHead:
    """Get the newest root checkpoint of a thread, or the one named."""

    thread_id: Any
    checkpoint_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteThread:
    """Have the saver delete a thread."""

    thread_id: Any


@dataclass(frozen=True, slots=True)
class TellBirths:
    """Have the strategy tell the births that a prune noted."""

    thread_ids: Sequence[str]


@dataclass(slots=True)
class _Seen:
    """What is kept of a thread while a listing goes by: ids and times, no state."""

    raw_ids: dict[Any, None] = field(default_factory=dict)
    namespaces: set[str] = field(default_factory=set)
    checkpoints: int = 0
    roots: int = 0
    unknown: bool = False
    born_at: float = math.inf
    newest_at: float = -math.inf
    head: str = ""
    interrupted: bool | None = None

    def add(self, namespace: str, checkpoint_id: str, found: CheckpointTuple) -> None:
        self.checkpoints += 1
        self.namespaces.add(namespace)
        time = time_of_saved(checkpoint_id, found.checkpoint.get("ts"))
        if time is None:
            self.unknown = True
        else:
            self.born_at, self.newest_at = min(time, self.born_at), max(time, self.newest_at)
        if namespace == "":
            self.roots += 1
            if checkpoint_id >= self.head:
                self.head = checkpoint_id
                self.interrupted = _waits(found)

    def facts(self, text: str, birth: float | None) -> ThreadFacts:
        interrupted = self.interrupted if self.roots else False
        born_at = self.born_at if birth is None else min(birth, self.born_at)
        return ThreadFacts(
            text,
            None if self.unknown else self.newest_at,
            None if self.unknown else born_at,
            self.checkpoints,
            self.roots,
            interrupted,
        )


def _waits(found: CheckpointTuple) -> bool | None:
    if found.pending_writes is None:  # some savers leave them out of a listing
        return None
    return waits_for_human((task_id, channel) for task_id, channel, *_ in found.pending_writes)


class GenericStrategy(Strategy):
    """Sweep a saver through ``list``, ``get_tuple`` and ``delete_thread``, or their twins.

    One walk over all checkpoints finds the threads; deletes come after it, one thread at
    a time. How whole a delete is depends on the saver's ``delete_thread``; the look at the
    thread just before it is not in one transaction with it. A thread whose listing gives rows
    of other threads too is kept, with an error: the delete could take those as well. Listing
    through a saver decodes state, since that is what a saver's ``list`` does.

    A listing of all threads that is empty, or as long as a limit may be, is warned of once.
    A saver whose ``list`` of one thread leaves out namespaces is asked for each namespace
    that the walk saw; one that the thread got since then goes unseen. Where that matters,
    and the test kit tells, override :meth:`list_checkpoints`.

    Override :meth:`list_checkpoints`, :meth:`delete_thread` or their asynchronous twins
    where a saver offers something better. Whatever else the saver can do is said by a class of
    :mod:`.capabilities`, as in ``class MyStrategy(GenericStrategy, Prunes)``.

    Raises:
        UnsupportedCheckpointerError: The saver cannot list or cannot delete.
    """

    def __init__(self, checkpointer: BaseCheckpointSaver[Any]) -> None:
        super().__init__(checkpointer)
        self._can_sync = self._can("list", "list_checkpoints") and self._can(
            "delete_thread", "delete_thread"
        )
        self._can_async = self._can("alist", "alist_checkpoints") and self._can(
            "adelete_thread", "adelete_thread"
        )
        if not self._can_sync and not self._can_async:
            raise UnsupportedCheckpointerError(
                f"{type(checkpointer).__name__} implements neither list and delete_thread nor "
                "alist and adelete_thread; subclass Strategy for it and pass strategy="
            )
        self.runs_sync = self._can_sync
        self.blocks = not self._can_async
        self._async_is_refused = False
        self._doubts: set[str] = set()
        self._raw_ids: dict[str, tuple[Any, ...]] = {}
        self._namespaces: dict[str, set[str]] = {}

    def _can(self, of_saver: str, of_strategy: str) -> bool:
        saver, mine = type(self.checkpointer), type(self)
        return getattr(saver, of_saver) is not getattr(BaseCheckpointSaver, of_saver) or (
            getattr(mine, of_strategy) is not getattr(GenericStrategy, of_strategy)
        )

    def list_checkpoints(self, thread_id: Any = None) -> Iterator[CheckpointTuple]:
        """List checkpoints of every namespace, of one thread or of all where it is None."""
        yield from self.checkpointer.list(_config(thread_id))

    async def alist_checkpoints(self, thread_id: Any = None) -> Any:
        """List checkpoints as :meth:`list_checkpoints` does, as an asynchronous generator."""
        async for found in self.checkpointer.alist(_config(thread_id)):
            yield found

    def delete_thread(self, thread_id: Any) -> None:
        """Delete a thread whole."""
        self.checkpointer.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: Any) -> None:
        """Delete a thread whole."""
        await self.checkpointer.adelete_thread(thread_id)

    def births(self, thread_ids: Sequence[str]) -> Mapping[str, float]:
        """Return the births that prunes noted, in seconds since the epoch, by thread.

        Override it where the strategy ``Prunes``: the first checkpoint, which tells the age of a
        thread, is gone then.
        """
        return {}

    def _births(self, thread_ids: Sequence[str]) -> Plan[Any, Mapping[str, float]]:
        if type(self).births is GenericStrategy.births:
            return {}
        births: Mapping[str, float] = yield TellBirths(thread_ids)
        return births

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Plan[Any, Page]:
        """Read every thread in one page: a saver's ``list`` cannot be continued later.

        Raises:
            StorageError: The saver cannot list without a thread.
        """
        try:
            threads = yield ListThreads()
        except AsyncRequiredError:
            raise
        except Exception as error:
            raise StorageError(
                f"{type(self.checkpointer).__name__} cannot list the checkpoints of all threads "
                f"({error}); nothing was deleted. Subclass GenericStrategy, override "
                "list_checkpoints() and pass strategy="
            ) from error
        self._warn_if_cut(threads)
        self._raw_ids = {
            text: tuple(seen.raw_ids) for text, seen in threads.items() if [*seen.raw_ids] != [text]
        }
        self._namespaces = {
            text: seen.namespaces for text, seen in threads.items() if seen.namespaces != {""}
        }
        births = yield from self._births(list(threads))
        found = [seen.facts(text, births.get(text)) for text, seen in threads.items()]
        return Page(
            [facts for facts in found if wanted is None or wanted.matches(facts)], len(found)
        )

    def _warn_if_cut(self, threads: Mapping[str, _Seen]) -> None:
        """Log each doubt once: a sweep of a listing in part looks like success."""
        checkpoints = sum(seen.checkpoints for seen in threads.values())
        doubt = doubt_about(type(self.checkpointer).__name__, len(threads), checkpoints)
        if doubt is not None and doubt not in self._doubts:
            self._doubts.add(doubt)
            logger.warning("%s", doubt)

    def find_interrupted(self, thread_ids: Sequence[str]) -> Plan[Any, Collection[str]]:
        """Get each thread's head and look at its pending writes."""
        waiting = set()
        for text in thread_ids:
            if (yield from self._is_waiting(text)):
                waiting.add(text)
        return waiting

    def _raw(self, text: str) -> tuple[Any, ...]:
        """Give the ids under which the saver knows a thread: it may tell ``5`` from ``"5"``."""
        return self._raw_ids.get(text, (text,))

    def _is_waiting(self, text: str) -> Plan[Any, bool]:
        newest, waits = "", False
        for raw_id in self._raw(text):
            head: CheckpointTuple | None = yield GetHead(raw_id)
            if head is not None and not _is_of(head, text):
                seen, _ = yield from self._list(text)
                if seen is None or not seen.head:
                    continue
                head = yield GetHead(raw_id, seen.head)
                if head is None or not _is_of(head, text):
                    return True  # the saver does not tell, and a thread in doubt stays
            if head is not None and (found := _id_of(head)) >= newest:
                newest, waits = found, bool(_waits(head))
        return waits

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Plan[Any, Mapping[str, Outcome]]:
        """Look at each thread again, then have the saver delete it."""
        outcomes: dict[str, Outcome] = {}
        for text in thread_ids:
            try:
                outcomes[text] = Outcome((yield from self._delete(text, recheck)))
            except StorageUnusableError:
                raise
            except Exception as error:  # noqa: BLE001 - no transaction: what is gone stays gone
                outcomes[text] = Outcome(KeepReason.FAILED, f"{type(error).__name__}: {error}")
        return outcomes

    def _delete(self, text: str, recheck: Recheck | None) -> Plan[Any, KeepReason | None]:
        seen, others = yield from self._list(text)
        if recheck is not None:
            births = yield from self._births([text])
            facts = seen.facts(text, births.get(text)) if seen else None
            if facts is not None and facts.interrupted is None:
                facts = replace(facts, interrupted=(yield from self._is_waiting(text)))
            why_kept = recheck(text, facts)
            if why_kept is not None:
                return why_kept
        if others:
            raise StorageError(
                f"{type(self.checkpointer).__name__} gives rows of other threads "
                f"({_few(others)}) when asked to list thread {text!r} alone, so its delete "
                "could take them too: nothing was deleted. Where the storage compares ids without "
                "case or accents, give its column of ids a collation that tells them apart; else "
                "pass a strategy= that compares them exactly"
            )
        for raw_id in self._raw(text):
            yield DeleteThread(raw_id)
        if recheck is not None and (yield from self._list(text))[0] is not None:
            raise StorageError(
                f"{type(self.checkpointer).__name__}.delete_thread({text!r}) left checkpoints "
                "of the thread behind"
            )
        return None

    def _list(self, text: str) -> Plan[Any, tuple[_Seen | None, Sequence[str]]]:
        """List one thread: what is seen of it, and the other threads that come with it."""
        threads: dict[str, _Seen] = {}
        for raw_id in self._raw(text):
            threads = yield ListThreads(raw_id, threads)
        listed = threads[text].namespaces if text in threads else set()
        for namespace in sorted(self._namespaces.get(text, set()) - listed):
            for raw_id in self._raw(text):
                threads = yield ListThreads(raw_id, threads, namespace)
        return threads.get(text), sorted(threads.keys() - {text})

    def perform(self, step: Any) -> Any:
        """Carry out one step through the saver's synchronous methods.

        Raises:
            AsyncRequiredError: The saver has asynchronous methods only.
        """
        try:
            return self._perform(step)
        except NotImplementedError as error:
            if not self._can_async:
                raise
            raise AsyncRequiredError(
                f"{type(self.checkpointer).__name__} is asynchronous ({error}): use "
                "'await sweeper.asweep()' instead of sweep()"
            ) from error

    async def aperform(self, step: Any) -> Any:
        """Carry out one step through the saver's asynchronous methods, or else in a thread."""
        if not self._async_is_refused:
            try:
                return await self._aperform(step)
            except NotImplementedError:
                # Some savers define the methods of both colours and raise in those of one.
                if not self._can_sync:
                    raise
                self._async_is_refused = True
        return await asyncio.to_thread(self._perform, step)

    def _perform(self, step: Any) -> Any:
        match step:
            case ListThreads(thread_id, seen, namespace):
                for found in (
                    self.list_checkpoints(thread_id)
                    if namespace is None
                    else self.checkpointer.list(_config(thread_id, namespace))
                ):
                    _note(seen, found)
                return seen
            case GetHead(thread_id, checkpoint_id):
                return self.checkpointer.get_tuple(_config(thread_id, "", checkpoint_id))
            case DeleteThread(thread_id):
                return self.delete_thread(thread_id)
            case TellBirths(thread_ids):
                return self.births(thread_ids)
        return super().perform(step)

    async def _aperform(self, step: Any) -> Any:
        match step:
            case ListThreads(thread_id, seen, namespace):
                async for found in (
                    self.alist_checkpoints(thread_id)
                    if namespace is None
                    else self.checkpointer.alist(_config(thread_id, namespace))
                ):
                    _note(seen, found)
                return seen
            case GetHead(thread_id, checkpoint_id):
                return await self.checkpointer.aget_tuple(_config(thread_id, "", checkpoint_id))
            case DeleteThread(thread_id):
                return await self.adelete_thread(thread_id)
            case TellBirths(thread_ids):
                return await asyncio.to_thread(self.births, thread_ids)
        return await super().aperform(step)


def _note(threads: dict[str, _Seen], found: CheckpointTuple) -> None:
    where = found.config["configurable"]
    raw_id = where["thread_id"]
    # Some savers look threads up by prefix or collation: what comes back is sorted by exact text.
    seen = threads.setdefault(str(raw_id), _Seen())
    seen.raw_ids[raw_id] = None
    seen.add(where.get("checkpoint_ns") or "", _id_of(found), found)


def _id_of(found: CheckpointTuple) -> str:
    return str(found.config["configurable"].get("checkpoint_id") or found.checkpoint["id"])


def _is_of(found: CheckpointTuple, text: str) -> bool:
    return str(found.config["configurable"].get("thread_id", text)) == text


def _few(thread_ids: Sequence[str]) -> str:
    more = f" and {len(thread_ids) - 3} more" if len(thread_ids) > 3 else ""
    return ", ".join(map(repr, thread_ids[:3])) + more


def _config(thread_id: Any, namespace: str | None = None, checkpoint_id: str | None = None) -> Any:
    if thread_id is None:
        return None
    named = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
    given = {key: value for key, value in named.items() if value is not None}
    return {"configurable": {"thread_id": thread_id, **given}}
