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
from typing import Any, TypeVar

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.backends import DSN_VARIABLE, open_saver
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.common.conninfo import shown
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.policy import PolicyOverride
from langgraph_ephemeral_checkpointer.rules import ConfiguredPolicy, Rules, RulesError, load_rules
from langgraph_ephemeral_checkpointer.strategies.opening import Saver, TenantPlace
from langgraph_ephemeral_checkpointer.sweeper import TTLSweeper
from langgraph_ephemeral_checkpointer.sweeps.audit import AuditLog
from langgraph_ephemeral_checkpointer.types import PolicyResolver

T = TypeVar("T")

DEFAULT_BATCH_SIZE = 500
HASH_KEY_VARIABLE = "LGEC_HASH_KEY"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a command may need of its line and the rules file."""

    backend: str
    dsn: Dsn | None
    dsn_variable: str
    rules: Rules
    resolver: PolicyResolver | None
    interval: float | None
    batch_size: int
    max_deletes: int | None
    max_delete_percent: float | None
    coordinate: bool
    grace: float | None
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
                enable_coordination=self.coordinate,
                batch_size=self.batch_size,
                max_deletes_per_sweep=self.max_deletes,
                max_delete_percent=self.max_delete_percent,
                grace_seconds=self.grace,
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
    backend = _backend(command, rules)
    if policy is None and needs_rules and path is None:
        raise UsageError(
            "at least one rule is required: --idle-ttl, --hard-age-ttl, --max-checkpoints or "
            "--interrupted-ttl, or a rules file by --config"
        )
    file = rules.sweep
    force = _given(command, "force")
    return Settings(
        backend=backend,
        dsn=_given(command, "dsn"),
        dsn_variable=rules.database.dsn_env or DSN_VARIABLE,
        rules=rules,
        resolver=_load(_given(command, "resolver")),
        interval=_either(_given(command, "interval"), file.interval),
        batch_size=_either(_given(command, "batch_size"), file.batch_size) or DEFAULT_BATCH_SIZE,
        max_deletes=_either(
            _either(_given(command, "limit"), _given(command, "max_deletes")), file.max_deletes
        ),
        max_delete_percent=None
        if force
        else _either(_given(command, "max_delete_percent"), file.max_delete_percent),
        coordinate=bool(_given(command, "coordinate") or file.coordinate),
        grace=_either(_given(command, "grace"), file.grace),
        audit_log=_audit_log(command, environ),
        place=_place(command, backend, rules),
    )


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


def _backend(command: Any, rules: Rules) -> str:
    """Give the kind of storage.

    Raises:
        UsageError: Neither the line nor the file names one.
    """
    backend = _either(_given(command, "backend"), rules.database.backend)
    if backend is None:
        raise UsageError("--backend is required, or backend under [database] in the rules file")
    return str(backend)


def _given(command: Any, name: str) -> Any:
    return getattr(command, name, None)


def _either(line: T | None, file: T | None) -> T | None:
    return line if line is not None else file


def _audit_log(command: Any, environ: Mapping[str, str]) -> AuditLog | None:
    path, hash_ids = _given(command, "audit_log"), bool(_given(command, "hash_ids"))
    if path is None:
        if hash_ids:
            raise UsageError("--hash-ids has no meaning without --audit-log")
        return None
    key = environ.get(HASH_KEY_VARIABLE, "").encode(errors="surrogateescape")
    return AuditLog(path, hash_ids=hash_ids, hash_key=key or None)


def _load(name: str | None) -> PolicyResolver | None:
    """Import a resolver by ``module:function``, from the current folder too."""
    if name is None:
        return None
    module_name, _, path = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
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
