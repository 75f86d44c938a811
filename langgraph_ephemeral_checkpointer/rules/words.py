"""Rules in words, as the command line says them before it deletes anything. Pure."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.common.durations import duration_in_words
from langgraph_ephemeral_checkpointer.common.kinds import DURATION, Option, declared
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.rules.model import Rules

_MOST_RULES = 5


def policy_in_words(policy: TTLPolicy | None) -> str:
    """Say what becomes of threads under a policy: ``deleted when idle for 7 days``.

    Args:
        policy: None keeps them all.
    """
    if policy is None:
        return "kept"
    return ", ".join(
        _rule_in_words(rule, policy)
        for rule in declared(type(policy))
        if getattr(policy, rule.name) is not None
    )


def _rule_in_words(rule: Option, policy: TTLPolicy) -> str:
    value = getattr(policy, rule.name)
    said = rule.words.format(duration_in_words(value) if rule.kind is DURATION else value)
    after = getattr(policy, "trim_after_idle_seconds", None)
    if rule.name != "max_checkpoints_per_thread" or after is None:
        return said
    return f"{said} when idle for {duration_in_words(after)}"


def rules_in_words(rules: Rules) -> list[str]:
    """Say what becomes of the threads of each rule, and of all others, in a line each."""
    lines = [f"line {rule.line}: {policy_in_words(rule.policy)}" for rule in rules.rules]
    which = "every other" if lines else "every"
    return [*lines, f"{which} thread: {policy_in_words(rules.policy)}"]


def rules_in_a_line(rules: Rules, *, resolver: bool = False) -> str:
    """Say the same on one line.

    Args:
        rules: Of the file and the line.
        resolver: Whether a resolver of the user's decides before them.
    """
    *some, others = rules_in_words(rules)
    if len(some) > _MOST_RULES:
        some = [*some[:_MOST_RULES], f"{len(some) - _MOST_RULES} more rules"]
    first = ["a resolver is asked first"] if resolver else []
    return "; ".join([*first, *some, others])
