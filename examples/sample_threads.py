"""Make ``support.sqlite``, the file that the examples of the README work on."""

import time
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.testing import save_thread

DAY = 24 * 3600
AGES = {"anna": 40 * DAY, "ben": 9 * DAY, "carla": 12 * DAY, "dora": 2 * DAY, "emil": 3600}

for beside in ("", "-wal", "-shm"):
    Path(f"support.sqlite{beside}").unlink(missing_ok=True)
with SqliteSaver.from_conn_string("support.sqlite") as saver:
    for thread_id, age in AGES.items():
        save_thread(saver, thread_id, [time.time() - age - 2], waiting=thread_id == "carla")
