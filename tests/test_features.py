"""Which features are there follows from the installed versions, so none is lost unnoticed."""

from __future__ import annotations

from importlib.metadata import version

from tests.support import features


def _release(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(name).split(".")[:2])


def test_new_versions_of_langgraph_have_delta_channels():
    assert (_release("langgraph") >= FIRST_WITH_DELTA) == features.HAS_DELTA


def test_new_versions_of_the_savers_can_prune():
    assert (_release("langgraph-checkpoint") >= FIRST_WITH_PRUNE) == features.HAS_UPSTREAM_PRUNE


def test_what_goes_with_new_versions_of_langgraph_is_there_too():
    if _release("langgraph") >= FIRST_WITH_DELTA:
        assert features.HAS_OVERWRITE
        assert features.HAS_SUBGRAPH_REPLAY
        assert features.HAS_CONFORMANCE
        assert features.HAS_AGENTS


FIRST_WITH_DELTA = (1, 2)
FIRST_WITH_PRUNE = (4, 1)
