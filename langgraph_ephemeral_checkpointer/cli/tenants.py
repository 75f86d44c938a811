"""The commands that only a tenant saver has."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from clypi import arg

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.arguments import did_you_mean
from langgraph_ephemeral_checkpointer.cli.backends import (
    DSN_VARIABLE,
    known_dsn,
    open_saver,
    optional,
)
from langgraph_ephemeral_checkpointer.cli.confirm import confirm
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, FAILED, Executable
from langgraph_ephemeral_checkpointer.cli.failures import CommandError, UsageError
from langgraph_ephemeral_checkpointer.cli.output import number, row, to_json
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.errors import TenantRequiredError
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasTenants
from langgraph_ephemeral_checkpointer.strategies.opening import TenantPlace
from langgraph_ephemeral_checkpointer.strategies.registry import detect_strategy, storage_named

_DAY = 86_400
_WIDTHS = (12,)
_STORAGE = storage_named(options.TENANT_BACKEND)


def every_tenant(saver: Any) -> Sequence[str]:
    """List the tenants of a tenant saver.

    Raises:
        CommandError: The role does not see all of them.
    """
    try:
        found: Any = _with_tenants(saver).tenants()
    except TenantRequiredError as error:
        raise CommandError(
            "this role does not see every tenant: connect as the one of 'ddl --maintenance-role', "
            "or name a tenant"
        ) from error
    return list(found)


def _with_tenants(saver: Any) -> HasTenants:
    strategy = detect_strategy(saver)
    if not isinstance(strategy, HasTenants):
        raise CommandError(f"{type(saver).__name__} has no tenants")
    return strategy


def _known(dsn: Dsn | None, console: Console) -> Dsn:
    return known_dsn(_STORAGE, dsn, os.environ, console, DSN_VARIABLE)


@contextmanager
def _opened(dsn: Dsn | None, console: Console, place: TenantPlace) -> Iterator[Any]:
    with open_saver(_STORAGE.name, dsn, os.environ, console, place=place) as saver:
        yield saver


def _check_there(saver: Any, tenant: str, console: Console) -> None:
    """Refuse a tenant of whom there is no row.

    Raises:
        CommandError: There is none. What the tenant may be a slip of is said to a role that may
            list them all.
    """
    with saver.tenant_scope(tenant):
        if tenant in saver.tenants():
            return
    try:
        hint = did_you_mean(tenant, every_tenant(saver))
    except CommandError:
        hint = ""
    raise CommandError(f"no such tenant: {console.quote(tenant)}{hint}")


class Tenants(Executable):
    """List the tenants of a tenant saver, for a role that sees them all."""

    dsn: Dsn | None = options.SERVER_DSN
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    json: bool = arg(False, help="Write one JSON object per tenant and line, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Write a line for each tenant."""
        with _opened(self.dsn, console, options.tables_of(self)) as saver:
            tenants = every_tenant(saver)
        for tenant in tenants:
            console.line(to_json({"tenant": tenant}) if self.json else console.quote(tenant))
        if not self.json:
            console.flush()
            console.message(number(len(tenants), "tenant"))
        return DONE


class ForgetTenant(Executable):
    """Erase everything of a tenant, for good; asks first."""

    dsn: Dsn | None = options.SERVER_DSN
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    tenant: str = arg(
        parser=options.text,
        help="The tenant; a word without --tenant is taken for it too. Required.",
    )
    yes: bool = options.YES
    json: bool = options.JSON
    debug: bool = options.DEBUG

    @classmethod
    def operand(cls) -> str | None:
        """Take a bare word for the tenant."""
        return "tenant"

    def execute(self, console: Console) -> int:
        """Ask, and erase."""
        with _opened(self.dsn, console, options.tables_of(self, self.tenant)) as saver:
            _check_there(saver, self.tenant, console)
            what = f"erase every thread of the tenant {console.quote(self.tenant)} for good"
            confirm(what, yes=self.yes, console=console)
            gone = saver.forget_tenant(self.tenant)
        console.line(
            to_json({"tenant": self.tenant, "erased": gone})
            if self.json
            else f"erased {number(gone, 'thread')} of {console.quote(self.tenant)}"
        )
        return DONE


class Vacuum(Executable):
    """Delete threads whose newest checkpoint is old, and old writes that lost theirs."""

    dsn: Dsn | None = options.SERVER_DSN
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    tenant: str | None = options.TENANT
    all_tenants: bool = options.ALL_TENANTS
    older_than: float = arg(
        parser=options.duration,
        help="How old; threads that wait for a human answer go too. Required.",
    )
    json: bool = arg(False, help="Write one JSON object per tenant and line, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Vacuum one tenant, or each."""
        place = options.tenants_of(self)
        with _opened(self.dsn, console, place) as saver:
            for tenant in every_tenant(saver) if place.tenant is None else [place.tenant]:
                with saver.tenant_scope(tenant):
                    gone = saver.vacuum(self.older_than / _DAY)
                console.line(
                    to_json({"tenant": tenant, "deleted": gone})
                    if self.json
                    else f"deleted {number(gone, 'thread')} of {console.quote(tenant)}"
                )
        return DONE


class Ddl(Executable):
    """Write the statements that make the tables of a tenant saver, for a migration of yours."""

    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    maintenance_role: str | None = arg(
        None,
        parser=options.text,
        help="A role that shall see every tenant, and only it; 'sweep --all-tenants' needs one.",
    )
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Write SQL; nothing is connected to."""
        place = options.tables_of(self)
        package = "langgraph_ephemeral_checkpointer.tenancy"
        names = optional(_STORAGE, f"{package}.names:Names")
        ddl = optional(_STORAGE, f"{package}.schema:ddl")
        try:
            statements = ddl(names(place.schema, place.table), self.maintenance_role)
        except ValueError as error:
            raise UsageError(str(error)) from error
        for statement in statements:
            console.line(f"{statement};\n")
        return DONE


class MigrateFromPostgres(Executable):
    """Copy the threads of a PostgresSaver under a tenant; the source is only read.

    Run again, it goes on where it was stopped.
    """

    dsn: Dsn | None = options.SERVER_DSN
    target_dsn: Dsn | None = arg(
        None,
        parser=options.dsn,
        help="The database of the tenant saver, where it is another one than that of --dsn.",
    )
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    tenant: str = arg(parser=options.text, help="Whose threads they become. Required.")
    json: bool = arg(False, help="Write the result as one JSON object, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Copy, and write what was done; tables that are missing at the target are made."""
        source_dsn = _known(self.dsn, console)
        target_dsn = _known(self.target_dsn or source_dsn, console)
        place = options.tables_of(self, self.tenant)
        migrate = optional(
            _STORAGE,
            "langgraph_ephemeral_checkpointer.strategies.tenant.migrate:migrate_from_postgres",
        )
        seen = 0

        def note(_thread_id: str) -> None:
            nonlocal seen
            seen += 1

        with (
            open_saver("postgres", source_dsn, os.environ, console) as source,
            open_saver(
                _STORAGE.name, target_dsn, os.environ, console, place=place, create=True
            ) as target,
            console.progress(lambda: f"migrating, {number(seen, 'thread')} looked at"),
        ):
            result = migrate(source, target, tenant=self.tenant, on_thread=note)
        errors = {key: console.redact(error) for key, error in result.errors.items()}
        if self.json:
            console.line(to_json({**dataclasses.asdict(result), "errors": errors}))
        else:
            for thread_id, error in errors.items():
                console.line(
                    row("not copied", f"{console.quote(thread_id)}  ({error})", widths=_WIDTHS)
                )
            console.line(
                f"copied {number(len(result.copied), 'thread')}, "
                f"{len(result.skipped)} were there already, {len(errors)} failed"
            )
        if not errors:
            return DONE
        console.failure(f"the migration is done, but not for {number(len(errors), 'thread')}")
        return FAILED
