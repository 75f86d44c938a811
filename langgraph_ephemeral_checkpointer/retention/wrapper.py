"""RetainedCheckpointer: any saver, with messages that age."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_ephemeral_checkpointer.messages.arguments import check_age
from langgraph_ephemeral_checkpointer.messages.backlog import Thread
from langgraph_ephemeral_checkpointer.messages.hooks import OnBeforeTrim
from langgraph_ephemeral_checkpointer.messages.keeper import Keeper
from langgraph_ephemeral_checkpointer.messages.result import PurgeResult
from langgraph_ephemeral_checkpointer.retention import forwarding


class RetainedCheckpointer(BaseCheckpointSaver[Any]):
    """A saver around another one, which stamps messages and lets old exchanges go.

    Every message is stamped when it is first saved. Each save drops from the channels it
    stores the exchanges that are older than ``max_age``, but never the exchange in
    progress or one that a pending interrupt will resume. A channel of LangGraph's
    DeltaChannel kind hands its value to a saver only now and then, as a snapshot: it is
    trimmed there. What older checkpoints and writes still hold is for ``purge_messages``.

    Everything else is the inner saver's: its methods, its attributes, its capabilities.

    Args:
        inner: The saver to wrap, of any kind, synchronous or asynchronous.
        max_age: How long an exchange is kept, counted from its youngest stamp; a timedelta
            or seconds.
        channels: The channels to look at; None means every channel that holds a list of
            messages. A channel that holds anything else is never touched.
        on_before_trim: Receives the thread id and the messages about to go, once per
            message and process; one that was edited since is another. If it fails, that is
            logged and nothing is trimmed.
        clock: Seconds since the epoch.

    Raises:
        TypeError: If ``inner`` is no saver, or another argument of a wrong type.
        ValueError: If ``max_age`` is not positive.
    """

    def __new__(
        cls, inner: BaseCheckpointSaver[Any] | None = None, **_: Any
    ) -> RetainedCheckpointer:
        """Build the class that can do what the inner saver's class can, and no more.

        LangGraph and its conformance suite read capabilities off the type.
        """
        if inner is None or issubclass(cls, forwarding.Bound):
            return super().__new__(cls)  # copy and pickle come here with the built class
        kinds: tuple[Any, Any] = (cls, type(inner))
        return super().__new__(_bound_class(*kinds))

    def __init__(
        self,
        inner: BaseCheckpointSaver[Any],
        *,
        max_age: timedelta | float,
        channels: Collection[str] | None = None,
        on_before_trim: OnBeforeTrim | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(inner, BaseCheckpointSaver):
            raise TypeError(
                f"RetainedCheckpointer needs a checkpointer, not {type(inner).__name__}; "
                "from_conn_string() returns a context manager: use 'with ... as saver'"
            )
        self.inner = inner
        self.max_age = check_age(max_age, "max_age")
        self._keeper = Keeper(
            max_age=self.max_age,
            channels=channels,
            on_before_trim=on_before_trim,
            clock=clock,
        )

    def __repr__(self) -> str:
        return f"RetainedCheckpointer({type(self.inner).__name__}, max_age={self.max_age!r})"

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # not built yet, while being copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def __retained__(self) -> BaseCheckpointSaver[Any]:
        """The inner saver, for the sweeper to look through to."""
        return self.inner

    @property
    def channels(self) -> frozenset[str] | None:
        """The channels that are looked at; None means every list of messages."""
        return self._keeper.channels

    @property
    def on_before_trim(self) -> OnBeforeTrim | None:
        """What receives the messages about to go."""
        return self._keeper.on_before_trim

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds since the epoch."""
        return self._keeper.clock

    @property
    def serde(self) -> Any:
        """The inner saver's serializer."""
        return self.inner.serde

    @serde.setter
    def serde(self, serde: Any) -> None:
        self.inner.serde = serde

    @property
    def config_specs(self) -> list[Any]:
        """The inner saver's configuration options."""
        return self.inner.config_specs

    @property
    def get_next_version(self) -> Any:
        """The inner saver's, as it is when LangGraph reads it: where a run starts."""
        return self.inner.get_next_version

    def untrimmed_threads(self) -> dict[str, str]:
        """The threads that were saved with exchanges in them that should have gone, and why.

        A channel of LangGraph's DeltaChannel kind hands its value to a saver only now and
        then, as a snapshot. Between two snapshots nothing can be dropped from it: the thread
        is listed here, and logged once, until a snapshot or a purge through this object has
        taken what is too old.

        Returns:
            By thread id, the channels and why. Of the threads used most recently (10,000)
            by this process; around a tenant saver, those of the tenant in scope.
        """
        return self._keeper.untrimmed(self._scope())

    def purged(self, result: PurgeResult) -> PurgeResult:
        """Take in, and give back, what a purge of the inner saver has done."""
        return self._keeper.purged(self._scope(), result)

    # -- whose messages they are --------------------------------------------------------

    def _scope(self, config: Any = None) -> Hashable:
        """The tenant of an inner tenant saver: thread ids are only unique in it.

        With the config of a call, the one whose scope was open when its run started.
        """
        inner = self.inner
        ask: Any = getattr(inner, "current_tenant", None)
        if config is not None and (of_run := getattr(inner, "tenant_of_run", None)) is not None:
            ask = partial(of_run, config)
        if ask is None:
            return None
        try:
            tenant: Hashable = ask()
        except Exception:  # noqa: BLE001 - none in scope: then the thread id names the tenant
            return None
        return tenant

    def _thread(self, config: Any) -> Thread:
        return (self._scope(config), str(config["configurable"]["thread_id"]))

    def _outgoing(self, config: Any, checkpoint: Any, metadata: Any) -> Any:
        ns = config["configurable"].get("checkpoint_ns", "")
        return self._keeper.outgoing(self._thread(config), ns, checkpoint, metadata)

    async def _aoutgoing(self, config: Any, checkpoint: Any, metadata: Any) -> Any:
        ns = config["configurable"].get("checkpoint_ns", "")
        return await self._keeper.aoutgoing(self._thread(config), ns, checkpoint, metadata)

    def _outgoing_writes(self, config: Any, writes: Sequence[Any]) -> list[Any]:
        return self._keeper.outgoing_writes(self._thread(config), writes)

    def _incoming(self, config: Any, loaded: CheckpointTuple | None) -> CheckpointTuple | None:
        newest = not config["configurable"].get("checkpoint_id")
        if loaded is None:
            if newest:
                ns = config["configurable"].get("checkpoint_ns", "")
                self._keeper.nothing_there(self._thread(config), ns)
            return None
        place = loaded.config["configurable"]
        thread = (self._scope(config), str(place["thread_id"]))
        ns = place.get("checkpoint_ns", "")
        return self._keeper.incoming(thread, ns, loaded, newest=newest)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Any:
        """This wrapper around the inner saver's clone; they share what they remember."""
        inner = self.inner.with_allowlist(extra_allowlist)
        if inner is self.inner:
            return self
        clone = type(self).__new__(type(self))
        clone.__dict__.update(self.__dict__, inner=inner)
        return clone


@cache
def _bound_class(cls: Any, inner: Any) -> type[RetainedCheckpointer]:
    """The wrapper class for savers of a class; a user's subclass stays in front of it."""
    methods = forwarding.methods_for(inner)
    name, doc = cls.__name__, {"__doc__": cls.__doc__, "__module__": cls.__module__}
    bound = type(name, (forwarding.Bound, RetainedCheckpointer), {**methods, **doc})
    if cls is RetainedCheckpointer:
        return bound
    return type(name, (cls, bound), doc)
