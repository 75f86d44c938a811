"""Memory grows with the batch, not with the number of threads."""

from __future__ import annotations

import tracemalloc

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper
from tests.support.aging import uuid6_at

DAY = 86400.0
NOW = 1_750_000_000.0


def _peak(path, threads, **options):
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        saver.conn.executemany(
            "INSERT INTO checkpoints VALUES (?, '', ?, NULL, 'msgpack', x'80', x'7b7d')",
            ((f"t{n:06}", uuid6_at(NOW - 3600 - n)) for n in range(threads)),
        )
        saver.conn.commit()
        sweeper = TTLSweeper(
            saver, TTLPolicy(idle_ttl_seconds=DAY), clock=lambda: NOW, batch_size=100, **options
        )
        sweeper.sweep(dry_run=True)
        tracemalloc.start()
        try:
            result = sweeper.sweep()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert result.active_thread_count == threads
    return peak


@pytest.mark.parametrize("options", [{}, {"max_deletes_per_sweep": 100}], ids=["all", "limited"])
def test_a_scan_of_many_threads_needs_no_more_than_one_of_few(tmp_path, monkeypatch, options):
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.sweeps.paging.PAGE_SIZE", 500)
    few = _peak(tmp_path / "few.db", 2_000, **options)
    many = _peak(tmp_path / "many.db", 20_000, **options)
    assert many < 1.5 * few
