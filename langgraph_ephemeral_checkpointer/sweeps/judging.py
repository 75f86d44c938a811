"""The part of a sweep that judges: which threads of a page go, and which are trimmed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from langgraph_ephemeral_checkpointer.decisions.expiry import ThreadFacts, judge, trim_to, verdicts
from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.policy import TTLPolicy
from langgraph_ephemeral_checkpointer.result import KeepReason, SweepResult
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.sweeps.parts import Candidate, SweepSettings
from langgraph_ephemeral_checkpointer.sweeps.resolution import Invalid, Steps, resolve


class SweepJudge:
    """Judges pages of threads.

    Args:
        strategy: The storage; is asked which threads wait for a human answer.
        settings: What the sweep is told to do.
        result: Of the sweep; threads whose age or policy is unknown are written into it.
        now: The time of the sweep, in seconds since the epoch.
    """

    def __init__(
        self, strategy: Strategy, settings: SweepSettings, result: SweepResult, now: float
    ) -> None:
        self._strategy = strategy
        self._settings = settings
        self._result = result
        self._now = now
        self._resolved: dict[str, TTLPolicy | Invalid | None] | None = None

    def remember(self) -> None:
        """Keep what a resolver answers from now on, so that a second walk asks nobody again."""
        self._resolved = {}

    def judge(
        self, threads: Sequence[ThreadFacts]
    ) -> Steps[tuple[list[Candidate], dict[int, list[ThreadFacts]]]]:
        """Sort out a page: what is to be deleted, and what is to be trimmed to which length."""
        judged: list[tuple[ThreadFacts, TTLPolicy]] = []
        for facts in threads:
            policy = yield from self._policy_of(facts.thread_id)
            if policy is not None:
                judged.append((facts, policy))
        # The verdict of each, and the one that holds instead if it waits for a human answer.
        pairs = [
            verdicts(facts, policy, self._now)
            if facts.interrupted is None
            else (judge(facts, policy, self._now),) * 2
            for facts, policy in judged
        ]
        unsure = [
            facts.thread_id
            for (facts, _), (asleep, waits) in zip(judged, pairs, strict=True)
            if asleep != waits
        ]
        waiting: set[str] = set()
        if unsure:
            waiting = set((yield Work(partial(self._strategy.find_interrupted, unsure))))
        candidates: list[Candidate] = []
        prunable: dict[int, list[ThreadFacts]] = defaultdict(list)
        for (facts, policy), (asleep, waits) in zip(judged, pairs, strict=True):
            is_waiting = facts.thread_id in waiting
            verdict = waits if is_waiting else asleep
            if facts.interrupted is None:
                facts = replace(facts, interrupted=is_waiting)
            if verdict.reason is not None:
                candidates.append(
                    Candidate(verdict.overdue_since, facts.thread_id, facts, policy, verdict.reason)
                )
                continue
            if verdict.kept is not None:
                self._result.kept.setdefault(facts.thread_id, verdict.kept)
            keep = trim_to(facts, policy, self._now)
            if keep is not None:
                prunable[keep].append(facts)
        return candidates, prunable

    def _policy_of(self, thread_id: str) -> Steps[TTLPolicy | None]:
        known = self._resolved
        if known is not None and thread_id in known:
            policy = known[thread_id]
        else:
            policy = yield from resolve(
                self._settings.policy, self._settings.policy_resolver, thread_id
            )
            if known is not None and self._settings.policy_resolver is not None:
                known[thread_id] = policy
        if isinstance(policy, Invalid):
            self._result.kept[thread_id] = KeepReason.INVALID_POLICY
            self._result.errors[thread_id] = policy.error
            return None
        return policy
