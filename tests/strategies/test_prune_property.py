"""A random thread, pruned to a random length, is to its users what it was before."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.backends import PRUNED_KINDS
from tests.support.prune_histories import check, histories

EXAMPLES = {"memory": 60, "sqlite": 25, "async-sqlite": 10, "postgres": 12, "async-postgres": 8}


@pytest.mark.parametrize("kind", PRUNED_KINDS)
def test_what_is_kept_reads_replays_and_goes_on_as_before(kind, locate):
    removed = 0

    @settings(
        max_examples=EXAMPLES[kind],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(histories())
    def holds(history):
        nonlocal removed
        removed += check(kind, locate, history)

    holds()
    assert removed > EXAMPLES[kind]
