"""What a command is to do, from its options and the rules file together.

An option on the line comes before the same key in the file; rules of a policy on the line
replace the file's ``[policy]`` whole, as a ``[[rules]]`` would.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.backends import DSN_VARIABLE, open_saver
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.common.conninfo import shown
from langgraph_ephemeral_checkpointer.common.kinds import declared
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.options import SweepOptions
from langgraph_ephemeral_checkpointer.policy import PolicyOverride, TTLPolicy
from langgraph_ephemeral_checkpointer.rules import ConfiguredPolicy, Rules, RulesError, load_rules
from langgraph_ephemeral_checkpointer.rules.words import rules_in_a_line
from langgraph_ephemeral_checkpointer.strategies.opening import Saver, TenantPlace
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper
from langgraph_ephemeral_checkpointer.sweeps.audit import AuditLog
from langgraph_ephemeral_checkpointer.types import PolicyResolver

HASH_KEY_VARIABLE = "LGEC_HASH_KEY"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a command may need of its line and the rules file."""

    backend: str
    dsn: Dsn | None
    dsn_variable: str
    rules: Rules
    resolver: PolicyResolver | None
    sweep: SweepOptions
    audit_log: AuditLog | None
    place: TenantPlace | None = None
    """Whose threads, for a tenant saver."""

    @contextmanager
    def open(self, environ: Mapping[str, str], console: Console) -> Iterator[Saver]:
        """Open the saver for one command."""
        with open_saver(
            self.backend,
            self.dsn,
            environ,
            console,
            variable=self.dsn_variable,
            place=self.place,
        ) as saver:
            yield saver

    def policy_for(self, saver: Saver) -> ConfiguredPolicy:
        """Give the policy and the resolver for a saver.

        The user's own resolver is asked first, and where it says USE_DEFAULT the rules.

        Raises:
            UsageError: Rules name tenants, and the saver has none.
        """
        try:
            policy, by_rules = self.rules.configured(getattr(saver, "current_tenant", None))
        except ValueError:
            raise UsageError(
                f"rules of the file name tenants, which the backend {self.backend} does not have"
            ) from None
        own = self.resolver
        if own is None or by_rules is None:
            return ConfiguredPolicy(policy, own or by_rules)
        rest = by_rules

        def resolver(thread_id: str) -> Any:
            answer = own(thread_id)
            return rest(thread_id) if answer is PolicyOverride.USE_DEFAULT else answer

        return ConfiguredPolicy(policy, resolver)

    def in_words(self) -> str:
        """Say by which rules it is swept, on one line."""
        return f"rules: {rules_in_a_line(self.rules, resolver=self.resolver is not None)}"

    def sweeper_for(self, saver: Saver, **more: Any) -> TTLSweeper:
        """Make the sweeper that the settings ask for.

        Args:
            saver: Of the backend.
            more: Arguments of the sweeper that come from elsewhere, such as callbacks.

        Raises:
            UsageError: The backend cannot do what is asked.
        """
        policy, resolver = self.policy_for(saver)
        try:
            return TTLSweeper(
                saver,
                policy,
                policy_resolver=resolver,
                options=self.sweep,
                audit_log=self.audit_log,
                **more,
            )
        except ValueError as error:  # a rule that this backend cannot follow
            raise UsageError(str(error)) from error


def settings_of(command: Any, environ: Mapping[str, str], *, needs_rules: bool = True) -> Settings:
    """Put the options of a command and its rules file together.

    Args:
        command: A command; an option that it does not take counts as not given.
        environ: The environment.
        needs_rules: Whether it is an error if neither has any rule.

    Raises:
        UsageError: Something is missing, or the rules file cannot be used.
    """
    rules = Rules()
    if (path := _given(command, "config")) is not None:
        try:
            rules = load_rules(path)
        except RulesError as error:
            raise UsageError(str(error)) from error
    policy = options.policy_of(command)
    if policy is not None:
        rules = replace(rules, policy=policy)
    variable = rules.database.dsn_env or DSN_VARIABLE
    backend = backend_of(command, environ, variable=variable, file=rules.database.backend)
    if policy is None and needs_rules and path is None:
        flags = " or ".join(f"--{rule.key.replace('_', '-')}" for rule in declared(TTLPolicy))
        raise UsageError(f"at least one rule is required: {flags}, or a rules file by --config")
    sweep = replace(rules.sweep, **options.given(command, SweepOptions))
    if _given(command, "force"):
        sweep = replace(sweep, max_delete_percent=None)
    return Settings(
        backend=backend,
        dsn=_given(command, "dsn"),
        dsn_variable=variable,
        rules=rules,
        resolver=_load(_given(command, "resolver")),
        sweep=sweep,
        audit_log=_audit_log(command, environ),
        place=_place(command, backend, rules),
    )


def backend_of(
    command: Any,
    environ: Mapping[str, str],
    *,
    variable: str = DSN_VARIABLE,
    file: str | None = None,
) -> str:
    """Give the kind of storage: that of the line, of the file, or the one that the DSN tells.

    Args:
        command: A command; an option that it does not take counts as not given.
        environ: The environment.
        variable: Where in the environment the DSN is, if it is not on the line.
        file: What the rules file says.

    Raises:
        UsageError: Nothing tells.
    """
    dsn = getattr(command, "dsn", None) or Dsn(environ.get(variable, ""))
    backend: str | None = getattr(command, "backend", None) or file or dsn.backend()
    if backend is None:
        raise UsageError(
            "--backend is required, or backend under [database] in a rules file, or a DSN that "
            "tells: postgresql://..., sqlite:///FILE, or an SQLite file that exists"
        )
    return backend


def _place(command: Any, backend: str, rules: Rules) -> TenantPlace | None:
    place = options.place_of(command, backend)
    if place is None:
        return None
    default = TenantPlace()
    return replace(
        place,
        table=_given(command, "table") or rules.database.table or default.table,
        schema=_given(command, "schema") or rules.database.schema or default.schema,
    )


def _given(command: Any, name: str) -> Any:
    return getattr(command, name, None)


def _audit_log(command: Any, environ: Mapping[str, str]) -> AuditLog | None:
    path, hash_ids = _given(command, "audit_log"), bool(_given(command, "hash_ids"))
    if path is None:
        if hash_ids:
            raise UsageError("--hash-ids has no meaning without --audit-log")
        return None
    key = environ.get(HASH_KEY_VARIABLE, "").encode(errors="surrogateescape")
    return AuditLog(path, hash_ids=hash_ids, hash_key=key or None)


def _load(name: str | None) -> PolicyResolver | None:
    """Import a resolver by ``module:function``; from the current folder what is nowhere else."""
    if name is None:
        return None
    module_name, _, path = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # first, a file there could take the place of any module
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        raise UsageError(
            f"--resolver {shown(name)} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise UsageError(f"--resolver {shown(name)} is no function")
    if inspect.iscoroutinefunction(found):
        raise UsageError(f"--resolver {shown(name)} is asynchronous; it must be a plain function")
    resolver: Callable[[str], Any] = found
    return resolver
