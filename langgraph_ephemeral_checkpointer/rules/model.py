"""What a rules file means. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from langgraph_ephemeral_checkpointer.errors import RetentionError
from langgraph_ephemeral_checkpointer.options import SweepOptions
from langgraph_ephemeral_checkpointer.policy import PolicyOverride, TTLPolicy
from langgraph_ephemeral_checkpointer.rules.patterns import is_quick
from langgraph_ephemeral_checkpointer.types import PolicyResolver

logger = logging.getLogger(__name__)

TenantOfNow: TypeAlias = Callable[[], str | None]
"""Gives the tenant whose threads are being swept, for instance ``saver.current_tenant``."""

NEVER = TTLPolicy(idle_ttl_seconds=10**15)
"""The policy of a file that has none: longer than any history, so it expires nothing."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a rules file.

    Attributes:
        line: Counted from 1; None where no line is to blame.
        key: Where it is, as ``sweep.interval`` or ``rules[2].match`` (counted from 1).
        message: What is wrong.
    """

    line: int | None
    key: str | None
    message: str

    def text(self, path: str) -> str:
        """Give the problem as compilers do: ``file:line: key: message``."""
        place = path if self.line is None else f"{path}:{self.line}"
        return f"{place}: {self.message if self.key is None else f'{self.key}: {self.message}'}"


class RulesError(RetentionError):
    """The rules file cannot be used; run the check command on it."""

    def __init__(self, path: str, problems: Sequence[Problem]) -> None:
        """Put all problems into the message."""
        super().__init__("; ".join(problem.text(path) for problem in problems))
        self.path = path
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: which threads, and what becomes of them.

    Attributes:
        policy: Their policy; None if they are exempt.
        thread: Must be found in the thread id.
        tenant: Must match the whole tenant; such a rule matches nothing where no tenant is known.
        line: Where the rule begins in the file.
    """

    policy: TTLPolicy | None
    thread: re.Pattern[str] | None = None
    tenant: re.Pattern[str] | None = None
    line: int | None = None

    def matches(self, thread_id: str, tenant: str | None) -> bool:
        """Say whether a thread falls under the rule."""
        if self.thread is not None and self.thread.search(thread_id) is None:
            return False
        return self.tenant is None or (
            tenant is not None and self.tenant.fullmatch(tenant) is not None
        )


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Where the threads are; None where the file says nothing."""

    backend: str | None = None
    dsn_env: str | None = None
    table: str | None = None
    schema: str | None = None


class ConfiguredPolicy(NamedTuple):
    """What a sweeper is given: ``TTLSweeper(saver, policy, policy_resolver=resolver)``."""

    policy: TTLPolicy
    resolver: PolicyResolver | None


@dataclass(frozen=True, slots=True)
class Rules:
    """A rules file.

    Attributes:
        policy: Of the threads that no rule matches; None keeps them all.
        rules: In order; the first that matches a thread counts, and replaces ``policy`` whole.
        sweep: How to sweep.
        database: Where.
        doubts: What is no mistake, but may mean something else than it says.
    """

    policy: TTLPolicy | None = None
    rules: tuple[Rule, ...] = ()
    sweep: SweepOptions = field(default_factory=SweepOptions)
    database: DatabaseOptions = field(default_factory=DatabaseOptions)
    doubts: tuple[Problem, ...] = field(default=(), compare=False)

    @property
    def need_tenant(self) -> bool:
        """Whether any rule is for some tenants only."""
        return any(rule.tenant is not None for rule in self.rules)

    def configured(self, tenant: TenantOfNow | None = None) -> ConfiguredPolicy:
        """Give the policy and the resolver of a sweeper.

        Args:
            tenant: Asked once a thread where rules name tenants.

        Raises:
            ValueError: Rules name tenants, and ``tenant`` is missing: a thread that such a
                rule exempts would be deleted.
        """
        if self.need_tenant and tenant is None:
            raise ValueError(
                "rules name tenants, so a saver that has them is needed; pass "
                "tenant=saver.current_tenant"
            )
        if not self.rules:
            return ConfiguredPolicy(self.policy or NEVER, None)

        def resolver(thread_id: str) -> TTLPolicy | PolicyOverride:
            return self.decide(thread_id, tenant() if tenant is not None else None)

        return ConfiguredPolicy(self.policy or NEVER, resolver)

    def decide(self, thread_id: str, tenant: str | None = None) -> TTLPolicy | PolicyOverride:
        """Give the policy of a thread by the first rule that matches it."""
        for rule in self.rules:
            if rule.thread is not None and not is_quick(rule.thread, thread_id):
                logger.warning(
                    "a thread id of %d characters is kept: it might take the rule of line %s very "
                    "long; anchor its pattern with ^, or use fewer repetitions",
                    len(thread_id),
                    rule.line,
                )
                return PolicyOverride.EXEMPT
            if rule.matches(thread_id, tenant):
                return rule.policy or PolicyOverride.EXEMPT
        return PolicyOverride.USE_DEFAULT if self.policy else PolicyOverride.EXEMPT
