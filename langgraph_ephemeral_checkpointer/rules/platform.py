"""``checkpointer.ttl`` of a ``langgraph.json``, with the meaning it has on the platform. Pure.

Documented at https://docs.langchain.com/langsmith/configure-ttl and in the reference of
``langgraph_cli.schemas.ThreadTTLConfig``: minutes; ``delete`` by default; a sweep every five
minutes; at most 1000 threads a sweep. The platform has no exception for threads that wait
for a human answer, so there is none here either.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_ephemeral_checkpointer.common.arguments import positive_seconds
from langgraph_ephemeral_checkpointer.common.kinds import count_in
from langgraph_ephemeral_checkpointer.options import SweepOptions
from langgraph_ephemeral_checkpointer.policy import IdleTrimPolicy, TTLPolicy
from langgraph_ephemeral_checkpointer.rules.model import Problem, Rules

logger = logging.getLogger(__name__)

STRATEGIES = ("delete", "keep_latest")
DEFAULT_INTERVAL_MINUTES = 5
DEFAULT_SWEEP_LIMIT = 1000

_KNOWN = ("strategy", "default_ttl", "sweep_interval_minutes", "sweep_limit")


def read_langgraph_json(text: str) -> tuple[Rules, Sequence[Problem]]:
    """Read the text of a ``langgraph.json``; returns as the reader of rules files does."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        return Rules(), [Problem(error.lineno, None, f"this is no JSON: {error.msg}")]
    ttl = document
    for key in ("checkpointer", "ttl"):
        ttl = ttl.get(key) if isinstance(ttl, dict) else None
    if not isinstance(ttl, dict):
        why = "there is no checkpointer.ttl, so nothing ever expires"
        return Rules(), [Problem(_line(text, "checkpointer"), "checkpointer.ttl", why)]
    return _read(ttl, text)


def _read(ttl: Mapping[str, Any], text: str) -> tuple[Rules, Sequence[Problem]]:
    problems: list[Problem] = []

    def complain(key: str, message: str) -> None:
        problems.append(Problem(_line(text, key), f"checkpointer.ttl.{key}", message))

    def minutes(key: str, default: float) -> float:
        value = ttl.get(key)
        if value is None:
            return default
        try:
            return positive_seconds("it", value) * 60
        except (TypeError, ValueError):
            complain(key, "must be a number of minutes > 0")
            return default

    for key in ttl:
        if key not in _KNOWN:
            logger.warning("checkpointer.ttl.%s is not known here and has no effect", key)
    strategy = ttl.get("strategy", "delete")
    if strategy not in STRATEGIES:
        complain("strategy", f"must be one of {', '.join(STRATEGIES)}")
    after = minutes("default_ttl", 0)
    if not after and not problems:
        complain("default_ttl", "is missing, so nothing ever expires")
    limit = DEFAULT_SWEEP_LIMIT
    if ttl.get("sweep_limit") is not None:
        try:
            limit = count_in(ttl["sweep_limit"])
        except ValueError as error:
            complain("sweep_limit", str(error))
    interval = minutes("sweep_interval_minutes", DEFAULT_INTERVAL_MINUTES * 60)
    if problems:
        return Rules(), problems
    policy = (
        TTLPolicy(idle_ttl_seconds=after, interrupted_ttl_seconds=after)
        if strategy == "delete"
        else IdleTrimPolicy(max_checkpoints_per_thread=1, trim_after_idle_seconds=after)
    )
    return Rules(policy, sweep=SweepOptions(interval=interval, max_deletes=limit)), []


def _line(text: str, key: str) -> int | None:
    """Give the line of a key of ``checkpointer.ttl``, or else of the nearest one around it."""
    start = text.find('"checkpointer"')
    if start < 0:
        return None
    ttl = max(start, text.find('"ttl"', start))
    found = re.compile(rf'"{key}"\s*:').search(text, ttl, text.find("}", ttl) + 1)
    return text.count("\n", 0, found.start() if found else ttl) + 1
