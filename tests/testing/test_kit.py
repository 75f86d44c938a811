"""The test kit catches a strategy, or a saver, that breaks a rule, and names the rule."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import time
import unittest
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer import (
    KeepReason,
    NotSetUpError,
    TTLPolicy,
    TTLSweeper,
    strategies,
)
from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import time_of_id
from langgraph_ephemeral_checkpointer.strategies import (
    FindsOrphansFromAnywhere,
    GenericStrategy,
    HasLock,
    HasTenants,
    MemoryStrategy,
    Outcome,
    Page,
    PruneOutcome,
    SqliteStrategy,
    capabilities,
)
from langgraph_ephemeral_checkpointer.strategies.memory.purge import MemoryStorage
from langgraph_ephemeral_checkpointer.strategies.trash import TrashedThread
from langgraph_ephemeral_checkpointer.testing import (
    CONTRACT,
    BrokenContractError,
    StrategyContract,
    acheck_strategy,
    asave_thread,
    check_strategy,
    checkpoint_id_at,
    save_thread,
)


@contextmanager
def sqlite_saver():
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        yield SqliteSaver(connection)


class Altered(MemoryStrategy):
    """Changes the facts that a scan gives."""

    def alter(self, facts):
        return facts

    def scan(self, wanted, after, limit):
        page = super().scan(wanted, after, limit)
        return replace(page, threads=[self.alter(facts) for facts in page.threads])


class ForgetsTheLastPage(MemoryStrategy):
    def scan(self, wanted, after, limit):
        page = super().scan(wanted, after, limit)
        return page if after is None else replace(page, threads=(), seen=0)


class ScansForEver(MemoryStrategy):
    def scan(self, wanted, after, limit):
        page = super().scan(wanted, None, limit)
        return replace(page, next=page.next and "again", threads=page.threads)


class CountsOnlyWhatItReports(MemoryStrategy):
    def scan(self, wanted, after, limit):
        page = super().scan(wanted, after, limit)
        return replace(page, seen=len(page.threads))


class ReportsTwice(MemoryStrategy):
    def scan(self, wanted, after, limit):
        page = super().scan(wanted, after, limit)
        return replace(page, threads=[*page.threads, *page.threads[:1]])


class InventsAThread(MemoryStrategy):
    def scan(self, wanted, after, limit):
        page = super().scan(wanted, after, limit)
        if page.threads or after is not None:
            return page
        return Page((), 1)


class LooksAtTheRootOnly(Altered):
    def alter(self, facts):
        roots = self.checkpointer.storage[facts.thread_id].get("", {})
        times = [time for one in roots if (time := time_of_id(one)) is not None]
        return replace(facts, newest_at=max(times, default=facts.newest_at))


class TakesTheNewestForTheBirth(Altered):
    def alter(self, facts):
        return replace(facts, born_at=facts.newest_at)


class GuessesAges(Altered):
    def alter(self, facts):
        return replace(facts, newest_at=facts.newest_at or 0.0, born_at=facts.born_at or 0.0)


class IgnoresUnknownAges(MemoryStrategy):
    def scan(self, wanted, after, limit):
        page = super().scan(wanted, after, limit)
        if wanted is None:
            return page
        return replace(page, threads=[one for one in page.threads if one.newest_at is not None])


class NarrowsTheBirthRule(MemoryStrategy):
    def scan(self, wanted, after, limit):
        return super().scan(wanted and replace(wanted, born_before=None), after, limit)


class FindsNoInterrupt(MemoryStrategy):
    def find_interrupted(self, thread_ids):
        return set()


class TakesAnAnswerForAnOutput(MemoryStrategy):
    def find_interrupted(self, thread_ids):
        answered = {
            key[0]
            for key, writes in self.checkpointer.writes.items()
            if any(channel == "__resume__" for _, channel, *_ in writes.values())
        }
        return super().find_interrupted(thread_ids) - answered


class LooksAtEveryCheckpointForInterrupts(MemoryStrategy):
    def find_interrupted(self, thread_ids):
        return {
            key[0]
            for key, writes in self.checkpointer.writes.items()
            if key[0] in thread_ids
            and any(channel == "__interrupt__" for _, channel, *_ in writes.values())
        }


class DeletesAtTheScan(MemoryStrategy):
    def scan(self, wanted, after, limit):
        for table in (self.checkpointer.writes, self.checkpointer.blobs):
            table.clear()
        return super().scan(wanted, after, limit)


class DeletesTheRootOnly(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        for thread_id in thread_ids:
            self.checkpointer.storage.get(thread_id, {}).pop("", None)
        return dict.fromkeys(thread_ids, Outcome())


class LeavesWritesBehind(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        writes = dict(self.checkpointer.writes)
        outcomes = super().delete_threads(thread_ids, recheck)
        self.checkpointer.writes.update(writes)
        return outcomes


class LeavesValuesBehind(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        blobs = dict(self.checkpointer.blobs)
        outcomes = super().delete_threads(thread_ids, recheck)
        self.checkpointer.blobs.update(blobs)
        return outcomes


class RemembersAges(Altered):
    def alter(self, facts):
        seen = self.__dict__.setdefault("seen", {})
        return replace(facts, newest_at=seen.setdefault(facts.thread_id, facts.newest_at))

    def delete_threads(self, thread_ids, recheck):
        self.scan(None, None, 1000)
        return super().delete_threads(thread_ids, recheck)


class DeletesByPrefix(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        outcomes = super().delete_threads(thread_ids, recheck)
        for thread_id, outcome in outcomes.items():
            if outcome.kept is None:
                for other in [
                    one for one in self.checkpointer.storage if one.startswith(thread_id)
                ]:
                    self.checkpointer.delete_thread(other)
        return outcomes


class DeletesByPattern(SqliteStrategy):
    def delete_threads(self, thread_ids, recheck):
        outcomes = super().delete_threads(thread_ids, recheck)
        for thread_id, outcome in outcomes.items():
            if outcome.kept is None:
                for table in ("checkpoints", "writes"):
                    self.checkpointer.conn.execute(
                        f"DELETE FROM {table} WHERE thread_id LIKE ?", (thread_id,)
                    )
        return outcomes


class KnowsTextOnly(MemoryStrategy):
    def scan(self, wanted, after, limit):
        page = super().scan(wanted, after, limit)
        known = [one for one in page.threads if one.thread_id in self.checkpointer.storage]
        return replace(page, threads=known)


class DoesNotAsk(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        return super().delete_threads(thread_ids, None)


class AsksWithWhatTheScanSaw(MemoryStrategy):
    def scan(self, wanted, after, limit):
        page = super().scan(wanted, after, limit)
        self.seen = {facts.thread_id: facts for facts in page.threads}
        return page

    def delete_threads(self, thread_ids, recheck):
        seen = getattr(self, "seen", {})
        return super().delete_threads(
            thread_ids,
            recheck
            and (
                lambda thread_id, facts: recheck(
                    thread_id, replace(facts or seen[thread_id], **_times(seen, thread_id))
                )
            ),
        )


def _times(seen, thread_id):
    facts = seen.get(thread_id)
    return {"newest_at": facts.newest_at} if facts else {}


class SaysNothingOfInterruptsAtTheRecheck(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        return super().delete_threads(
            thread_ids,
            recheck
            and (lambda one, facts: recheck(one, facts and replace(facts, interrupted=None))),
        )


class AsksAndDeletesAnyway(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        outcomes = super().delete_threads(thread_ids, recheck)
        for thread_id in thread_ids:
            self.checkpointer.delete_thread(thread_id)
        return outcomes


class LiesAboutTheReason(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        return {
            thread_id: replace(outcome, kept=outcome.kept and KeepReason.BUSY)
            for thread_id, outcome in super().delete_threads(thread_ids, recheck).items()
        }


class ForgetsOutcomes(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        outcomes = super().delete_threads(thread_ids, recheck)
        return {one: outcome for one, outcome in outcomes.items() if outcome.kept is None}


class RaisesForWhatIsGone(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        for thread_id in thread_ids:
            _ = self.checkpointer.storage[thread_id] or {}[thread_id]
        return super().delete_threads(thread_ids, recheck)


class RaisesHalfway(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        outcomes = {}
        for thread_id in thread_ids:
            one = super().delete_threads([thread_id], recheck)
            if one[thread_id].error:
                raise RuntimeError(one[thread_id].error)
            outcomes.update(one)
        return outcomes


class DeletesAHundredAtMost(MemoryStrategy):
    def delete_threads(self, thread_ids, recheck):
        rest = dict.fromkeys(thread_ids[100:], Outcome())
        return {**super().delete_threads(thread_ids[:100], recheck), **rest}


class WritesInADryRun(MemoryStrategy):
    def find_interrupted(self, thread_ids):
        found = super().find_interrupted(thread_ids)
        for thread_id in set(thread_ids) - found:
            self.checkpointer.delete_thread(thread_id)
        return found


class LosesItsLock(MemoryStrategy, HasLock):
    locked = False

    def lock(self):
        was_free, self.locked = not self.locked, True
        return was_free

    def unlock(self):
        pass


class MakesThreadsYounger(MemoryStrategy):
    """Right as far as it goes, except that a thread gets younger."""

    def prune_threads(self, thread_ids, keep, *, dry_run):
        outcomes = {}
        for thread_id in thread_ids:
            roots = self.checkpointer.storage[thread_id][""]
            old = sorted(roots)[:-keep]
            for one in [] if dry_run else old:
                del roots[one]
            outcomes[thread_id] = PruneOutcome(len(old))
        return outcomes


class PrunesInADryRun(MakesThreadsYounger):
    def prune_threads(self, thread_ids, keep, *, dry_run):
        return super().prune_threads(thread_ids, keep, dry_run=False)


class RestoresHalf(SqliteStrategy):
    def transact(self, plan):
        answer = super().transact(plan)
        if isinstance(answer, TrashedThread):
            self.checkpointer.conn.execute("DELETE FROM writes")
        return answer


class DeletesWithoutATrash(SqliteStrategy):
    def discard_threads(self, thread_ids, recheck, discard):
        return self.delete_threads(thread_ids, recheck)

    def transact(self, plan):
        with contextlib.suppress(NotSetUpError):
            return super().transact(plan)


class TakesYoungOrphans(MemoryStrategy):
    def find_orphans(self, before, now, after, limit):
        return super().find_orphans(4e9, 4e9, after, limit)


class DoesNotLookAtOrphansAgain(MemoryStrategy):
    def delete_orphans(self, orphans, before):
        gone = [
            self.checkpointer.writes.pop((one.thread_id, one.checkpoint_ns, one.name), {})
            for one in orphans
        ]
        return sum(len(writes) for writes in gone)


class PurgesWaitingThreads(MemoryStrategy):
    def message_storage(self):
        class Storage(MemoryStorage):
            def read(self, thread_id):
                for writes in self.saver.writes.values():
                    writes.clear()
                return super().read(thread_id)

        return Storage(self)


class PurgesOverSaves(MemoryStrategy):
    def message_storage(self):
        class Storage(MemoryStorage):
            def write(self, image, changes):
                super().write(self.read(image.thread_id), changes)

        return Storage(self)


class MeasuresEveryThread(MemoryStrategy):
    def measure_threads(self, thread_ids):
        return super().measure_threads(list(self.checkpointer.storage))


class DeletesUnreadWithoutLooking(SqliteStrategy):
    def delete_unread(self, thread_ids, before):
        outcomes = self.delete_threads(thread_ids, None)
        return [thread_id for thread_id, outcome in outcomes.items() if outcome.kept is None]


class ShowsEveryTenant(MemoryStrategy, HasTenants):
    tenant = None
    spans_tenants = False

    def tenants(self):
        return ["tenant-one", "tenant-two"]

    @contextmanager
    def tenant_scope(self, tenant):
        self.tenant = tenant
        yield


class ListsNothing(InMemorySaver):
    """Lists one thread and never all."""

    def list(self, config, **options):
        return super().list(config, **options) if config else iter(())

    async def alist(self, config, **options):
        for found in self.list(config, **options):
            yield found


class ListsAHundred(ListsNothing):
    def list(self, config, **options):
        return InMemorySaver.list(self, config, **{"limit": 100, **options})


class DeletesNothing(GenericStrategy):
    def delete_thread(self, thread_id):
        pass

    async def adelete_thread(self, thread_id):
        pass


BROKEN = [
    (ForgetsTheLastPage, "scan_covers_every_thread_once"),
    (ScansForEver, "scan_covers_every_thread_once"),
    (ReportsTwice, "scan_covers_every_thread_once"),
    (InventsAThread, "scan_of_nothing_is_empty"),
    (LooksAtTheRootOnly, "scan_tells_times_and_counts"),
    (TakesTheNewestForTheBirth, "scan_tells_times_and_counts"),
    (GuessesAges, "scan_never_guesses_an_age"),
    (IgnoresUnknownAges, "scan_is_never_narrower_than_wanted"),
    (NarrowsTheBirthRule, "scan_is_never_narrower_than_wanted"),
    (CountsOnlyWhatItReports, "scan_is_never_narrower_than_wanted"),
    (FindsNoInterrupt, "interrupted_threads_are_found"),
    (TakesAnAnswerForAnOutput, "interrupted_threads_are_found"),
    (LooksAtEveryCheckpointForInterrupts, "interrupted_threads_are_found"),
    (DeletesAtTheScan, "looking_changes_nothing"),
    (DeletesTheRootOnly, "delete_takes_the_whole_thread"),
    (LeavesWritesBehind, "delete_takes_the_whole_thread"),
    (LeavesValuesBehind, "delete_takes_the_whole_thread"),
    (DeletesNothing, "delete_takes_the_whole_thread"),
    (RemembersAges, "recreated_threads_are_new"),
    (DeletesByPrefix, "thread_ids_are_compared_exactly"),
    (DeletesByPattern, "thread_ids_are_compared_exactly"),
    (KnowsTextOnly, "thread_ids_mean_their_text"),
    (DoesNotAsk, "recheck_is_asked_with_fresh_facts"),
    (AsksWithWhatTheScanSaw, "recheck_is_asked_with_fresh_facts"),
    (SaysNothingOfInterruptsAtTheRecheck, "recheck_is_asked_with_fresh_facts"),
    (AsksAndDeletesAnyway, "recheck_is_honoured"),
    (LiesAboutTheReason, "recheck_is_honoured"),
    (ForgetsOutcomes, "recheck_is_honoured"),
    (RaisesForWhatIsGone, "deleting_what_is_gone_is_no_error"),
    (RaisesHalfway, "a_failed_delete_loses_nothing"),
    (DeletesAHundredAtMost, "a_batch_may_be_large"),
    (DoesNotAsk, "still_expired_decides_as_documented"),
    (WritesInADryRun, "a_sweep_does_what_its_dry_run_said"),
    (DeletesWithoutATrash, "a_trash_must_be_set_up"),
    (RestoresHalf, "trash_gives_back_what_was_deleted"),
    (TakesYoungOrphans, "orphans_are_found_and_deleted"),
    (DoesNotLookAtOrphansAgain, "an_orphan_that_got_its_checkpoint_stays"),
    (PurgesWaitingThreads, "a_purge_takes_old_messages_and_no_others"),
    (PurgesOverSaves, "a_purge_gives_way_to_a_save"),
    (MeasuresEveryThread, "sizes_are_told_of_each_thread"),
    (DeletesUnreadWithoutLooking, "unread_threads_are_deleted_only_where_sure"),
    (ShowsEveryTenant, "tenants_are_kept_apart"),
    (MakesThreadsYounger, "prune_keeps_the_newest"),
    (PrunesInADryRun, "prune_keeps_the_newest"),
    (LosesItsLock, "a_lock_can_be_taken_again"),
]


@pytest.mark.parametrize(("strategy", "rule"), BROKEN)
def test_a_strategy_that_breaks_a_rule_is_reported_with_the_name_of_the_rule(strategy, rule):
    make_saver = sqlite_saver if issubclass(strategy, SqliteStrategy) else InMemorySaver
    with pytest.raises(BrokenContractError) as caught:
        check_strategy(make_saver, strategy)
    for colour in ("sweep", "asweep"):
        assert f"{rule} [{colour}]" in caught.value.broken
    promise = next(one.promise for one in CONTRACT if one.name == rule)
    assert f"{rule} [sweep]: {promise}" in str(caught.value)


LISTED = "every_stored_thread_is_listed"


def test_each_rule_has_a_strategy_that_breaks_it():
    assert {rule for _, rule in BROKEN} | {LISTED} == {rule.name for rule in CONTRACT}


@pytest.mark.parametrize("saver", [ListsNothing, ListsAHundred])
def test_a_saver_that_does_not_list_every_thread_is_reported_by_name(saver):
    with pytest.raises(BrokenContractError) as caught:
        check_strategy(saver, GenericStrategy)
    for colour in ("sweep", "asweep"):
        assert f"{saver.__name__}.list(None)" in caught.value.broken[f"{LISTED} [{colour}]"]


def test_each_capability_has_a_rule():
    known = [one for one in vars(capabilities).values() if isinstance(one, type)]
    known = {one for one in known if one.__module__ == capabilities.__name__}
    tested = {rule.needs for rule in CONTRACT if rule.needs is not None}
    assert known - {FindsOrphansFromAnywhere} == tested
    assert known == {vars(strategies)[one.__name__] for one in known}


def test_a_rule_of_a_capability_that_is_not_there_is_not_passed():
    report = check_strategy(InMemorySaver, GenericStrategy)
    of_capabilities = [rule.name for rule in CONTRACT if rule.needs is not None]
    assert list(report.not_applicable) == [
        f"{name} [{colour}]" for colour in ("sweep", "asweep") for name in of_capabilities
    ]
    assert not set(report.not_applicable) & set(report.passed)


def test_a_saver_that_is_not_empty_is_reported():
    full = InMemorySaver()
    save_thread(full, "left over", [0.0])
    with pytest.raises(BrokenContractError, match="must give an empty one each time"):
        check_strategy(lambda: full)


def test_what_the_saver_refuses_is_noted_and_not_held_against_it():
    class Fussy(InMemorySaver):
        def put(self, config, checkpoint, metadata, new_versions):
            if "/" in str(config["configurable"]["thread_id"]):
                raise ValueError("no slashes")
            return super().put(config, checkpoint, metadata, new_versions)

    report = check_strategy(Fussy)
    assert report.notes == ("thread id 'a/b' not tried: the saver refuses it (no slashes)",)


def test_a_strategy_that_cannot_be_called_at_all_is_reported():
    class Neither(MemoryStrategy):
        runs_sync = runs_async = False

    with pytest.raises(BrokenContractError, match=r"neither sweep\(\) nor asweep\(\)"):
        check_strategy(InMemorySaver, Neither)


def test_a_factory_that_gives_no_saver_is_a_type_error():
    with pytest.raises(TypeError, match="must give a BaseCheckpointSaver"):
        check_strategy(lambda: "a saver")


async def test_a_saver_in_place_of_a_factory_is_told_what_to_pass():
    with pytest.raises(TypeError, match=r"'lambda: MySaver.*not InMemorySaver"):
        await acheck_strategy(InMemorySaver())
    with pytest.raises(TypeError, match=r"'lambda: MySaver.*not InMemorySaver"):
        await asyncio.to_thread(check_strategy, InMemorySaver())


async def test_check_strategy_says_what_to_call_from_a_running_loop():
    assert (await acheck_strategy(InMemorySaver)).passed
    with pytest.raises(RuntimeError, match=r"use acheck_strategy\(\)"):
        check_strategy(InMemorySaver)


def test_the_contract_class_needs_no_pytest():
    class Broken(StrategyContract, unittest.TestCase):
        def make_saver(self):
            return InMemorySaver()

        def make_strategy(self, saver):
            return FindsNoInterrupt(saver)

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Broken).run(result)
    assert result.testsRun == len(CONTRACT)
    names = {case._testMethodName for case, _ in result.failures}
    assert {
        "test_interrupted_threads_are_found",
        "test_a_sweep_does_what_its_dry_run_said",
    } <= names
    assert not result.errors


def test_the_kit_imports_neither_pytest_nor_an_optional_backend():
    code = (
        "import sys, langgraph_ephemeral_checkpointer.testing;"
        "print([m for m in ('pytest', 'psycopg', 'aiosqlite', 'langgraph.graph')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ids_of_chosen_moments_tell_them_and_sort_by_them():
    now = time.time()
    ids = [checkpoint_id_at(now - 60), checkpoint_id_at(now), checkpoint_id_at(now, 1)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 3
    assert time_of_id(ids[0]) == pytest.approx(now - 60, abs=1e-5)


async def test_aged_threads_expire_as_their_times_say():
    saver, now = InMemorySaver(), time.time()
    ids = save_thread(saver, "old", [now - 7200, now - 9000])
    save_thread(saver, "waiting", [now - 7200], waiting=True)
    await asave_thread(saver, "young", [now - 7200, now])
    assert ids == sorted(ids)
    head = saver.get_tuple({"configurable": {"thread_id": "old", "checkpoint_ns": ""}})
    assert head.config["configurable"]["checkpoint_id"] == ids[1]
    result = TTLSweeper(saver, TTLPolicy(idle_ttl_seconds=3600)).sweep()
    assert result.deleted_thread_ids == ["old"]
    assert result.kept == {"waiting": KeepReason.INTERRUPTED}
    with pytest.raises(ValueError, match="at least one checkpoint"):
        save_thread(saver, "empty", [])
