"""The command that sweeps once."""

from __future__ import annotations

import os
from collections.abc import Mapping

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


class Sweep(Executable, takes=options.SWEEPING):
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
    force: bool = arg(False, help="Sweep whatever --max-delete-percent or the rules file says.")
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

    @classmethod
    def renamed(cls) -> Mapping[str, str]:
        """Give --limit its new name, which the rules file and run have for it."""
        return {"--limit": "--max-deletes"}

    @classmethod
    def names_rules(cls) -> bool:
        """Name the rules before anything is deleted."""
        return True

    def execute(self, console: Console) -> int:
        """Sweep once and write what was done."""
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
            console.release(None if self.dry_run else settings.in_words(), event="rules")
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
