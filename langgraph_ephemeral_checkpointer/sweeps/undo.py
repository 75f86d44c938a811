"""What a sweeper offers of the trash, in both colours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from langgraph_ephemeral_checkpointer.engine.plan import Plan, adrive, drive
from langgraph_ephemeral_checkpointer.engine.steps import AsyncSteps, SyncSteps, Work
from langgraph_ephemeral_checkpointer.errors import AsyncRequiredError, UnsupportedCheckpointerError
from langgraph_ephemeral_checkpointer.strategies.base import Strategy
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasTrash
from langgraph_ephemeral_checkpointer.strategies.trash import SqlPlan, TrashedThread, Undo
from langgraph_ephemeral_checkpointer.sweeps.trash import purge

T = TypeVar("T")


class UndoMethods:
    """The trash of a sweeper: set it up once, look into it, take threads out of it.

    The methods whose names begin with ``a`` are for ``await``; they do what the others do, and
    are the only ones for an asynchronous checkpointer: the others raise ``AsyncRequiredError``
    there. All of them raise ``UnsupportedCheckpointerError`` where this kind of checkpointer has
    no trash, and ``StorageError`` where the database refuses.
    """

    _strategy: Strategy
    _read_clock: Callable[[], float]

    def setup(self) -> None:
        """Create the trash tables and triggers beside the checkpointer's tables.

        Needed once, for ``grace_seconds``; afterwards it only looks. On Postgres it must be
        called by the owner of the checkpointer's tables; whoever saves needs no new right.
        """
        self._do(self._setup())

    async def asetup(self) -> None:
        """As :meth:`setup`."""
        await self._ado(self._setup())

    def teardown(self, *, force: bool = False) -> None:
        """Remove what :meth:`setup` made; does nothing where nothing is there.

        Args:
            force: Also if the trash still holds threads, which are lost then.

        Raises:
            TrashNotEmptyError: The trash holds threads, and ``force`` is off.
        """
        self._do(self._one(lambda undo: undo.teardown(force=force)))

    async def ateardown(self, *, force: bool = False) -> None:
        """As :meth:`teardown`."""
        await self._ado(self._one(lambda undo: undo.teardown(force=force)))

    def ddl(self) -> list[str]:
        """Give the statements of :meth:`setup`, for a migration to run in its place."""
        return self._do(self._one(lambda undo: undo.ddl()))

    async def addl(self) -> list[str]:
        """As :meth:`ddl`."""
        return await self._ado(self._one(lambda undo: undo.ddl()))

    def trash(self) -> list[TrashedThread]:
        """List the threads in the trash, those first that were moved there first.

        Raises:
            NotSetUpError: There is no trash.
        """
        return self._do(self._one(lambda undo: undo.entries()))

    async def atrash(self) -> list[TrashedThread]:
        """As :meth:`trash`."""
        return await self._ado(self._one(lambda undo: undo.entries()))

    def restore(self, thread_id: object, *, generation: int | None = None) -> TrashedThread:
        """Put a thread back, row by row as it was; sweeps leave it alone for its grace period.

        Args:
            thread_id: Its id.
            generation: Which entry, where the trash has several of the thread; the newest if
                None.

        Returns:
            The entry that it was in the trash.

        Raises:
            NotInTrashError: The trash has no such thread.
            ThreadLivesAgainError: The thread id has checkpoints again; nothing was changed.
            NotSetUpError: There is no trash.
        """
        return self._do(self._restore(str(thread_id), generation))

    async def arestore(self, thread_id: object, *, generation: int | None = None) -> TrashedThread:
        """As :meth:`restore`."""
        return await self._ado(self._restore(str(thread_id), generation))

    def empty_trash(self) -> int:
        """Erase everything in the trash now, whatever its grace.

        What a run is bringing back at this moment is passed by.

        Returns:
            How many threads went.

        Raises:
            NotSetUpError: There is no trash.
        """
        return self._do(self._empty())

    async def aempty_trash(self) -> int:
        """As :meth:`empty_trash`."""
        return await self._ado(self._empty())

    def _with_trash(self) -> HasTrash:
        if not isinstance(self._strategy, HasTrash):
            raise UnsupportedCheckpointerError(
                f"{type(self._strategy.checkpointer).__name__} has no trash "
                f"({type(self._strategy).__name__} has none). What a sweep deletes here is gone: "
                "look at a dry run first, and keep copies by on_before_delete"
            )
        return self._strategy

    def _one(self, plan: Callable[[Undo], SqlPlan[T]]) -> Plan[Work, T]:
        storage = self._with_trash()
        answer: T = yield Work(partial(storage.transact, plan(storage.undo)))
        return answer

    def _setup(self) -> Plan[Work, None]:
        storage = self._with_trash()
        yield Work(storage.set_up)
        yield Work(partial(storage.transact, storage.undo.setup()))

    def _restore(self, thread_id: str, generation: int | None) -> Plan[Work, TrashedThread]:
        now = self._read_clock()
        return (yield from self._one(lambda undo: undo.restore(thread_id, generation, now)))

    def _empty(self) -> Plan[Work, int]:
        return (yield from purge(self._with_trash(), None))

    def _do(self, plan: Plan[Work, T]) -> T:
        if not self._strategy.runs_sync:
            raise AsyncRequiredError(
                f"{type(self._strategy.checkpointer).__name__} is asynchronous: use the method of "
                "the same name with an 'a' in front, and await it"
            )
        return drive(plan, SyncSteps(self._strategy).perform)

    async def _ado(self, plan: Plan[Work, T]) -> T:
        steps = AsyncSteps(self._strategy)
        answer = await adrive(plan, steps.perform)
        steps.raise_if_cancelled()
        return answer
