"""What a strategy that measures sizes promises of them."""

from __future__ import annotations

from functools import partial

from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.strategies.capabilities import MeasuresSizes
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps
from langgraph_ephemeral_checkpointer.testing.rule import of, rule_of, store_family


def sizes_are_told_of_each_thread(bench: Bench) -> Steps[None]:
    """The size of each thread asked for is told, larger for a longer one, and of no other."""
    yield from store_family(bench, "short", NOW)
    for number in range(3):
        yield from store_family(bench, "long", NOW + 10 * number)
    yield from bench.save("not asked for", NOW)
    ids = ["short", "long", "never-stored"]
    sizes = yield Work(partial(of(bench, MeasuresSizes).measure_threads, ids))
    expect(set(sizes) == {"short", "long"}, f"measure_threads({ids}) told of {sorted(sizes)}")
    for thread_id, checkpoints in (("short", 3), ("long", 9)):
        size = sizes[thread_id]
        expect(
            checkpoints in size.rows.values(),
            f"{thread_id!r} has {checkpoints} checkpoints, its rows by table are {size.rows}",
        )
    expect(
        sizes["long"].bytes > sizes["short"].bytes > 0,
        f"a thread of 9 checkpoints must be larger than one of 3, sizes are {sizes}",
    )


SIZE_RULES = (rule_of(sizes_are_told_of_each_thread, MeasuresSizes),)
