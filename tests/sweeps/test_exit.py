"""A process that sweeps ends when its work is done, also where nobody called stop()."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import asyncio, sys
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper

    path, how = sys.argv[1:]

    async def use(saver):
        swept = asyncio.Event()
        sweeper = TTLSweeper(
            saver, TTLPolicy(60), on_sweep_complete=lambda _: swept.set()
        )
        if how == "once":
            await sweeper.asweep()
        elif how == "started":
            await sweeper.start(60)
            await swept.wait()
        else:
            sweeping = asyncio.create_task(sweeper.asweep())
            await asyncio.sleep(0)
            sweeping.cancel()

    async def main():
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            await use(saver)
        with SqliteSaver.from_conn_string(path) as saver:
            await use(saver)

    asyncio.run(main())
    print("ended")
"""


@pytest.mark.parametrize("how", ["once", "started", "cancelled"])
def test_a_process_ends_within_seconds(tmp_path, how):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "checkpoints.db"), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    # Nothing but, perhaps, the log of a background sweep that found its connection closed.
    assert "never awaited" not in done.stderr
    assert "never retrieved" not in done.stderr
