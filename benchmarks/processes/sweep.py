"""One sweep by whichever package is installed under our import name, timed.

    python sweep.py '{"backend": "postgres", "where": DSN, "idle_ttl_seconds": 86400}'

Prints JSON: when ``sweep()`` began and the seconds it took, how many threads were deleted and
checkpoints pruned, and by how many bytes the process grew at its peak (null where that cannot
be read: elsewhere than on Linux). The backend ``memory`` fills its saver first: ``threads``,
``checkpoints``, ``expired_share``.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import langgraph_ephemeral_checkpointer as package


def open_saver(what: dict[str, Any]) -> AbstractContextManager[Any]:
    """Open the saver that is swept."""
    if what["backend"] == "postgres":
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver.from_conn_string(what["where"])
    if what["backend"] == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        return SqliteSaver.from_conn_string(what["where"])
    # By path: "benchmarks" is not importable where the namesake is installed.
    spec = importlib.util.spec_from_file_location(
        "data", Path(__file__).resolve().parent.parent / "data.py"
    )
    assert spec is not None
    assert spec.loader is not None
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    return nullcontext(
        data.filled_memory(what["threads"], what["checkpoints"], what["expired_share"])
    )


def memory(field: str) -> int:
    """Read a line of the process's status, in bytes."""
    try:
        found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def main() -> None:
    """Sweep once and print what it took."""
    what = json.loads(sys.argv[1])
    sweeper_class: Any = getattr(package, "TTLSweeper", None) or package.Sweeper
    rules = {
        key: what[key] for key in ("idle_ttl_seconds", "max_checkpoints_per_thread") if key in what
    }
    with open_saver(what) as saver:
        sweeper = sweeper_class(saver, package.TTLPolicy(**rules), **what.get("options", {}))
        if hasattr(saver, "setup"):
            saver.setup()
        before = memory("VmRSS")
        if Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        began, started = time.time(), time.perf_counter()
        result = sweeper.sweep()
        seconds = time.perf_counter() - started
        peak = memory("VmHWM")
    if errors := getattr(result, "errors", None):
        raise SystemExit(f"the sweep had errors: {dict(list(errors.items())[:3])}")
    answer = {
        "began": began,
        "seconds": seconds,
        "deleted": len(result.deleted_thread_ids),
        "pruned": getattr(result, "pruned_checkpoint_count", 0),
        "grown": max(0, peak - before) if peak else None,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
