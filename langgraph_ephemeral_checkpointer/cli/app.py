"""The program and its commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from clypi import Command, arg

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, PROGRAM, Executable
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.cli.forecasting import forecast_json, forecast_lines
from langgraph_ephemeral_checkpointer.cli.output import (
    Counts,
    status_header,
    status_json,
    status_row,
)
from langgraph_ephemeral_checkpointer.cli.purge import PurgeMessages
from langgraph_ephemeral_checkpointer.cli.running import Run
from langgraph_ephemeral_checkpointer.cli.settings import Settings, settings_of
from langgraph_ephemeral_checkpointer.cli.sweeping import Sweep
from langgraph_ephemeral_checkpointer.cli.tenants import (
    Ddl,
    ForgetTenant,
    MigrateFromPostgres,
    Tenants,
    Vacuum,
    every_tenant,
)
from langgraph_ephemeral_checkpointer.cli.undo import Orphans, Restore, Setup, Trash
from langgraph_ephemeral_checkpointer.cli.upkeep import Check, Compact
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.reports.forecast import DEFAULT_TTLS, forecast
from langgraph_ephemeral_checkpointer.reports.status import ThreadStatus, thread_statuses

__all__ = ["Program", "Status", "Sweep"]


class Status(Executable, takes=options.RULES):
    """Show every thread: idle time, age, checkpoints, and by which rule it is expired."""

    backend: str | None = options.BACKEND_OR_FILE
    dsn: Dsn | None = options.DSN
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    tenant: str | None = options.TENANT
    all_tenants: bool = options.ALL_TENANTS
    config: str | None = options.CONFIG
    resolver: str | None = options.RESOLVER
    expired: bool = arg(False, help="Show only threads that a sweep would delete.")
    limit: int | None = arg(
        None, parser=options.count, help="Show at most N threads, in the order of the storage."
    )
    forecast: bool = arg(
        False,
        help="Instead of threads, show how many of them and how many bytes an idle limit would "
        "take; no rule is needed.",
    )
    at: tuple[float, ...] | None = arg(
        None,
        parser=options.durations,
        help="The limits to forecast, with commas between them (default: 1d,7d,30d,90d).",
    )
    json: bool = arg(False, help="Write one JSON object per thread and line, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Write a line for each thread as it is read."""
        settings = settings_of(self, os.environ, needs_rules=not self.forecast)
        if self.forecast:
            return self._forecast(settings, console)
        if self.at is not None:
            raise UsageError("--at has no meaning without --forecast")
        counts = Counts()
        with settings.open(os.environ, console) as saver:
            policy, resolver = settings.policy_for(saver)
            statuses = partial(
                thread_statuses,
                saver,
                policy,
                policy_resolver=resolver,
                expired_only=self.expired,
            )
            tenants = every_tenant(saver) if self.all_tenants else [None]
            if not self.json:
                console.line(status_header(self.all_tenants))
            for tenant, status in _each(saver, tenants, statuses):
                if counts.threads == self.limit:
                    console.message(f"stopped at --limit {self.limit}; there are more threads")
                    break
                counts.add(status)
                console.line(
                    status_json(status, tenant)
                    if self.json
                    else status_row(status, console, tenant)
                )
                if console.output_closed:
                    return DONE
        if not self.json:
            console.flush()  # the sum comes after the table also where both are one terminal
            console.message(counts.text())
        return DONE

    def _forecast(self, settings: Settings, console: Console) -> int:
        if self.expired or self.limit is not None:
            raise UsageError("--expired and --limit have no meaning with --forecast")
        if self.all_tenants:
            raise UsageError("--forecast is of one tenant: give --tenant NAME")
        with settings.open(os.environ, console) as saver:
            _, resolver = settings.policy_for(saver)
            with console.progress(lambda: "looking at every thread"):
                found = forecast(saver, self.at or DEFAULT_TTLS, policy_resolver=resolver)
        if self.json:
            console.line(forecast_json(found))
        else:
            for line in forecast_lines(found):
                console.line(line)
        return DONE


def _each(
    saver: Any, tenants: Sequence[str | None], statuses: Callable[[], Iterator[ThreadStatus]]
) -> Iterator[tuple[str | None, ThreadStatus]]:
    """Read the threads of each tenant, in its scope; None is the one that the saver has."""
    for tenant in tenants:
        with nullcontext() if tenant is None else saver.tenant_scope(tenant):
            for status in statuses():
                yield tenant, status


class Program(Command):
    """Retention for LangGraph checkpointers: show expired threads, and delete them."""

    subcommand: (
        Status
        | Sweep
        | Run
        | Check
        | Compact
        | PurgeMessages
        | Setup
        | Trash
        | Restore
        | Orphans
        | Tenants
        | ForgetTenant
        | Vacuum
        | Ddl
        | MigrateFromPostgres
    )

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
