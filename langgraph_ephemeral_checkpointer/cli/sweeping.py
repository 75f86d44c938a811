"""The command that sweeps once."""

from __future__ import annotations

import os

from clypi import arg

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, FAILED, Executable
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.cli.output import sweep_json, sweep_lines
from langgraph_ephemeral_checkpointer.cli.settings import settings_of
from langgraph_ephemeral_checkpointer.cli.tenants import every_tenant
from langgraph_ephemeral_checkpointer.cli.upkeep import compact_and_tell
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.result import SweepResult


class Sweep(Executable):
    """Delete expired threads, and trim the others where --max-checkpoints is given."""

    backend: str | None = options.BACKEND_OR_FILE
    dsn: Dsn | None = options.DSN
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    tenant: str | None = options.TENANT
    all_tenants: bool = options.ALL_TENANTS
    config: str | None = options.CONFIG
    resolver: str | None = options.RESOLVER
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
    max_delete_percent: float | None = options.MAX_DELETE_PERCENT
    force: bool = arg(False, help="Sweep whatever --max-delete-percent or the rules file says.")
    batch_size: int | None = options.BATCH_SIZE
    coordinate: bool = options.COORDINATE
    grace: float | None = options.GRACE
    no_trash: bool = arg(
        False,
        help="Erase on the spot, with what the trash has of the same threads, whatever --grace "
        "says.",
    )
    audit_log: str | None = options.AUDIT_LOG
    hash_ids: bool = options.HASH_IDS
    compact: bool = arg(
        False, help="Afterwards give the free space of an SQLite file back to the disk."
    )
    json: bool = arg(False, help="Write the result as one JSON object, for machines.")
    log_format: str = options.LOG_FORMAT
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Sweep once and write what was done."""
        console.structured = self.log_format == "json"
        settings = settings_of(self, os.environ)
        if self.compact and settings.backend != "sqlite":
            raise UsageError("--compact is for --backend sqlite; Postgres has autovacuum")
        deleted = 0

        def note(_thread_id: str, _reason: str) -> None:
            nonlocal deleted
            deleted += 1

        with settings.open(os.environ, console) as saver:
            if self.all_tenants:
                every_tenant(saver)  # says what the command line can do about it
            sweeper = settings.sweeper_for(saver, on_after_delete=note)
            try:
                with console.progress(lambda: f"sweeping, {deleted} threads deleted"):
                    result = sweeper.sweep(dry_run=self.dry_run, no_trash=self.no_trash)
            except KeyboardInterrupt:
                console.message(f"{deleted} threads were deleted; the batch in progress was undone")
                raise
            status = self._tell(result, console)
            if self.compact and not self.dry_run and status == DONE:
                compact_and_tell(saver, console)
        return status

    def _tell(self, result: SweepResult, console: Console) -> int:
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
        failed = sum(len(part.errors) for part in result.by_tenant.values() or [result])
        if result.refused:
            console.failure(f"the sweep was {whole}")
        elif whole:
            console.failure(f"the sweep stopped early: {whole}")
        else:
            console.failure(f"the sweep is done, but not for {failed} of its threads")
        return FAILED
