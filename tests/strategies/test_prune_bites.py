"""The property of test_property fails as soon as one of the rules is switched off."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from langgraph_ephemeral_checkpointer.decisions import survivors
from langgraph_ephemeral_checkpointer.strategies.postgres import prune as postgres
from tests.support.features import HAS_DELTA, HAS_SUBGRAPH_REPLAY
from tests.support.prune_histories import check, histories


def bites(kind, locate, strategy, switched_off, most=200):
    """The property finds a difference, and none in the same history with the rule on."""
    seen = []

    @settings(
        max_examples=most,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(strategy)
    def holds(history):
        seen.append(history)
        check(kind, locate, history)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*switched_off)
        with pytest.raises(AssertionError):
            holds()
    check(kind, locate, seen[-1])


BACKENDS = ["memory", "sqlite", "postgres"]


if HAS_DELTA:

    @pytest.mark.parametrize("kind", BACKENDS)
    def test_without_the_delta_rule(kind, locate):
        off = (survivors, "delta_ancestors", lambda ids, namespace: set())
        bites(kind, locate, histories(("plain",), (2, 5, 1000)), off)


@pytest.mark.parametrize("kind", BACKENDS)
def test_without_the_rule_for_calls(kind, locate):
    off = (survivors, "call_stays", lambda rows, roots, kept: False)
    bites(kind, locate, histories(("call ask", "call", "keep deep"), (1,)), off)


def test_without_the_calls_that_a_persistent_subgraph_waits_in(locate):
    stays = survivors.call_stays
    off = (survivors, "call_stays", lambda rows, roots, kept: stays(rows, roots, {"": kept[""]}))
    bites("memory", locate, histories(("keep deep",), (1,)), off)


if HAS_SUBGRAPH_REPLAY:

    @pytest.mark.parametrize("kind", BACKENDS)
    def test_without_the_rule_for_persistent_subgraphs(kind, locate):
        off = (survivors, "replay_rows", lambda ids, bounds: {max(ids)})
        bites(kind, locate, histories(("keep", "keep ask"), (1,)), off)

    def test_without_the_parent_of_an_update_as_the_bound(locate):
        off = (survivors, "replay_bounds", lambda newest: {row.id for row in newest})
        bites("memory", locate, histories(("keep", "keep ask"), (1,)), off)


def test_without_the_rule_for_blobs_on_memory(locate):
    off = (survivors, "freed_versions", lambda gone, kept: set(gone))
    bites("memory", locate, histories(), off)


def test_without_the_rule_for_blobs_on_postgres(locate):
    freed = postgres.freed_blobs
    off = (postgres, "freed_blobs", lambda in_order: freed(in_order).partition("EXCEPT")[0] + ")")
    bites("postgres", locate, histories(), off)
