"""The commands."""

from __future__ import annotations

import os

from clypi import Command, arg

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.backends import open_saver
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, FAILED, PROGRAM, Executable
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.cli.output import (
    Counts,
    status_header,
    status_json,
    status_row,
    sweep_json,
    sweep_lines,
)
from langgraph_ephemeral_checkpointer.cli.secrets import Dsn
from langgraph_ephemeral_checkpointer.cli.undo import Orphans, Restore, Setup, Trash
from langgraph_ephemeral_checkpointer.status import thread_statuses
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper


class Status(Executable):
    """Show every thread: idle time, age, checkpoints, and by which rule it is expired."""

    backend: str = options.BACKEND
    dsn: Dsn | None = options.DSN
    idle_ttl: float | None = options.IDLE_TTL
    hard_age_ttl: float | None = options.HARD_AGE_TTL
    max_checkpoints: int | None = options.MAX_CHECKPOINTS
    interrupted_ttl: float | None = options.INTERRUPTED_TTL
    expired: bool = arg(False, help="Show only threads that a sweep would delete.")
    limit: int | None = arg(
        None, parser=options.count, help="Show at most N threads, in the order of the storage."
    )
    json: bool = arg(False, help="Write one JSON object per thread and line, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Write a line for each thread as it is read."""
        policy = options.policy_of(self)
        counts = Counts()
        with open_saver(self.backend, self.dsn, os.environ, console) as saver:
            statuses = thread_statuses(saver, policy, expired_only=self.expired)
            if not self.json:
                console.line(status_header())
            for status in statuses:
                if counts.threads == self.limit:
                    console.message(f"stopped at --limit {self.limit}; there are more threads")
                    break
                counts.add(status)
                console.line(status_json(status) if self.json else status_row(status, console))
                if console.output_closed:
                    return DONE
        if not self.json:
            console.flush()  # the sum comes after the table also where both are one terminal
            console.message(counts.text())
        return DONE


class Sweep(Executable):
    """Delete expired threads, and trim the others where --max-checkpoints is given."""

    backend: str = options.BACKEND
    dsn: Dsn | None = options.DSN
    dry_run: bool = arg(
        False, help="Delete nothing and write nothing; show what a live sweep would do."
    )
    idle_ttl: float | None = options.IDLE_TTL
    hard_age_ttl: float | None = options.HARD_AGE_TTL
    max_checkpoints: int | None = options.MAX_CHECKPOINTS
    interrupted_ttl: float | None = options.INTERRUPTED_TTL
    limit: int | None = arg(
        None,
        parser=options.count,
        help="Delete at most N threads, longest overdue first; the next sweep goes on.",
    )
    batch_size: int = arg(
        500, parser=options.count, help="Threads per delete transaction (default: 500)."
    )
    coordinate: bool = arg(
        False,
        help="Do nothing while another instance sweeps the same tables with this option "
        "(Postgres only).",
    )
    grace: float | None = arg(
        None,
        parser=options.duration,
        help="Keep what is deleted in the trash for this long; needs 'setup' once.",
    )
    no_trash: bool = arg(
        False,
        help="Erase on the spot, with what the trash has of the same threads, whatever --grace "
        "says.",
    )
    json: bool = arg(False, help="Write the result as one JSON object, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Sweep once and write what was done."""
        policy = options.policy_of(self)
        deleted = 0

        def note(_thread_id: str, _reason: str) -> None:
            nonlocal deleted
            deleted += 1

        with open_saver(self.backend, self.dsn, os.environ, console) as saver:
            try:
                sweeper = TTLSweeper(
                    saver,
                    policy,
                    enable_coordination=self.coordinate,
                    on_after_delete=note,
                    batch_size=self.batch_size,
                    max_deletes_per_sweep=self.limit,
                    grace_seconds=self.grace,
                )
            except ValueError as error:  # a rule that this backend cannot follow
                raise UsageError(str(error)) from error
            try:
                with console.progress(lambda: f"sweeping, {deleted} threads deleted"):
                    result = sweeper.sweep(dry_run=self.dry_run, no_trash=self.no_trash)
            except KeyboardInterrupt:
                console.message(f"{deleted} threads were deleted; the batch in progress was undone")
                raise
        if self.json:
            console.line(sweep_json(result, console))
        else:
            for line in sweep_lines(result, console):
                console.line(line)
            console.flush()
        if result.lock_held_elsewhere:
            console.message("another instance is sweeping these tables; nothing was done")
        if result.dry_run and not self.json:
            console.message("dry run: nothing was written")
        if not result.errors:
            return DONE
        whole = result.errors.get("")
        console.failure(
            f"the sweep stopped early: {whole}"
            if whole
            else f"the sweep is done, but not for {len(result.errors)} of its threads"
        )
        return FAILED


class Program(Command):
    """Retention for LangGraph checkpointers: show expired threads, and delete them."""

    subcommand: Status | Sweep | Setup | Trash | Restore | Orphans

    @classmethod
    def prog(cls) -> str:
        """Name the program as it is installed."""
        return PROGRAM

    @classmethod
    def epilog(cls) -> str:
        """Give what follows the list of commands."""
        return (
            "'COMMAND --help' tells the options of a command, --version the version.\n"
            "Exit status: 0 done, 1 failed or partly failed, 2 wrong usage, 130 interrupted."
        )
