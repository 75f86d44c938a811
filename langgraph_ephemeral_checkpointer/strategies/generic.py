"""Any other saver, through the public methods that every saver has."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_ephemeral_checkpointer.checkpoint_ids import time_of_id, time_of_ts
from langgraph_ephemeral_checkpointer.errors import (
    ColourError,
    StorageError,
    UnsupportedCheckpointerError,
)
from langgraph_ephemeral_checkpointer.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.plan import Plan
from langgraph_ephemeral_checkpointer.result import KeepReason
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Page, Recheck, Strategy
from langgraph_ephemeral_checkpointer.strategies.payload import first_and_last


@dataclass(frozen=True, slots=True)
class ListThreads:
    """List one thread's checkpoints, or those of all threads where it is None."""

    thread_id: Any = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class GetHead:
    """Get the newest root checkpoint of a thread."""

    thread_id: Any


@dataclass(frozen=True, slots=True)
class DeleteThread:
    """Have the saver delete a thread."""

    thread_id: Any


@dataclass(slots=True)
class _Seen:
    """What is kept of a thread while a listing goes by: ids and times, no state."""

    raw_id: Any
    times: list[float | None] = field(default_factory=list)
    namespaces: set[str] = field(default_factory=set)
    roots: int = 0
    head: str = ""
    interrupted: bool | None = None

    def add(self, namespace: str, checkpoint_id: str, found: CheckpointTuple) -> None:
        time = time_of_id(checkpoint_id)
        self.times.append(time if time is not None else time_of_ts(found.checkpoint.get("ts")))
        self.namespaces.add(namespace)
        if namespace == "":
            self.roots += 1
            if checkpoint_id >= self.head:
                self.head = checkpoint_id
                self.interrupted = _waits(found)

    def facts(self, text: str) -> ThreadFacts:
        born_at, newest_at = first_and_last(self.times)
        interrupted = self.interrupted if self.roots else False
        return ThreadFacts(text, newest_at, born_at, len(self.times), self.roots, interrupted)


def _waits(found: CheckpointTuple) -> bool | None:
    if found.pending_writes is None:  # some savers leave them out of a listing
        return None
    return waits_for_human((task_id, channel) for task_id, channel, *_ in found.pending_writes)


class GenericStrategy(Strategy):
    """Sweep a saver through ``list``, ``get_tuple`` and ``delete_thread``, or their twins.

    One walk over all checkpoints finds the threads; deletes come after it, one thread at
    a time. How whole a delete is depends on the saver's ``delete_thread``; the look at the
    thread just before it is not in one transaction with it. Listing through a saver
    decodes state, since that is what a saver's ``list`` does.

    A saver whose ``list`` of one thread leaves out namespaces is asked for each namespace
    that the walk saw; one that the thread got since then goes unseen. Where that matters,
    and the test kit tells, override :meth:`list_checkpoints`.

    Override :meth:`list_checkpoints`, :meth:`delete_thread` or their asynchronous twins
    where a saver offers something better.

    Raises:
        UnsupportedCheckpointerError: The saver cannot list or cannot delete.
    """

    def __init__(self, checkpointer: BaseCheckpointSaver[Any]) -> None:
        super().__init__(checkpointer)
        mine = type(self)
        can_sync = self._offers("list", "delete_thread") or (
            mine.list_checkpoints is not GenericStrategy.list_checkpoints
            and mine.delete_thread is not GenericStrategy.delete_thread
        )
        can_async = self._offers("alist", "adelete_thread") or (
            mine.alist_checkpoints is not GenericStrategy.alist_checkpoints
            and mine.adelete_thread is not GenericStrategy.adelete_thread
        )
        if not can_sync and not can_async:
            raise UnsupportedCheckpointerError(
                f"{type(checkpointer).__name__} implements neither list and delete_thread nor "
                "alist and adelete_thread; subclass Strategy for it and pass strategy="
            )
        self.runs_sync = can_sync
        self.runs_async = True
        self.blocks = not can_async
        self._can_sync, self._can_async = can_sync, can_async
        self._async_is_refused = False
        self._raw_ids: dict[str, Any] = {}
        self._namespaces: dict[str, set[str]] = {}

    def _offers(self, *names: str) -> bool:
        saver = type(self.checkpointer)
        return all(getattr(saver, name) is not getattr(BaseCheckpointSaver, name) for name in names)

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

    def scan(self, wanted: Wanted | None, after: Any, limit: int) -> Plan[Any, Page]:
        """Read every thread in one page: a saver's ``list`` cannot be continued later."""
        try:
            threads = yield ListThreads()
        except ColourError:
            raise
        except Exception as error:
            raise StorageError(
                f"{type(self.checkpointer).__name__} cannot list the checkpoints of all threads "
                f"({error}); nothing was deleted. Subclass GenericStrategy, override "
                "list_checkpoints() and pass strategy="
            ) from error
        self._raw_ids = {
            text: seen.raw_id for text, seen in threads.items() if not isinstance(seen.raw_id, str)
        }
        self._namespaces = {
            text: seen.namespaces for text, seen in threads.items() if seen.namespaces != {""}
        }
        found = [seen.facts(text) for text, seen in threads.items()]
        return Page(
            [facts for facts in found if wanted is None or wanted.matches(facts)], len(found)
        )

    def find_interrupted(self, thread_ids: Sequence[str]) -> Plan[Any, Collection[str]]:
        """Get each thread's head and look at its pending writes."""
        waiting = []
        for text in thread_ids:
            head = yield GetHead(self._raw_ids.get(text, text))
            if head is not None and _waits(head):
                waiting.append(text)
        return waiting

    def delete_threads(
        self, thread_ids: Sequence[str], recheck: Recheck | None
    ) -> Plan[Any, Mapping[str, Outcome]]:
        """Look at each thread again, then have the saver delete it."""
        outcomes: dict[str, Outcome] = {}
        for text in thread_ids:
            try:
                outcomes[text] = Outcome((yield from self._delete(text, recheck)))
            except Exception as error:  # noqa: BLE001 - no transaction: what is gone stays gone
                outcomes[text] = Outcome(KeepReason.FAILED, f"{type(error).__name__}: {error}")
        return outcomes

    def _delete(self, text: str, recheck: Recheck | None) -> Plan[Any, KeepReason | None]:
        raw_id = self._raw_ids.get(text, text)
        if recheck is None:
            yield DeleteThread(raw_id)
            return None
        seen = yield from self._look_at(text, raw_id)
        facts = seen.facts(text) if seen else None
        if facts is not None and facts.interrupted is None:
            head = yield GetHead(raw_id)
            facts = replace(facts, interrupted=bool(head and _waits(head)))
        why_kept = recheck(text, facts)
        if why_kept is None:
            yield DeleteThread(raw_id)
            if (yield from self._look_at(text, raw_id)) is not None:
                raise StorageError(
                    f"{type(self.checkpointer).__name__}.delete_thread({text!r}) left checkpoints "
                    "of the thread behind"
                )
        return why_kept

    def _look_at(self, text: str, raw_id: Any) -> Plan[Any, _Seen | None]:
        seen: _Seen | None = (yield ListThreads(raw_id)).get(text)
        listed = seen.namespaces if seen else set()
        for namespace in sorted(self._namespaces.get(text, set()) - listed):
            more: _Seen | None = (yield ListThreads(raw_id, namespace)).get(text)
            if seen is None:
                seen = more
            elif more is not None:
                seen.times += more.times
        return seen

    def perform(self, step: Any) -> Any:
        """Carry out one step through the saver's synchronous methods.

        Raises:
            ColourError: The saver has asynchronous methods only.
        """
        try:
            return self._perform(step)
        except NotImplementedError as error:
            if not self._can_async:
                raise
            raise ColourError(
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
            case ListThreads(thread_id, namespace):
                threads: dict[str, _Seen] = {}
                for found in (
                    self.list_checkpoints(thread_id)
                    if namespace is None
                    else self.checkpointer.list(_config(thread_id, namespace))
                ):
                    _note(threads, found)
                return threads
            case GetHead(thread_id):
                return self.checkpointer.get_tuple(_config(thread_id, ""))
            case DeleteThread(thread_id):
                return self.delete_thread(thread_id)
        return super().perform(step)

    async def _aperform(self, step: Any) -> Any:
        match step:
            case ListThreads(thread_id, namespace):
                threads: dict[str, _Seen] = {}
                async for found in (
                    self.alist_checkpoints(thread_id)
                    if namespace is None
                    else self.checkpointer.alist(_config(thread_id, namespace))
                ):
                    _note(threads, found)
                return threads
            case GetHead(thread_id):
                return await self.checkpointer.aget_tuple(_config(thread_id, ""))
            case DeleteThread(thread_id):
                return await self.adelete_thread(thread_id)
        return await super().aperform(step)


def _note(threads: dict[str, _Seen], found: CheckpointTuple) -> None:
    where = found.config["configurable"]
    raw_id = where["thread_id"]
    # Some savers look threads up by prefix, so what comes back is sorted by exact text.
    seen = threads.setdefault(str(raw_id), _Seen(raw_id))
    seen.add(where.get("checkpoint_ns", ""), where["checkpoint_id"], found)


def _config(thread_id: Any, namespace: str | None = None) -> Any:
    if thread_id is None:
        return None
    where = {"thread_id": thread_id}
    return {"configurable": where if namespace is None else {**where, "checkpoint_ns": namespace}}
