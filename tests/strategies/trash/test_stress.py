"""Real graphs on sixty threads from eight workers against a sweeper in a tight loop."""

from __future__ import annotations

import pytest

from benchmarks.stress_undo import DURABILITIES, stress


@pytest.fixture
def run(backend):
    def run(**options):
        with backend.open_many(10) as saver:
            return stress(saver, backend.sql, unhook=backend.unhook, **options)

    return run


@pytest.mark.parametrize("durability", DURABILITIES)
def test_no_run_ends_with_half_a_thread(run, durability):
    tally = run(seconds=5, durability=durability)
    assert tally.errors == {}
    assert tally.runs > 20
    assert tally.swept > 0
    assert tally.torn == 0, tally


def test_no_run_ends_with_half_a_thread_where_nearly_every_one_is_swept_meanwhile(run):
    tally = run(seconds=4, durability="exit", ttl=0.2, think=0.3)
    assert tally.errors == {}
    assert tally.swept > 0
    assert tally.torn == 0, tally


def test_without_the_triggers_the_same_runs_do(run):
    """Which run meets which sweep is chance, so it is tried for a while."""
    options = {"durability": "exit", "ttl": 0.2, "think": 0.3, "trigger": False}
    assert any(run(seconds=4, **options).torn for _ in range(8))
