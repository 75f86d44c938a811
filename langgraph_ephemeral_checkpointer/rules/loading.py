"""Reading rules files from disk."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from langgraph_ephemeral_checkpointer.rules.model import (
    ConfiguredPolicy,
    Problem,
    Rules,
    RulesError,
    TenantOfNow,
)
from langgraph_ephemeral_checkpointer.rules.platform import read_langgraph_json
from langgraph_ephemeral_checkpointer.rules.reading import read_toml

logger = logging.getLogger(__name__)


def load_rules(path: str | os.PathLike[str]) -> Rules:
    """Read a rules file, or the ``checkpointer.ttl`` of a ``langgraph.json``.

    What is doubtful in it, such as a short duration without a unit, is logged as a warning.

    Args:
        path: A file whose name ends in ``.json`` is taken for a ``langgraph.json``.

    Raises:
        RulesError: It cannot be read, or something in it is wrong; names every line and key.
    """
    shown = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # the latter: no UTF-8, or a NUL in the name
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RulesError(shown, [Problem(None, None, f"cannot be read: {why}")]) from error
    read = read_langgraph_json if Path(path).suffix.lower() == ".json" else read_toml
    rules, problems = read(text)
    if problems:
        raise RulesError(shown, problems)
    for doubtful in rules.doubts:
        logger.warning("%s", doubtful.text(shown))
    return rules


def policy_from_config(
    path: str | os.PathLike[str], *, tenant: TenantOfNow | None = None
) -> ConfiguredPolicy:
    """Give the default policy and the resolver that a rules file asks for.

    Args:
        path: As for :func:`load_rules`.
        tenant: Tells whose threads are being swept, where rules name tenants; for a tenant
            saver, its ``current_tenant``.

    Returns:
        ``policy, resolver``, to be passed to a ``TTLSweeper``. The resolver is None where the
        file has no ``[[rules]]``. Without a ``[policy]`` the policy expires nothing.

    Raises:
        RulesError: The file cannot be used.
        ValueError: Rules name tenants, and ``tenant`` is missing.
    """
    return load_rules(path).configured(tenant)
