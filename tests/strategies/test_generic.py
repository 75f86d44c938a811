"""Savers of others have peculiarities that GenericStrategy copes with."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer import (
    AsyncRequiredError,
    KeepReason,
    TTLPolicy,
    TTLSweeper,
    thread_statuses,
)
from langgraph_ephemeral_checkpointer.strategies import GenericStrategy, MemoryStrategy
from langgraph_ephemeral_checkpointer.testing import check_strategy, checkpoint_id_at, save_thread
from langgraph_ephemeral_checkpointer.testing.threads import make_step, put, timestamp

NOW = 1_750_000_000.0
IDLE = TTLPolicy(idle_ttl_seconds=3600)


def _refuse(self, *args, **kwargs):
    raise NotImplementedError("the other colour, please")


class RefusesAsync(InMemorySaver):
    aget_tuple = alist = aput = aput_writes = adelete_thread = _refuse


class RefusesSync(InMemorySaver):
    """Works asynchronously only, on top of a saver that works in both."""

    get_tuple = list = put = put_writes = delete_thread = _refuse

    def __init__(self):
        super().__init__()
        self.inner = InMemorySaver()

    async def aget_tuple(self, config):
        return self.inner.get_tuple(config)

    async def alist(self, config, *, filter=None, before=None, limit=None):  # noqa: A002
        for found in self.inner.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(self, *args):
        return self.inner.put(*args)

    async def aput_writes(self, *args):
        self.inner.put_writes(*args)

    async def adelete_thread(self, thread_id):
        self.inner.delete_thread(thread_id)


class ListsTheRootOnly(InMemorySaver):
    """Takes a missing namespace for the root's when it lists one thread."""

    def list(self, config, **how):
        if config is not None:
            config = {"configurable": {"checkpoint_ns": "", **config["configurable"]}}
        return super().list(config, **how)


def sweeper(saver: BaseCheckpointSaver, **options) -> TTLSweeper:
    return TTLSweeper(saver, IDLE, strategy=GenericStrategy(saver), clock=lambda: NOW, **options)


async def test_a_saver_whose_async_methods_only_raise_is_swept_by_asweep_in_a_thread():
    saver = RefusesAsync()
    save_thread(saver, "old", [NOW - 7200])
    assert (await sweeper(saver).asweep()).deleted_thread_ids == ["old"]


async def test_a_saver_whose_sync_methods_only_raise_is_refused_by_sweep_and_swept_by_asweep():
    saver = RefusesSync()
    save_thread(saver.inner, "old", [NOW - 7200])
    with pytest.raises(AsyncRequiredError, match=r"RefusesSync is asynchronous .*asweep\(\)"):
        sweeper(saver).sweep()
    assert (await sweeper(saver).asweep()).deleted_thread_ids == ["old"]


@pytest.mark.parametrize("saver_class", [RefusesAsync, RefusesSync])
def test_savers_that_raise_in_one_colour_keep_the_contract(saver_class):
    assert check_strategy(saver_class, GenericStrategy).passed


def test_a_thread_that_woke_up_below_is_kept_where_the_saver_lists_the_root_only():
    saver = ListsTheRootOnly()
    save_thread(saver, "old", [NOW - 7200])

    def put_below(seconds: float, name: str) -> None:
        put(
            saver,
            make_step(
                "old",
                name,
                ts=timestamp(seconds),
                values={},
                versions={},
                new_versions={},
                namespace="child",
            ),
        )

    put_below(NOW - 7000, checkpoint_id_at(NOW - 7000))

    def wake(thread_id, policy, reason):
        put_below(NOW, checkpoint_id_at(NOW))
        return True

    result = sweeper(saver, on_before_delete=wake).sweep()
    assert result.kept == {"old": KeepReason.WOKE_UP}
    assert (
        len(list(saver.list({"configurable": {"thread_id": "old", "checkpoint_ns": "child"}}))) == 2
    )


class ScansAList(MemoryStrategy):
    def scan(self, wanted, after, limit):
        return []


@pytest.mark.parametrize("look", ["sweep", "statuses"])
def test_a_scan_that_gives_no_page_is_named(look):
    saver = InMemorySaver()
    strategy, policy = ScansAList(saver), TTLPolicy(idle_ttl_seconds=60)
    with pytest.raises(TypeError, match=r"ScansAList.scan\(\) must return a Page, not list"):
        if look == "sweep":
            TTLSweeper(saver, policy, strategy=strategy).sweep()
        else:
            list(thread_statuses(saver, policy, strategy=strategy))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "GivesAnswer.delete_threads() must return a mapping from thread id to Outcome"),
        ({"t": True}, "GivesAnswer.delete_threads() gave no outcome for the thread"),
    ],
)
def test_a_delete_that_gives_no_outcomes_is_named(answer, said):
    class GivesAnswer(MemoryStrategy):
        def delete_threads(self, thread_ids, recheck):
            return answer

    saver = InMemorySaver()
    save_thread(saver, "t", [1_000_000_000.0])
    policy = TTLPolicy(idle_ttl_seconds=60)
    result = TTLSweeper(saver, policy, strategy=GivesAnswer(saver)).sweep()
    assert (result.deleted_thread_ids, result.kept) == ([], {"t": KeepReason.FAILED})
    assert said in result.errors["t"]
