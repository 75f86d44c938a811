"""What every test may use, and what is collected where."""

from __future__ import annotations

from tests.support import features

pytest_plugins = [
    "tests.support.console",
    "tests.support.fixtures",
    "tests.support.groups",
    "tests.support.tenants",
]

# What is about a part that is not there in the oldest supported versions.
_NEEDS = {
    "retention/test_agents.py": features.HAS_AGENTS,
    "retention/test_delta_backlog.py": features.HAS_DELTA,
    "retention/test_forms.py": features.HAS_AGENTS,
    "retention/test_purge_delta.py": features.HAS_DELTA,
    "retention/test_purge_everything.py": features.HAS_AGENTS,
    "retention/test_purge_young.py": features.HAS_DELTA,
    "retention/test_retained_conformance.py": features.HAS_CONFORMANCE,
    "strategies/test_prune_conformance.py": features.HAS_CONFORMANCE,
    "strategies/test_prune_deepagents.py": features.HAS_AGENTS,
    "tenancy/test_conformance.py": features.HAS_CONFORMANCE,
}
collect_ignore = [file for file, is_there in _NEEDS.items() if not is_there]
