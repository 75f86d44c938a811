"""Sweeps in processes of their own: ours, and the namesake's in a virtual environment of its own.

The namesake on PyPI has our import name, so it cannot be in the same environment. Both run
``processes/sweep.py`` under the same Python, with the same versions of LangGraph's savers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAMESAKE = "langgraph-ephemeral-checkpointer==0.0.2"
PATIENCE = 1_200.0
"""Seconds after which a namesake's process is stopped; what it took counts as its time."""

_HERE = Path(__file__).resolve().parent
_SAME = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-postgres",
         "langgraph-checkpoint-sqlite", "ormsgpack")  # fmt: skip


@cache
def namesake_python() -> str:
    """Make the namesake's environment unless it is there, and give its interpreter."""
    same = [f"{name}=={version(name)}" for name in _SAME]
    psycopg = f"psycopg[binary,pool]=={version('psycopg')}"
    wanted = "\n".join([sys.version, NAMESAKE, psycopg, *same])
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_home / "langgraph-ephemeral-checkpointer-benchmarks" / "namesake"
    marker, python = folder / "installed", folder / "bin" / "python"
    if not marker.exists() or marker.read_text() != wanted:
        print(f"installing {NAMESAKE} in {folder}", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, NAMESAKE, psycopg, *same], check=True)
        marker.write_text(wanted)
    return str(python)


def sweep(**what: Any) -> dict[str, Any]:
    """Sweep once with this package; see ``processes/sweep.py`` for arguments and answer."""
    return _run(sys.executable, {"PYTHONPATH": str(_HERE.parent)}, what)


def namesake_sweep(*, patience: float = PATIENCE, **what: Any) -> dict[str, Any]:
    """Sweep once with the namesake; otherwise as :func:`sweep`.

    Raises:
        subprocess.TimeoutExpired: After ``patience`` seconds.
    """
    return _run(namesake_python(), {}, what, patience)


def _run(
    python: str,
    environment: dict[str, str],
    what: dict[str, Any],
    timeout: float | None = None,
) -> dict[str, Any]:
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, str(_HERE / "processes" / "sweep.py"), json.dumps(what)],
        env=inherited | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=timeout,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
