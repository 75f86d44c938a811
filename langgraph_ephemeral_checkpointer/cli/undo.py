"""The commands of the trash, and the search for orphans."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from clypi import arg

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.backends import open_saver
from langgraph_ephemeral_checkpointer.cli.confirm import confirm
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, Executable
from langgraph_ephemeral_checkpointer.cli.output import number, row, to_json
from langgraph_ephemeral_checkpointer.cli.settings import backend_of
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.errors import TrashNotEmptyError
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.strategies.opening import TenantPlace
from langgraph_ephemeral_checkpointer.strategies.orphans import Orphan
from langgraph_ephemeral_checkpointer.strategies.trash import TrashedThread
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper

_TRASH_WIDTHS = (20, 20, 15, 8)
_ORPHAN_WIDTHS = (6, 8, 40)

# These commands expire nothing; a sweeper has to have a policy.
_NO_MATTER = TTLPolicy(idle_ttl_seconds=1)


@contextmanager
def _sweeper(
    backend: str,
    dsn: Dsn | None,
    console: Console,
    older_than: float | None = None,
    place: TenantPlace | None = None,
) -> Iterator[TTLSweeper]:
    with open_saver(backend, dsn, os.environ, console, place=place) as saver:
        if older_than is None:
            yield TTLSweeper(saver, _NO_MATTER)
        else:
            yield TTLSweeper(saver, _NO_MATTER, orphan_age_seconds=older_than)


class Setup(Executable):
    """Make the trash that 'sweep --grace' needs: tables and triggers beside the checkpoints."""

    backend: str | None = options.PLAIN_BACKEND
    dsn: Dsn | None = options.DSN
    remove: bool = arg(False, help="Remove what setup made; asks if the trash is not empty.")
    print: bool = arg(False, help="Only write the statements, for a migration of yours.")
    yes: bool = options.YES
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Set up, remove, or show."""
        with _sweeper(backend_of(self, os.environ), self.dsn, console) as sweeper:
            if self.print:
                for statement in sweeper.ddl():
                    console.line(f"{statement.strip()};\n")
                return DONE
            if not self.remove:
                sweeper.setup()
                console.message("the trash is set up")
                return DONE
            try:
                sweeper.teardown(force=self.yes)
            except TrashNotEmptyError:
                confirm("lose the threads that are still in the trash", yes=False, console=console)
                sweeper.teardown(force=True)
        console.message("the trash is removed")
        return DONE


class Trash(Executable):
    """Show the threads in the trash, or empty it for good."""

    backend: str | None = options.PLAIN_BACKEND
    dsn: Dsn | None = options.DSN
    empty: bool = arg(False, help="Erase everything in the trash now; asks first.")
    yes: bool = options.YES
    json: bool = arg(False, help="Write one JSON object per thread and line, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """List the trash or empty it."""
        with _sweeper(backend_of(self, os.environ), self.dsn, console) as sweeper:
            found = sweeper.trash()
            if self.empty:
                if found:
                    what = f"erase {number(len(found), 'thread')} in the trash for good"
                    confirm(what, yes=self.yes, console=console)
                gone = sweeper.empty_trash()
                console.line(
                    to_json({"erased": gone}) if self.json else f"erased {number(gone, 'thread')}"
                )
                return DONE
        if not self.json and found:
            console.line(
                row("DELETED", "KEPT UNTIL", "REASON", "ROWS", "THREAD", widths=_TRASH_WIDTHS)
            )
        for entry in found:
            console.line(
                to_json(dataclasses.asdict(entry)) if self.json else _trash_row(entry, console)
            )
        if not self.json:
            console.flush()
            console.message(f"{number(len(found), 'thread')} in the trash")
        return DONE


class Restore(Executable):
    """Put a thread back out of the trash, row by row as it was."""

    backend: str | None = options.PLAIN_BACKEND
    dsn: Dsn | None = options.DSN
    thread: str = arg(
        parser=str,
        help="The id of the thread; a word without --thread is taken for it too. Required.",
    )
    generation: int | None = arg(
        None,
        parser=options.count,
        help="Which one, where the trash has the thread several times (trash --json tells); the "
        "newest otherwise.",
    )
    debug: bool = options.DEBUG

    @classmethod
    def operand(cls) -> str | None:
        """Take a bare word for the thread."""
        return "thread"

    def execute(self, console: Console) -> int:
        """Restore one thread."""
        with _sweeper(backend_of(self, os.environ), self.dsn, console) as sweeper:
            entry = sweeper.restore(self.thread, generation=self.generation)
        console.line(f"restored {console.quote(entry.thread_id)}, {number(entry.rows, 'row')}")
        return DONE


class Orphans(Executable):
    """Show rows that no checkpoint leads to, left by runs whose thread was deleted."""

    backend: str | None = options.BACKEND
    dsn: Dsn | None = options.DSN
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    tenant: str | None = options.TENANT
    all_tenants: bool = options.ALL_TENANTS
    delete: bool = arg(False, help="Delete them.")
    older_than: float = arg(
        86_400.0,
        parser=options.duration,
        help="Only those that are older (default: 1d). A run may store its writes before their "
        "checkpoint, so keep it longer than your longest run.",
    )
    json: bool = arg(False, help="Write JSON, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Find orphans, or delete them."""
        backend = backend_of(self, os.environ)
        place = options.place_of(self, backend)
        with _sweeper(backend, self.dsn, console, self.older_than, place) as sweeper:
            if self.delete:
                gone = sweeper.delete_orphans()
                console.line(
                    to_json({"deleted": gone}) if self.json else f"deleted {number(gone, 'row')}"
                )
                return DONE
            found = sweeper.orphans()
        if not self.json and found:
            console.line(
                row("KIND", "ROWS", "CHECKPOINT OR CHANNEL", "THREAD", widths=_ORPHAN_WIDTHS)
            )
        for orphan in found:
            console.line(_orphan_json(orphan) if self.json else _orphan_row(orphan, console))
        if not self.json:
            console.flush()
            console.message(
                f"{number(sum(orphan.rows for orphan in found), 'row')} without checkpoint"
            )
        return DONE


def _trash_row(entry: TrashedThread, console: Console) -> str:
    return row(
        _time(entry.deleted_at),
        _time(entry.keep_until),
        entry.reason,
        str(entry.rows),
        console.quote(entry.thread_id),
        widths=_TRASH_WIDTHS,
    )


def _orphan_json(orphan: Orphan) -> str:
    told = dataclasses.asdict(orphan)
    if orphan.tenant is None:
        del told["tenant"]
    return to_json(told)


def _orphan_row(orphan: Orphan, console: Console) -> str:
    where = console.quote(orphan.thread_id)
    if orphan.checkpoint_ns:
        where = f"{where} in {console.quote(orphan.checkpoint_ns)}"
    if orphan.tenant is not None:
        where = f"{where} of {console.quote(orphan.tenant)}"
    return row(
        orphan.kind, str(orphan.rows), console.quote(orphan.name), where, widths=_ORPHAN_WIDTHS
    )


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # beyond any calendar
        return f"{seconds:.0f}"
