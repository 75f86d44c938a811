"""The rules file: policies for some threads, exemptions for others, and how to sweep.

    from langgraph_ephemeral_checkpointer.rules import policy_from_config

    policy, resolver = policy_from_config("ephemeral.toml")
    sweeper = TTLSweeper(saver, policy, policy_resolver=resolver)

``model`` has what a file means, ``reading`` checks TOML, ``platform`` reads a
``langgraph.json``, ``positions`` finds the line of a key.
"""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.options import SweepOptions
from langgraph_ephemeral_checkpointer.rules.loading import load_rules, policy_from_config
from langgraph_ephemeral_checkpointer.rules.model import (
    ConfiguredPolicy,
    DatabaseOptions,
    Problem,
    Rule,
    Rules,
    RulesError,
)

__all__ = [
    "ConfiguredPolicy",
    "DatabaseOptions",
    "Problem",
    "Rule",
    "Rules",
    "RulesError",
    "SweepOptions",
    "load_rules",
    "policy_from_config",
]
