"""Hosts whose clocks differ, in turn on one thread: ids of checkpoints are times."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from tests.support.program import ROOT, environment
from tests.support.tenant_graphs import HAS_DELTA, config, delta_graph, plain_graph

KINDS = ["plain", *(["delta"] if HAS_DELTA else [])]
GRAPHS: dict[str, Any] = {"plain": plain_graph, "delta": delta_graph}
STEPS = {"plain": [*"abcd", "z"], "delta": ["a", "b"]}

# A turn on a host whose clock is behind, from before anything there has asked it.
_TURN = """
import sys, time
behind = float(sys.argv[1])
now, now_ns = time.time, time.time_ns
time.time = lambda: now() - behind
time.time_ns = lambda: now_ns() - int(behind * 1e9)
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from tests.support.tenant_graphs import config, delta_graph, plain_graph
kind, text, dsn, schema, keep, durability = sys.argv[2:]
graph = {"plain": plain_graph, "delta": delta_graph}[kind]
with TenantPostgresSaver.from_conn_string(
    dsn, schema=schema, keep_checkpoints=int(keep) or None
) as saver:
    graph(saver).invoke({"log": [text]}, config("t"), durability=durability)
"""


def _turn_elsewhere(behind: float, kind: str, text: str, *more: str) -> Any:
    words = [sys.executable, "-c", _TURN, str(behind), kind, text, *more]
    return subprocess.run(
        words, capture_output=True, text=True, env=environment(), cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    ("keep", "durability"), [(0, "sync"), (1, "sync"), (2, "sync"), (1, "exit")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_on_a_host_whose_clock_is_behind_is_the_newest(
    make_saver: Any, app_dsn: str, schema: str, kind: str, keep: int, durability: str
) -> None:
    """And nothing is lost, by neither, in two turns of each."""
    expected = []
    with make_saver(keep_checkpoints=keep or None) as saver:
        graph = GRAPHS[kind](saver)
        for turn in range(2):
            graph.invoke({"log": [f"here {turn}"]}, config("t"), durability=durability)
            done = _turn_elsewhere(5, kind, f"there {turn}", app_dsn, schema, str(keep), durability)
            assert (done.returncode, done.stderr) == (0, "")
            expected += [f"here {turn}", *STEPS[kind], f"there {turn}", *STEPS[kind]]
            assert graph.get_state(config("t")).values["log"] == expected
        ids = [one.config["configurable"]["checkpoint_id"] for one in saver.list(config("t"))]
        assert ids == sorted(ids, reverse=True)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_clock_that_is_far_behind_is_named_and_nothing_is_lost(
    make_saver: Any, app_dsn: str, schema: str, kind: str, keep: int
) -> None:
    """To follow it would date everything that the host saves."""
    with make_saver(keep_checkpoints=keep or None) as saver:
        graph = GRAPHS[kind](saver)
        graph.invoke({"log": ["here"]}, config("t"))
        done = _turn_elsewhere(3600, kind, "there", app_dsn, schema, str(keep), "sync")
        assert done.returncode == 1
        told = done.stderr.splitlines()[-1]
        assert "ClockBehindError" in told
        assert "clock" in told
        assert re.search(r"at least 3[56]\d\d s behind", told)
        assert "deleted" not in told
        assert graph.get_state(config("t")).values["log"] == ["here", *STEPS[kind]]
        graph.invoke({"log": ["again"]}, config("t"))
        expected = ["here", *STEPS[kind], "again", *STEPS[kind]]
        assert graph.get_state(config("t")).values["log"] == expected
