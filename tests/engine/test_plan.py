"""One plan gives the same answer under both drivers, and sees every error of a step."""

import pytest

from langgraph_ephemeral_checkpointer.engine.plan import adrive, drive


def _sum(seen):
    total = 0
    try:
        for number in (1, 2, 3):
            try:
                total += yield number
            except ValueError:
                total += 100
    finally:
        seen.append((yield "clean-up"))
    return total


def _perform(step):
    if step == 2:
        raise ValueError
    if step == 3 and _perform.stop:
        raise KeyboardInterrupt
    return step


async def _aperform(step):
    return _perform(step)


@pytest.fixture(autouse=True)
def _running():
    _perform.stop = False


async def test_both_drivers_throw_errors_in_and_return_the_value():
    assert drive(_sum([]), _perform) == await adrive(_sum([]), _aperform) == 104


async def test_clean_up_steps_run_even_when_the_plan_is_stopped_by_a_base_exception():
    _perform.stop = True
    for run in ("sync", "async"):
        seen = []
        with pytest.raises(KeyboardInterrupt):
            if run == "sync":
                drive(_sum(seen), _perform)
            else:
                await adrive(_sum(seen), _aperform)
        assert seen == ["clean-up"]
