"""The public test kit: does a strategy keep the contract, and threads of a chosen age.

``check_strategy(make_saver)`` or a subclass of ``StrategyContract`` tries every rule on a
saver of your own. ``save_thread`` and ``asave_thread`` store threads as old as a test of
an application needs them. Nothing here needs pytest.
"""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.testing.contract import (
    CONTRACT,
    BrokenContractError,
    ContractReport,
    SaverFactory,
    StrategyContract,
    StrategyFactory,
    acheck_strategy,
    check_strategy,
)
from langgraph_ephemeral_checkpointer.testing.rule import Rule
from langgraph_ephemeral_checkpointer.testing.threads import (
    asave_thread,
    checkpoint_id_at,
    save_thread,
)

__all__ = [
    "CONTRACT",
    "BrokenContractError",
    "ContractReport",
    "Rule",
    "SaverFactory",
    "StrategyContract",
    "StrategyFactory",
    "acheck_strategy",
    "asave_thread",
    "check_strategy",
    "checkpoint_id_at",
    "save_thread",
]
