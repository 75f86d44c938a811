"""Run the contract: as one call, rule by rule, or as a class that pytest collects."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from unittest import SkipTest

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ephemeral_checkpointer.engine.plan import adrive, drive
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.strategies.registry import detect_strategy
from langgraph_ephemeral_checkpointer.testing.bench import Bench
from langgraph_ephemeral_checkpointer.testing.delete_rules import DELETE_RULES
from langgraph_ephemeral_checkpointer.testing.hands import AsyncHands, SyncHands
from langgraph_ephemeral_checkpointer.testing.lock_rules import LOCK_RULES
from langgraph_ephemeral_checkpointer.testing.orphan_rules import ORPHAN_RULES
from langgraph_ephemeral_checkpointer.testing.prune_rules import PRUNE_RULES
from langgraph_ephemeral_checkpointer.testing.purge_rules import PURGE_RULES
from langgraph_ephemeral_checkpointer.testing.rule import Rule
from langgraph_ephemeral_checkpointer.testing.scan_rules import SCAN_RULES
from langgraph_ephemeral_checkpointer.testing.size_rules import SIZE_RULES
from langgraph_ephemeral_checkpointer.testing.tenant_rules import TENANT_RULES
from langgraph_ephemeral_checkpointer.testing.trash_rules import TRASH_RULES
from langgraph_ephemeral_checkpointer.testing.unread_rules import UNREAD_RULES

CONTRACT: tuple[Rule, ...] = (
    SCAN_RULES
    + DELETE_RULES
    + PRUNE_RULES
    + TRASH_RULES
    + ORPHAN_RULES
    + PURGE_RULES
    + SIZE_RULES
    + LOCK_RULES
    + TENANT_RULES
    + UNREAD_RULES
)
"""Every rule, in the order in which they are tried. A rule of a capability (``Rule.needs``) is
tried where the strategy has it."""

SaverFactory: TypeAlias = Callable[[], Any]
"""Makes a saver on an empty storage: returns it, or a context manager (also an asynchronous
one) or an awaitable that gives it. Called once for each rule and way of calling."""

StrategyFactory: TypeAlias = Callable[[Any], Strategy]
"""Makes the strategy under test for a saver."""


class BrokenContractError(AssertionError):
    """A strategy does not keep the contract.

    Attributes:
        broken: What went wrong, by the name of the rule and whether it was called from
            ``sweep()`` or ``asweep()``.
    """

    def __init__(self, broken: Mapping[str, str], promises: Mapping[str, str]) -> None:
        self.broken = dict(broken)
        lines = [
            f"{where}: {promises[where]}\n    {message}" for where, message in self.broken.items()
        ]
        super().__init__("the strategy contract is broken\n  " + "\n  ".join(lines))


@dataclass(frozen=True, slots=True)
class ContractReport:
    """What was tried.

    Attributes:
        passed: Each rule kept, as ``"rule [sweep]"`` or ``"rule [asweep]"``.
        notes: What could not be tried, because the saver refuses it.
        not_applicable: Each rule of a capability that the strategy does not have, written as
            in ``passed``.
    """

    passed: Sequence[str]
    notes: Sequence[str] = ()
    not_applicable: Sequence[str] = ()


@dataclass(slots=True)
class _Run:
    """Collects what happens to the rules."""

    passed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    promises: dict[str, str] = field(default_factory=dict)
    not_applicable: list[str] = field(default_factory=list)

    def applies(self, rule: Rule, colour: str, strategy: Strategy) -> bool:
        if not rule.applies_to(strategy):
            self.not_applicable.append(_where(rule, colour))
            return False
        return True

    @contextmanager
    def trying(self, rule: Rule, colour: str) -> Iterator[None]:
        where = _where(rule, colour)
        self.promises[where] = rule.promise
        try:
            yield
        except AssertionError as error:
            self.broken[where] = str(error)
        except Exception as error:  # noqa: BLE001 - whatever the strategy or the saver raises
            self.broken[where] = f"raised {type(error).__name__}: {error}"
        else:
            self.passed.append(where)

    def report(self) -> ContractReport:
        if self.broken:
            raise BrokenContractError(self.broken, self.promises)
        if not self.passed and not self.not_applicable:
            raise BrokenContractError(
                {"no rule": "neither sweep() nor asweep() can use the strategy on this saver"},
                {"no rule": "At least one of runs_sync and runs_async is True."},
            )
        return ContractReport(
            tuple(self.passed), tuple(dict.fromkeys(self.notes)), tuple(self.not_applicable)
        )


def _where(rule: Rule, colour: str) -> str:
    return f"{rule.name} [{colour}]"


def _is_asynchronous(product: Any) -> bool:
    return not isinstance(product, BaseCheckpointSaver) and (
        inspect.isawaitable(product) or hasattr(product, "__aenter__")
    )


def _check_sync(
    run: _Run, make_saver: SaverFactory, make_strategy: StrategyFactory, rules: Sequence[Rule]
) -> None:
    for rule in rules:
        product = make_saver()
        if _is_asynchronous(product):
            if inspect.iscoroutine(product):
                product.close()
            return
        with ExitStack() as stack:
            saver = _check_product(
                product
                if isinstance(product, BaseCheckpointSaver) or not hasattr(product, "__enter__")
                else stack.enter_context(product)
            )
            strategy = make_strategy(saver)
            if not strategy.runs_sync or not _answers(saver):
                return
            if not run.applies(rule, "sweep", strategy):
                continue
            with run.trying(rule, "sweep"):
                bench = Bench(saver, strategy)
                drive(rule.check(bench), SyncHands(saver, strategy).perform)
                run.notes += bench.notes


_NO_THREAD: Any = {"configurable": {"thread_id": "nobody", "checkpoint_ns": ""}}


def _answers(saver: BaseCheckpointSaver[Any]) -> bool:
    """Say whether a saver has synchronous methods; some define them only to raise."""
    try:
        saver.get_tuple(_NO_THREAD)
    except NotImplementedError:
        return False
    return True


async def _aanswers(saver: BaseCheckpointSaver[Any]) -> bool:
    try:
        await saver.aget_tuple(_NO_THREAD)
    except NotImplementedError:
        return False
    return True


@asynccontextmanager
async def _made(make_saver: SaverFactory) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    product = make_saver()
    async with AsyncExitStack() as stack:
        if isinstance(product, BaseCheckpointSaver):
            pass
        elif inspect.isawaitable(product):
            product = await product
        elif hasattr(product, "__aenter__"):
            product = await stack.enter_async_context(product)
        elif hasattr(product, "__enter__"):
            product = stack.enter_context(product)
        yield _check_product(product)


def _check_factory(make_saver: Any) -> None:
    if not callable(make_saver):
        raise TypeError(
            "make_saver must be a function that gives a saver on an empty storage each time it "
            f"is called, as in 'lambda: MySaver(...)', not {type(make_saver).__name__}"
        )


def _check_product(product: Any) -> BaseCheckpointSaver[Any]:
    if not isinstance(product, BaseCheckpointSaver):
        raise TypeError(
            "the factory must give a BaseCheckpointSaver, or a context manager or an awaitable "
            f"that does, not {type(product).__name__}"
        )
    return product


async def _check_async(
    run: _Run, make_saver: SaverFactory, make_strategy: StrategyFactory, rules: Sequence[Rule]
) -> None:
    for rule in rules:
        async with _made(make_saver) as saver:
            strategy = make_strategy(saver)
            if not strategy.runs_async:
                return
            if not run.applies(rule, "asweep", strategy):
                continue
            with run.trying(rule, "asweep"):
                bench = Bench(saver, strategy)
                hands = AsyncHands(saver, strategy, in_thread=not await _aanswers(saver))
                await adrive(rule.check(bench), hands.perform)
                run.notes += bench.notes


def check_strategy(
    make_saver: SaverFactory,
    make_strategy: StrategyFactory = detect_strategy,
    *,
    rules: Sequence[Rule] = CONTRACT,
) -> ContractReport:
    """Run the strategy contract on a saver, as ``sweep()`` and as ``asweep()`` would call it.

    The rules store threads through the saver's own ``put`` and ``put_writes``, aged by
    their ids, so no graph and no waiting is needed.

    Args:
        make_saver: Gives a saver on an empty storage, each time it is called; see
            :data:`SaverFactory`. A SQLite connection needs ``check_same_thread=False``.
        make_strategy: The strategy's class, or any function from a saver to a strategy.
            Left out, it is the one that a sweeper would choose.
        rules: Those of :data:`CONTRACT` to try.

    Returns:
        What was tried.

    Raises:
        BrokenContractError: It names each broken rule, what the rule promises, and what
            happened instead.
        RuntimeError: Called from a running event loop; use :func:`acheck_strategy` there.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("an event loop is running: use acheck_strategy() with await")
    _check_factory(make_saver)
    run = _Run()
    _check_sync(run, make_saver, make_strategy, rules)
    asyncio.run(_check_async(run, make_saver, make_strategy, rules))
    return run.report()


async def acheck_strategy(
    make_saver: SaverFactory,
    make_strategy: StrategyFactory = detect_strategy,
    *,
    rules: Sequence[Rule] = CONTRACT,
) -> ContractReport:
    """Run the strategy contract from a running event loop; as :func:`check_strategy`.

    What ``sweep()`` would do runs in a thread, the factory included.
    """
    _check_factory(make_saver)
    run = _Run()
    await asyncio.to_thread(_check_sync, run, make_saver, make_strategy, rules)
    await _check_async(run, make_saver, make_strategy, rules)
    return run.report()


class StrategyContract:
    """The contract as a class of tests, one for each rule.

    Subclass it in a test module, under a name that pytest collects, and define
    ``make_saver``::

        class TestMySaver(StrategyContract):
            def make_saver(self):
                return MySaver()

    It needs neither pytest's plugins nor pytest: the methods are plain and synchronous, so
    it also works as a mix-in of ``unittest.TestCase``. A rule of a capability that the strategy
    does not have is skipped.
    """

    def make_saver(self) -> Any:
        """Give a saver on an empty storage; see :data:`SaverFactory`."""
        raise NotImplementedError(f"{type(self).__name__} must define make_saver()")

    def make_strategy(self, saver: Any) -> Strategy:
        """Give the strategy under test; the one that a sweeper would choose unless overridden."""
        return detect_strategy(saver)


def _test_of(rule: Rule) -> Callable[[StrategyContract], None]:
    def test(self: StrategyContract) -> None:
        report = check_strategy(self.make_saver, self.make_strategy, rules=[rule])
        if not report.passed and rule.needs is not None:
            raise SkipTest(f"not applicable: the strategy is no {rule.needs.__name__}")

    test.__name__ = f"test_{rule.name}"
    test.__qualname__ = f"StrategyContract.{test.__name__}"
    test.__doc__ = rule.promise
    return test


for _each in CONTRACT:
    setattr(StrategyContract, f"test_{_each.name}", _test_of(_each))
