"""Where a saver takes one thread id for another, the thread is kept and the error says why."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy, TTLSweeper
from langgraph_ephemeral_checkpointer.testing import save_thread

NOW = 1_750_000_000.0
IDLE = TTLPolicy(idle_ttl_seconds=3600)


class FoldsCase(BaseCheckpointSaver[Any]):
    """Keeps ids as they are written and compares them without case, as a collation does."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[str, InMemorySaver] = {}

    def list(self, config, *, filter=None, before=None, limit=None):  # noqa: A002
        where = {} if config is None else {**config["configurable"]}
        for name in list(self.threads) if config is None else self._names(config):
            named = {"configurable": {**where, "thread_id": name}}
            yield from self.threads[name].list(named, filter=filter, before=before, limit=limit)

    def _names(self, config: Any) -> list[str]:
        wanted = str(config["configurable"]["thread_id"]).casefold()
        return [name for name in self.threads if name.casefold() == wanted]

    def get_tuple(self, config) -> CheckpointTuple | None:
        heads = [
            self.threads[name].get_tuple(
                {"configurable": {**config["configurable"], "thread_id": name}}
            )
            for name in self._names(config)
        ]
        found = [head for head in heads if head is not None]
        return max(found, key=lambda head: head.checkpoint["id"], default=None)

    def put(self, config, *args):
        name = config["configurable"]["thread_id"]
        return self.threads.setdefault(name, InMemorySaver()).put(config, *args)

    def put_writes(self, config, *args):
        self.threads[config["configurable"]["thread_id"]].put_writes(config, *args)

    def delete_thread(self, thread_id):
        for name in self._names({"configurable": {"thread_id": thread_id}}):
            del self.threads[name]

    async def alist(self, config, **how):
        for found in self.list(config, **how):
            yield found

    async def aget_tuple(self, config):
        return self.get_tuple(config)

    async def adelete_thread(self, thread_id):
        self.delete_thread(thread_id)


class FoldsCaseAndListsNoWrites(FoldsCase):
    def list(self, config, **how):
        for found in super().list(config, **how):
            yield found._replace(pending_writes=None)


def saver_with(kind: type[FoldsCase] = FoldsCase, **how: Any) -> FoldsCase:
    saver = kind()
    save_thread(saver, "anna", [NOW - 7200], **how)
    save_thread(saver, "Anna", [NOW - 60])
    save_thread(saver, "ben", [NOW - 7200])
    return saver


def sweeper(saver: FoldsCase, **options: Any) -> TTLSweeper:
    return TTLSweeper(saver, IDLE, clock=lambda: NOW, **options)


@pytest.mark.parametrize("safe_delete", [True, False])
async def test_a_thread_whose_delete_would_take_another_with_it_is_kept_and_the_error_says_why(
    safe_delete,
):
    for asynchronous in (False, True):
        saver = saver_with()
        one = sweeper(saver, safe_delete=safe_delete)
        result = await one.asweep() if asynchronous else one.sweep()
        assert result.deleted_thread_ids == ["ben"]
        assert result.kept == {"anna": KeepReason.FAILED}
        assert "'Anna'" in result.errors["anna"]
        assert "gives rows of other threads" in result.errors["anna"]
        assert sorted(saver.threads) == ["Anna", "anna"]


def test_a_thread_goes_once_no_other_id_is_taken_for_its_own():
    saver = saver_with()
    del saver.threads["Anna"]
    assert sorted(sweeper(saver).sweep().deleted_thread_ids) == ["anna", "ben"]


def test_the_error_names_a_few_of_the_other_threads():
    saver = FoldsCase()
    save_thread(saver, "anna", [NOW - 7200])
    for name in ("ANNA", "ANNa", "ANna", "Anna", "aNNA"):
        save_thread(saver, name, [NOW - 60])
    message = sweeper(saver).sweep().errors["anna"]
    assert "'ANNA', 'ANNa', 'ANna' and 2 more" in message


def test_the_newest_checkpoint_of_another_thread_does_not_hide_that_a_thread_waits():
    saver = saver_with(FoldsCaseAndListsNoWrites, waiting=True)
    result = sweeper(saver).sweep()
    assert result.kept == {"anna": KeepReason.INTERRUPTED}


def test_the_interrupt_of_another_thread_is_not_taken_for_the_threads_own():
    saver = FoldsCaseAndListsNoWrites()
    save_thread(saver, "anna", [NOW - 7200])
    save_thread(saver, "Anna", [NOW - 60], waiting=True)
    result = sweeper(saver).sweep()
    assert result.kept == {"anna": KeepReason.FAILED}
