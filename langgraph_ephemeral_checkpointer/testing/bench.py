"""The bench a rule works on: a saver, the strategy under test, and what was stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, Wanted
from langgraph_ephemeral_checkpointer.decisions.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.result import SweepResult
from langgraph_ephemeral_checkpointer.strategies.base import Outcome, Page, Recheck, Strategy
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper
from langgraph_ephemeral_checkpointer.testing.hands import Get, Put, PutWrites, Steps, Use
from langgraph_ephemeral_checkpointer.testing.threads import (
    CHANNEL,
    Write,
    checkpoint_id_at,
    make_step,
    timestamp,
)

NOW = 1_750_000_000.0
"""The time of every rule, in seconds since the epoch; nothing depends on the wall clock."""
CLOSE = 0.001
"""Seconds by which two times may differ and still be the same."""


class BrokenRuleError(AssertionError):
    """A strategy broke a rule of the contract."""


def expect(truth: object, message: str) -> None:
    """Raise unless something holds.

    Raises:
        BrokenRuleError: With the message.
    """
    if not truth:
        raise BrokenRuleError(message)


@dataclass(frozen=True, slots=True)
class _Saved:
    raw_id: Any
    namespace: str
    checkpoint_id: str
    at: float | None
    value: list[Any]
    version: Any
    writes: tuple[Write, ...]

    @property
    def config(self) -> dict[str, Any]:
        return {
            "configurable": {
                "thread_id": self.raw_id,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": self.checkpoint_id,
            }
        }


class Bench:
    """What a rule is given.

    Args:
        saver: An empty saver.
        strategy: The strategy under test, on that saver.

    Attributes:
        notes: What could not be tried, and why.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], strategy: Strategy) -> None:
        self.saver = saver
        self.strategy = strategy
        self.notes: list[str] = []
        self._saved: dict[str, list[_Saved]] = {}
        self._version: Any = None
        self._count = 0

    # Storing

    def save(
        self,
        thread_id: Any,
        at: float = NOW,
        *,
        namespace: str = "",
        writes: Sequence[Write] = (),
        checkpoint_id: str | None = None,
        ts: str | None = None,
        value: Sequence[Any] | None = None,
    ) -> Steps[None]:
        """Store one checkpoint through the saver and remember it.

        Args:
            thread_id: As an application gives it.
            at: Its time in seconds since the epoch.
            namespace: Its checkpoint namespace.
            writes: Its pending writes.
            checkpoint_id: An id instead of the one of that time.
            ts: Its ``ts`` instead of that time; its age is then unknown where the id is odd.
            value: What its channel holds, instead of a text that no other checkpoint has.
        """
        self._count += 1
        self._version = self.saver.get_next_version(self._version, None)
        earlier = [one for one in self._saved.get(str(thread_id), ()) if one.namespace == namespace]
        held = [f"value {self._count}"] if value is None else list(value)
        saved = _Saved(
            thread_id,
            namespace,
            checkpoint_id or checkpoint_id_at(at, self._count),
            None if ts is not None else at,
            held,
            self._version,
            tuple(writes),
        )
        yield Put(
            make_step(
                thread_id,
                saved.checkpoint_id,
                ts=ts if ts is not None else timestamp(at),
                values={CHANNEL: held},
                versions={CHANNEL: self._version},
                new_versions={CHANNEL: self._version},
                namespace=namespace,
                parent_id=earlier[-1].checkpoint_id if earlier else None,
                writes=writes,
            )
        )
        self._saved.setdefault(str(thread_id), []).append(saved)

    def save_if_taken(self, thread_id: Any, at: float = NOW, **how: Any) -> Steps[bool]:
        """Store a checkpoint unless the saver refuses its id; a refusal is noted."""
        try:
            yield from self.save(thread_id, at, **how)
        except Exception as error:  # noqa: BLE001 - whatever a saver raises for an id it dislikes
            odd = how.get("checkpoint_id")
            what = f"checkpoint id {odd!r}" if odd else f"thread id {thread_id!r}"
            self.notes.append(f"{what} not tried: the saver refuses it ({error})")
            return False
        return True

    def save_orphans(self, thread_id: str, at: float = NOW) -> Steps[str]:
        """Store writes of a checkpoint that is not stored, and give its id."""
        self._count += 1
        missing = checkpoint_id_at(at, self._count)
        where = {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": missing}
        writes = [(CHANNEL, "lost"), (CHANNEL, "lost too")]
        yield PutWrites({"configurable": where}, writes, f"task-{self._count}")
        return missing

    def save_again_empty(self, thread_id: str) -> Steps[None]:
        """Store the thread's checkpoints again under the same ids, without values and writes."""
        for saved in self._saved[thread_id]:
            yield Put(
                make_step(
                    saved.raw_id,
                    saved.checkpoint_id,
                    ts=timestamp(saved.at or NOW),
                    values={},
                    versions={CHANNEL: saved.version},
                    new_versions={},
                    namespace=saved.namespace,
                )
            )

    # What is true

    @property
    def thread_ids(self) -> list[str]:
        """The threads stored, as text."""
        return list(self._saved)

    def truth(self, thread_id: str) -> ThreadFacts:
        """Give the facts that follow from what was stored."""
        saved = self._saved[thread_id]
        times = [one.at for one in saved if one.at is not None]
        known = len(times) == len(saved)
        roots = [one for one in saved if one.namespace == ""]
        head = max(roots, key=lambda one: one.checkpoint_id, default=None)
        return ThreadFacts(
            thread_id,
            max(times) if known else None,
            min(times) if known else None,
            len(saved),
            len(roots),
            head is not None
            and waits_for_human((task, channel) for task, channel, _ in head.writes),
        )

    def expect_facts(self, facts: ThreadFacts, where: str) -> None:
        """Compare facts that the strategy gave with the truth; None is allowed for interrupted."""
        truth = self.truth(facts.thread_id)
        for name in ("newest_at", "born_at"):
            got, wanted = getattr(facts, name), getattr(truth, name)
            same = got == wanted or (
                got is not None and wanted is not None and abs(got - wanted) <= CLOSE
            )
            expect(
                same,
                f"{where}: {name} of {facts.thread_id!r} is {got!r}, must be {wanted!r} "
                "(seconds since the epoch, over all namespaces; None where unknown)",
            )
        for name in ("checkpoint_count", "root_checkpoint_count"):
            got, wanted = getattr(facts, name), getattr(truth, name)
            expect(
                got == wanted,
                f"{where}: {name} of {facts.thread_id!r} is {got!r}, must be {wanted!r}",
            )
        expect(
            facts.interrupted in (None, truth.interrupted),
            f"{where}: interrupted of {facts.thread_id!r} is {facts.interrupted!r}, must be "
            f"{truth.interrupted!r} or None (nobody looked)",
        )

    # The strategy

    def pages(self, wanted: Wanted | None = None, limit: int = 1000) -> Steps[list[Page]]:
        """Scan to the end."""
        pages: list[Page] = []
        after: Any = None
        most = 2 * len(self._saved) + 2
        while True:
            page = yield Work(partial(self.strategy.scan, wanted, after, limit))
            expect(isinstance(page, Page), f"scan must return a Page, not {page!r}")
            pages.append(page)
            if page.next is None:
                return pages
            expect(
                len(pages) <= most,
                f"scan does not end: {len(pages)} pages of {limit} for {len(self._saved)} threads, "
                f"the last one's next is {page.next!r}",
            )
            after = page.next

    def scan(
        self, wanted: Wanted | None = None, limit: int = 1000
    ) -> Steps[dict[str, ThreadFacts]]:
        """Scan to the end and give the threads; each may come only once."""
        found: dict[str, ThreadFacts] = {}
        for page in (yield from self.pages(wanted, limit)):
            for facts in page.threads:
                expect(
                    facts.thread_id not in found,
                    f"scan reported {facts.thread_id!r} twice (pages of {limit})",
                )
                found[facts.thread_id] = facts
        return found

    def delete(
        self, thread_ids: Iterable[str], recheck: Recheck | None = None
    ) -> Steps[Mapping[str, Outcome]]:
        """Have the strategy delete, and check that it accounts for every thread."""
        ids = list(thread_ids)
        outcomes = yield Work(partial(self.strategy.delete_threads, ids, recheck))
        expect(
            set(outcomes) == set(ids),
            f"delete_threads({ids!r}) must give the outcome of each of them and no other, "
            f"not of {sorted(outcomes)!r}",
        )
        for thread_id, outcome in outcomes.items():
            expect(
                isinstance(outcome, Outcome),
                f"the outcome of {thread_id!r} must be an Outcome, not {outcome!r}",
            )
        return dict(outcomes)

    def delete_for_sure(self, thread_ids: Iterable[str]) -> Steps[None]:
        """Delete, and expect that all of them went."""
        for thread_id, outcome in (yield from self.delete(thread_ids)).items():
            expect(
                outcome.kept is None,
                f"delete_threads without recheck must delete {thread_id!r}, not report {outcome}",
            )

    def sweeper(self, policy: TTLPolicy, at: float = NOW, **options: Any) -> TTLSweeper:
        """Make a sweeper on the strategy under test whose clock stands still."""
        return TTLSweeper(self.saver, policy, strategy=self.strategy, clock=lambda: at, **options)

    def sweep(self, policy: TTLPolicy, *, dry_run: bool = False) -> Steps[SweepResult]:
        """Sweep at :data:`NOW`."""
        result: SweepResult = yield Use(self.sweeper(policy), "sweep", (), {"dry_run": dry_run})
        return result

    # What is stored

    def expect_whole(self, thread_ids: Iterable[str], after: str) -> Steps[None]:
        """Expect every checkpoint, value and write of the threads to be there still."""
        for thread_id in thread_ids:
            for saved in self._saved[thread_id]:
                where = f"{thread_id!r} in namespace {saved.namespace!r}"
                found = yield Get(saved.config)
                expect(found is not None, f"{after} took a checkpoint of {where} with it")
                values = found.checkpoint["channel_values"]
                expect(
                    values.get(CHANNEL) == saved.value,
                    f"{after} damaged the values of {where}: {values!r}",
                )
                writes = {(task, channel) for task, channel, *_ in found.pending_writes or ()}
                missing = {(task, channel) for task, channel, _ in saved.writes} - writes
                expect(not missing, f"{after} took writes of {where} with it: {sorted(missing)}")

    def tuples(self, thread_id: str) -> Steps[list[Any]]:
        """Get the checkpoints of a thread, in the order in which they were stored."""
        found: list[Any] = []
        for saved in self._saved[thread_id]:
            found += [(yield Get(saved.config))]
        expect(None not in found, f"a checkpoint of {thread_id!r} is gone")
        return found

    def expect_gone(self, thread_ids: Iterable[str], after: str) -> Steps[None]:
        """Expect nothing of the threads to be readable any more."""
        for thread_id in thread_ids:
            for saved in self._saved[thread_id]:
                found = yield Get(saved.config)
                expect(
                    found is None,
                    f"{after} left a checkpoint of {thread_id!r} behind, in namespace "
                    f"{saved.namespace!r}",
                )

    def expect_left_nothing(self, thread_id: str, after: str) -> Steps[None]:
        """Expect that what :meth:`save_again_empty` stored has no old values and writes."""
        for saved in self._saved[thread_id]:
            where = f"{thread_id!r} in namespace {saved.namespace!r}"
            found = yield Get(saved.config)
            expect(found is not None, f"{where} could not be stored again {after}")
            expect(
                not found.pending_writes,
                f"{after}, old writes of {where} came back when it was stored again",
            )
            values = found.checkpoint["channel_values"]
            expect(
                not values.get(CHANNEL),
                f"{after}, old values of {where} came back when it was stored again",
            )

    def expect_trimmed(self, thread_id: str, keep: int) -> Steps[None]:
        """Expect only the newest checkpoints of a thread with one namespace to be left."""
        saved = sorted(self._saved[thread_id], key=lambda one: one.checkpoint_id)
        for old in saved[:-keep]:
            found = yield Get(old.config)
            expect(found is None, f"pruning {thread_id!r} to {keep} left an older checkpoint")
        self._saved[thread_id] = saved[-keep:]
        yield from self.expect_whole([thread_id], f"pruning to {keep}")

    def forget(self, thread_id: str) -> None:
        """Stop expecting a thread that was deleted."""
        del self._saved[thread_id]
