"""What a rule of the contract is, and what the rules have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.testing.bench import Bench
from langgraph_ephemeral_checkpointer.testing.hands import Steps

C = TypeVar("C")

HOUR = 3600.0
DAY = 24 * HOUR

NAMESPACES = ("", "child", "call:5e6ab1a1-0000-4000-8000-000000000001")
"""The root, a subgraph with a memory of its own, and a subgraph called in one step."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the contract.

    Attributes:
        name: How reports name it.
        promise: What a strategy promises, in a sentence.
        check: The plan that tries it.
        needs: The capability that it is about, a class of ``strategies.capabilities``; None
            where every strategy has to keep it.
    """

    name: str
    promise: str
    check: Callable[[Bench], Steps[None]]
    needs: type | None = None

    def applies_to(self, strategy: Strategy) -> bool:
        """Say whether a strategy has to keep the rule."""
        return self.needs is None or isinstance(strategy, self.needs)


def rule_of(check: Callable[[Bench], Steps[None]], needs: type | None = None) -> Rule:
    """Make a rule of a plan; the first line of its docstring is the promise, or else its name."""
    lines = (check.__doc__ or check.__name__.replace("_", " ")).strip().splitlines()
    return Rule(check.__name__, lines[0], check, needs)


def of(bench: Bench, _needs: Callable[..., C]) -> C:
    """Return the strategy under test as what the rule needs, which it is."""
    strategy: Any = bench.strategy
    found: C = strategy
    return found


def store_family(bench: Bench, thread_id: str, at: float) -> Steps[None]:
    """Store a thread in all namespaces, with pending writes."""
    for number, namespace in enumerate(NAMESPACES):
        writes = [(f"task-{number}", "messages", "partial")]
        yield from bench.save(thread_id, at + number, namespace=namespace, writes=writes)
