"""A sweep as a task that something else calls on time: Celery beat, APScheduler, cron.

    THREADS_FILE=threads.db RULES=ephemeral.toml python examples/scheduled_task.py

With Celery::

    from celery import Celery
    from examples.scheduled_task import sweep

    app = Celery("agents")
    app.task(name="sweep")(sweep)
    app.conf.beat_schedule = {"sweep": {"task": "sweep", "schedule": 900.0}}

A task opens its saver itself: workers fork, and a connection must not be shared across a
fork. Two that run at the same time share the threads out between them.
"""

from __future__ import annotations

import json
import os
import sys

from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer import TTLSweeper, policy_from_config


def sweep() -> dict[str, int]:
    """Sweep once, by the rules file that the environment names."""
    policy, resolver = policy_from_config(os.environ["RULES"])
    with SqliteSaver.from_conn_string(os.environ["THREADS_FILE"]) as saver:
        sweeper = TTLSweeper(
            saver,
            policy,
            policy_resolver=resolver,
            max_deletes_per_sweep=10_000,  # a bounded task; the next one goes on
            max_delete_percent=50,
        )
        result = sweeper.sweep()
    if result.errors:
        # The scheduler should see a failed task, with what went wrong.
        raise RuntimeError(f"the sweep has errors: {result.errors}")
    return {
        "deleted": len(result.deleted_thread_ids),
        "kept": len(result.kept),
        "left": result.deferred_count,
    }


if __name__ == "__main__":
    json.dump(sweep(), sys.stdout)
