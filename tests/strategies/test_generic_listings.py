"""A listing that is empty or looks cut off does not pass for a sweep of everything."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer import (
    TTLPolicy,
    TTLSweeper,
    UnsupportedCheckpointerError,
    register_strategy,
)
from langgraph_ephemeral_checkpointer.strategies import GenericStrategy, registry
from langgraph_ephemeral_checkpointer.testing import save_thread
from tests.support.foreign import ForeignSaver

NOW = 1_750_000_000.0
IDLE = TTLPolicy(idle_ttl_seconds=3600)


class ListsAtMostAHundred(InMemorySaver):
    """Takes no limit for a limit of 100."""

    def list(self, config, *, limit=None, **how):
        return super().list(config, limit=limit or 100, **how)

    async def alist(self, config, **how):
        for found in self.list(config, **how):
            yield found


def sweeper(saver: InMemorySaver | ForeignSaver) -> TTLSweeper:
    return TTLSweeper(saver, IDLE, strategy=GenericStrategy(saver), clock=lambda: NOW)


def hints(caplog) -> list[str]:
    return [
        record.message
        for record in caplog.records
        if record.name.endswith("strategies.generic") and record.levelno == logging.WARNING
    ]


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_listing_of_a_round_number_is_said_once_to_be_perhaps_cut_off(caplog, dry_run):
    saver = ListsAtMostAHundred()
    for number in range(120):
        save_thread(saver, f"t{number}", [NOW - 60])
    one = sweeper(saver)
    for _ in range(2):
        assert one.sweep(dry_run=dry_run).active_thread_count == 100
        await one.asweep(dry_run=dry_run)
    (hint,) = hints(caplog)
    assert hint.startswith("ListsAtMostAHundred listed exactly 100 checkpoints")


def test_an_empty_listing_is_said_once_to_be_a_hint(caplog):
    one = sweeper(ForeignSaver())
    one.sweep()
    one.sweep()
    (hint,) = hints(caplog)
    assert hint.startswith("ForeignSaver listed no checkpoint")


def test_a_listing_of_another_number_goes_without_a_word(caplog):
    saver = ForeignSaver()
    for number in range(101):
        save_thread(saver, f"t{number}", [NOW - 60])
    sweeper(saver).sweep()
    assert hints(caplog) == []


def test_a_hint_about_an_empty_store_does_not_use_up_the_one_about_a_cut(caplog):
    saver = ListsAtMostAHundred()
    one = sweeper(saver)
    one.sweep()
    for number in range(120):
        save_thread(saver, f"t{number}", [NOW - 60])
    one.sweep()
    assert len(hints(caplog)) == 2


@pytest.fixture(params=sorted(registry._LISTS_NOTHING))
def blind_class(request, monkeypatch):
    """A class where the known savers have theirs; those packages are not installed here."""
    module, _, name = request.param.rpartition(".")
    assert module not in sys.modules
    made = type(name, (ForeignSaver,), {"__module__": module})
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    return made


def test_a_saver_known_to_list_no_thread_is_refused_by_name_with_the_remedy(blind_class):
    with pytest.raises(UnsupportedCheckpointerError) as caught:
        TTLSweeper(blind_class(), IDLE)
    message = str(caught.value)
    assert message.startswith(f"{blind_class.__name__} lists nothing unless a thread is named")
    assert "list_checkpoints" in message


def test_a_subclass_of_such_a_saver_is_refused_too(blind_class):
    class Mine(blind_class):
        pass

    with pytest.raises(UnsupportedCheckpointerError, match=r"^Mine lists nothing"):
        TTLSweeper(Mine(), IDLE)


def test_such_a_saver_is_swept_by_a_strategy_that_is_passed_or_registered(blind_class):
    class FindsThreads(GenericStrategy):
        pass

    saver = blind_class()
    assert TTLSweeper(saver, IDLE, strategy=FindsThreads(saver)).sweep().errors == {}
    register_strategy(blind_class, FindsThreads)
    assert isinstance(TTLSweeper(saver, IDLE).strategy, FindsThreads)
