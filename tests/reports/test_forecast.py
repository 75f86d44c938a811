"""status --forecast: what an idle limit would take, on every backend, without decoding."""

from __future__ import annotations

import json
import time

import pytest

from langgraph_ephemeral_checkpointer import (
    AsyncRequiredError,
    PolicyOverride,
    TTLPolicy,
    aforecast,
    forecast,
)
from tests.support import backends
from tests.support.program import HOUR, run

DAY = 86_400.0


async def look(backend, *args, **options):
    if backend.colour == "sweep":
        return forecast(backend.saver, *args, **options)
    return await aforecast(backend.saver, *args, **options)


@pytest.mark.parametrize("backend", backends.ONE_EACH, indirect=True, ids="-".join)
async def test_each_limit_takes_what_a_sweep_with_it_would(backend):
    now = time.time()
    for days in (0, 2, 8, 40, 100, 400):
        await backend.put(f"{days}d", now - days * DAY, text="x" * 1000)
    found = await look(backend, clock=lambda: now)
    assert [take.threads for take in found.takes] == [5, 4, 3, 2]
    assert (found.threads, found.idle) == (6, [1, 0, 1, 1, 1, 1, 1])
    if backend.kind.startswith("foreign"):
        assert {take.bytes for take in found.takes} == {None}
    else:
        sizes = [take.bytes for take in found.takes]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] > 100 * 2
    for take in found.takes:
        policy = TTLPolicy(idle_ttl_seconds=take.ttl_seconds)
        dry = await backend.sweep(policy, dry_run=True, clock=lambda: now)
        assert len(dry.deleted_thread_ids) == take.threads


@pytest.mark.parametrize(
    "backend", [("sqlite", "sweep"), ("memory", "sweep")], indirect=True, ids="-".join
)
async def test_bytes_are_those_that_are_stored(backend):
    now = time.time()
    await backend.put("small", now - 2 * DAY)
    small = (await look(backend, [DAY])).takes[0].bytes
    await backend.put("large", now - 2 * DAY, text="x" * 50_000)
    both = (await look(backend, [DAY])).takes[0].bytes
    assert 2 * small + 50_000 < both + 200 < 2 * small + 52_000


@pytest.mark.parametrize("backend", [("memory", "sweep")], indirect=True, ids="-".join)
async def test_what_no_limit_takes_is_counted(backend):
    await backend.put("ageless", "no uuid", ts=None)
    await backend.put("legal", time.time() - 2 * DAY)
    found = await look(
        backend,
        [HOUR],
        policy_resolver=lambda thread_id: (
            PolicyOverride.EXEMPT if thread_id == "legal" else PolicyOverride.USE_DEFAULT
        ),
    )
    assert (found.threads, found.unknown, found.exempt) == (2, 1, 1)
    assert found.takes[0].threads == 0
    with pytest.raises(ValueError, match="a limit"):
        forecast(backend.saver, [0])


@pytest.mark.parametrize("backend", [("aiosqlite", "asweep")], indirect=True, ids="-".join)
async def test_an_asynchronous_saver_is_told_apart(backend):
    with pytest.raises(AsyncRequiredError, match="aforecast"):
        forecast(backend.saver)


def test_the_command_draws_a_table_and_a_histogram(call, file):
    answer = call("status", "--backend", "sqlite", "--dsn", str(file), "--forecast")
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].split() == ["IDLE", "LIMIT", "THREADS", "SHARE", "BYTES"]
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["1d", "0", "0%"], ["7d", "0", "0%"], ["30d", "0", "0%"], ["90d", "0", "0%"],
    ]  # fmt: skip
    bars = [line for line in lines if line.endswith("#")]
    assert [bar.split()[:3] for bar in bars] == [["<", "1h", "1"], ["<", "1d", "2"]]
    assert bars[1].count("#") == 2 * bars[0].count("#")
    assert "no limit takes 1 interrupted, 1 of unknown age" in lines[-1]


def test_the_limits_may_be_given(call, file):
    words = ["status", "--backend", "sqlite", "--dsn", str(file), "--forecast", "--json"]
    answer = call(*words, "--at", "1h,150m, 5d")
    found = json.loads(answer.out)
    assert [(take["ttl_seconds"], take["threads"]) for take in found["takes"]] == [
        (3600, 1), (9000, 1), (432000, 0),
    ]  # fmt: skip
    assert found["takes"][0]["bytes"] > 100
    assert found["idle"][-1] == {"below_seconds": None, "threads": 0}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--at", "1d"], "--at has no meaning without --forecast"),
        (["--forecast", "--expired"], "no meaning with --forecast"),
        (["--forecast", "--at", "soon"], "no duration"),
        (["--forecast", "--at", "1d,,2d"], "no duration"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(call, file, more, said):
    words = ["status", "--backend", "sqlite", "--dsn", str(file), "--idle-ttl", "1h"]
    answer = call(*words, *more)
    assert answer.status == 2
    assert said in answer.err


def test_it_runs_as_a_process_on_postgres(pg_dsn, tmp_path):
    from langgraph.checkpoint.postgres import PostgresSaver

    from tests.support.program import put

    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        put(saver, ["a", "b"], age_seconds=10 * DAY)
    words = ["status", "--backend", "postgres", "--forecast", "--json"]
    answer = run(*words, cwd=tmp_path, LGEC_DSN=pg_dsn)
    found = json.loads(answer.stdout)
    assert [take["threads"] for take in found["takes"]] == [2, 2, 0, 0]
    assert found["takes"][0]["bytes"] > 0


def test_nothing_is_written(file):
    before = file.read_bytes()
    done = run("status", "--backend", "sqlite", "--dsn", str(file), "--forecast", cwd=file.parent)
    assert done.returncode == 0
    assert file.read_bytes() == before
