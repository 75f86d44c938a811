"""purge-messages: old exchanges leave storage."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from clypi import arg

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.backends import open_saver
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, FAILED, Executable
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.cli.output import number, row, to_json
from langgraph_ephemeral_checkpointer.cli.settings import backend_of
from langgraph_ephemeral_checkpointer.cli.tenants import every_tenant
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.errors import TenantRequiredError
from langgraph_ephemeral_checkpointer.messages.arguments import check_age
from langgraph_ephemeral_checkpointer.retention import PurgeResult, purge_messages

_WIDTHS = (12,)


class PurgeMessages(Executable):
    """Take exchanges that are too old out of every thread; the threads stay."""

    backend: str | None = options.BACKEND
    dsn: Dsn | None = options.DSN
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    tenant: str | None = options.TENANT
    all_tenants: bool = options.ALL_TENANTS
    older_than: float = arg(
        parser=options.duration,
        help="Exchanges all of whose messages are older go, such as 30d. Required.",
    )
    dry_run: bool = arg(
        False, help="Write nothing; show which threads a live purge would take messages from."
    )
    json: bool = options.JSON
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Purge once and write what was done."""
        try:
            age = check_age(self.older_than, "--older-than")
        except ValueError as error:
            raise UsageError(str(error)) from error
        backend = backend_of(self, os.environ)
        place = options.place_of(self, backend)
        incomplete = 0
        with open_saver(backend, self.dsn, os.environ, console, place=place) as saver:
            for tenant in tenants_of(saver):
                with console.progress(lambda: "purging old messages"):
                    result = purge(saver, tenant, age, dry_run=self.dry_run)
                for line in (
                    _json(result, tenant, console) if self.json else _lines(result, tenant, console)
                ):
                    console.line(line)
                incomplete += len({*result.errors, *result.untrimmed})
        if not self.json:
            console.flush()
            if self.dry_run:
                console.message("dry run: nothing was written")
        if not incomplete:
            return DONE
        console.failure(f"the purge is done, but not for all of {number(incomplete, 'thread')}")
        return FAILED


def tenants_of(saver: Any) -> list[str | None]:
    """The tenants to go through in turn; None stands for what the saver means by itself.

    Args:
        saver: A saver. One for every tenant is a tenant saver that has none of its own.

    Raises:
        CommandError: It is one for every tenant, and the role does not see all of them.
    """
    if not hasattr(saver, "tenant_scope"):
        return [None]
    try:
        saver.current_tenant()
    except TenantRequiredError:
        return [*every_tenant(saver)]
    return [None]


def purge(saver: Any, tenant: str | None, age: Any, *, dry_run: bool) -> PurgeResult:
    """Purge what a saver has of one tenant."""
    if tenant is None:
        return purge_messages(saver, age, dry_run=dry_run)
    with saver.tenant_scope(tenant):
        return purge_messages(saver, age, dry_run=dry_run)


def _json(result: PurgeResult, tenant: str | None, console: Console) -> Iterator[str]:
    told = dataclasses.asdict(result)
    for name in ("errors", "untrimmed"):
        told[name] = {key: console.redact(text) for key, text in told[name].items()}
    yield to_json(told if tenant is None else {"tenant": tenant, **told})


def _lines(result: PurgeResult, tenant: str | None, console: Console) -> Iterator[str]:
    if tenant is not None:
        yield f"tenant {console.quote(tenant)}"
    reported = (result.kept, result.untrimmed, result.errors)
    if result.purged_thread_ids or any(reported):
        yield row("ACTION", "THREAD", widths=_WIDTHS)
    purged = "would purge" if result.dry_run else "purged"
    for thread_id in result.purged_thread_ids:
        yield _row(console, purged, "red", thread_id)
    for action, style, why in zip(
        ("kept", "not trimmed", "failed"), ("yellow", "yellow", "red"), reported, strict=True
    ):
        for thread_id, reason in why.items():
            yield _row(console, action, style, thread_id, reason)
    yield (
        f"{purged} {number(result.message_count, 'message')} "
        f"from {len(result.purged_thread_ids)} of {number(result.thread_count, 'thread')}, "
        f"{number(result.row_count, 'row')}; {result.duration_seconds:.2f} s"
    )


def _row(console: Console, action: str, style: str, thread_id: str, why: str = "") -> str:
    note = f"  ({console.redact(why)})" if why else ""
    painted = console.paint(action, style) + " " * (_WIDTHS[0] - len(action))
    return row(painted, console.quote(thread_id) + note, widths=(0,))
