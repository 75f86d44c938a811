"""RetainedCheckpointer: any saver, with messages that age."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_ephemeral_checkpointer.interrupts import waits_for_human
from langgraph_ephemeral_checkpointer.plan import adrive, drive

from . import forwarding
from .arguments import OnBeforeTrim, acall_hook, call_hook, check_age, check_channels
from .exchanges import facts_of, is_human, last_opening, number, verdicts
from .folding import REMOVE_ALL
from .image import END
from .scrubbing import STEP_CHANNELS
from .stamps import STAMP_KEY, FirstSeen, format_stamp, is_stamped, stamp_of, with_stamp

logger = logging.getLogger(__name__)

_REMEMBERED_PAUSES = 10_000
_REMEMBERED_ARCHIVED = 100_000


class RetainedCheckpointer(BaseCheckpointSaver[Any]):
    """A saver around another one, which stamps messages and lets old exchanges go.

    Every message is stamped when it is first saved. Each save drops from the channels it
    stores the exchanges that began more than ``max_age`` ago, but never the exchange in
    progress or one that a pending interrupt will resume. A channel of LangGraph's
    DeltaChannel kind hands its value to a saver only now and then, as a snapshot: it is
    trimmed there. What older checkpoints and writes still hold is for ``purge_messages``.

    Everything else is the inner saver's: its methods, its attributes, its capabilities.

    Args:
        inner: The saver to wrap, of any kind, synchronous or asynchronous.
        max_age: How long an exchange is kept, counted from its first message's stamp.
        channels: The channels to look at; None means every channel that holds a list of
            messages. A channel that holds anything else is never touched.
        on_before_trim: Receives the thread id and the messages about to go, once per
            message and process. If it fails, that is logged and nothing is trimmed.
        clock: Seconds since the epoch.

    Raises:
        TypeError: If ``inner`` is no saver or ``max_age`` no duration.
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
        max_age: timedelta,
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
        self.channels = check_channels(channels)
        self.on_before_trim = on_before_trim
        self.clock = clock
        self._first_seen = FirstSeen()
        self._paused: OrderedDict[Hashable, frozenset[str]] = OrderedDict()
        self._archived: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = threading.Lock()

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

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The inner saver's next version of a channel."""
        return self.inner.get_next_version(current, channel)

    # -- what a save stores -------------------------------------------------------------

    def _scope(self) -> Hashable:
        """The tenant in scope of an inner tenant saver: thread ids are only unique in it."""
        current = getattr(self.inner, "current_tenant", None)
        if current is None:
            return None
        try:
            tenant: Hashable = current()
        except Exception:  # noqa: BLE001 - none in scope: then the thread id names the tenant
            return None
        return tenant

    def _selected(self, channel: str) -> bool:
        return self.channels is None or channel in self.channels

    def _stamped(self, thread: Hashable, messages: Sequence[Any], now: str) -> list[Any]:
        bare = [
            index
            for index, message in enumerate(messages)
            if not (is_stamped(message) or message.type == "remove")
        ]
        if not bare:
            return list(messages)
        if all(messages[index].id for index in bare):
            keys = [str(messages[index].id) for index in bare]
        else:
            facts = number(map(facts_of, messages))
            keys = [facts[index].key for index in bare]
        stamped = list(messages)
        stamps = self._first_seen.stamps(thread, keys, now)
        for index, stamp in zip(bare, stamps, strict=True):
            stamped[index] = with_stamp(messages[index], stamp)
        return stamped

    def _outgoing(self, config: Any, checkpoint: Any) -> Generator[Any, Any, Any]:
        """The checkpoint to store in place of this one; yields what to hand to the hook."""
        configurable = config["configurable"]
        thread_id = str(configurable["thread_id"])
        thread = (self._scope(), thread_id)
        now = datetime.fromtimestamp(self.clock(), UTC)
        with self._lock:
            protected = self._paused.get((*thread, configurable.get("checkpoint_ns", "")))
        stored, trimmed, going = {}, {}, []
        for channel, value in checkpoint["channel_values"].items():
            messages = messages_in(value) if self._selected(channel) else None
            if not messages or channel in STEP_CHANNELS - {END}:
                continue
            stamped = self._stamped(thread, messages, format_stamp(now))
            stored[channel] = rebuilt(value, stamped)
            if not _anything_older(stamped, now - self.max_age):
                continue
            goes = verdicts(
                number(map(facts_of, stamped)),
                now - self.max_age,
                keep_last=True,
                protected=protected or frozenset(),
            )
            if any(goes):
                kept = [m for m, gone in zip(stamped, goes, strict=True) if not gone]
                trimmed[channel] = rebuilt(value, kept)
                going += [m for m, gone in zip(stamped, goes, strict=True) if gone]
        if not stored:
            return checkpoint
        if going and (yield from self._archive(thread, thread_id, going)):
            stored |= trimmed
        return {**checkpoint, "channel_values": {**checkpoint["channel_values"], **stored}}

    def _archive(
        self, thread: Hashable, thread_id: str, going: Sequence[BaseMessage]
    ) -> Generator[Any, Any, bool]:
        """Hand to the hook what it has not had yet; whether trimming may go on.

        The run keeps the old messages to its end, so that every one of its saves trims
        them again: the hook hears of each message once.
        """
        if self.on_before_trim is None:
            return True
        keys = [(thread, fact.key) for fact in number(map(facts_of, going))]
        with self._lock:
            fresh = [n for n, key in enumerate(keys) if key not in self._archived]
        if not fresh:
            return True
        try:
            yield thread_id, [going[n] for n in fresh]
        except Exception:
            logger.exception("on_before_trim failed; thread %r is stored untrimmed", thread_id)
            return False
        with self._lock:
            self._archived.update((keys[n], None) for n in fresh)
            while len(self._archived) > _REMEMBERED_ARCHIVED:
                self._archived.popitem(last=False)
        return True

    def _outgoing_now(self, config: Any, checkpoint: Any) -> Any:
        return drive(
            self._outgoing(config, checkpoint), lambda step: call_hook(self.on_before_trim, *step)
        )

    async def _aoutgoing(self, config: Any, checkpoint: Any) -> Any:
        async def perform(step: Any) -> None:
            await acall_hook(self.on_before_trim, *step)

        return await adrive(self._outgoing(config, checkpoint), perform)

    def _outgoing_writes(self, scope: Hashable, config: Any, writes: Sequence[Any]) -> list[Any]:
        """The same writes, with stamps: for a delta channel they are what is stored."""
        thread = (scope, str(config["configurable"]["thread_id"]))
        now = format_stamp(datetime.fromtimestamp(self.clock(), UTC))
        stamped = []
        for channel, value in writes:
            plain = channel.startswith("__") or not self._selected(channel)
            messages = None if plain else messages_in(value, single=True)
            if messages:
                value = rebuilt(value, self._stamped(thread, messages, now))
            stamped.append((channel, value))
        return stamped

    # -- what a load tells --------------------------------------------------------------

    def _incoming(self, config: Any, loaded: CheckpointTuple | None) -> CheckpointTuple | None:
        if loaded is None:
            return None
        configurable = loaded.config["configurable"]
        thread = (self._scope(), str(configurable["thread_id"]))
        pause = (*thread, configurable.get("checkpoint_ns", ""))
        openings = set()
        present: dict[str, list[Any]] = {}
        for channel, value in loaded.checkpoint["channel_values"].items():
            messages = messages_in(value) if self._selected(channel) else None
            if messages is None:
                continue
            present[channel] = messages
            self._first_seen.remember(thread, _known(messages))
        waiting = waits_for_human((write[0], write[1]) for write in loaded.pending_writes or ())
        if waiting:
            for messages in present.values():
                openings.add(last_opening(number(map(facts_of, messages))))
        with self._lock:
            if waiting:
                self._paused[pause] = frozenset(filter(None, openings))
                while len(self._paused) > _REMEMBERED_PAUSES:
                    self._paused.popitem(last=False)
            elif not config["configurable"].get("checkpoint_id"):
                self._paused.pop(pause, None)
        return _without_idle_removals(loaded, present)

    def _remember_stamps(self, thread: Hashable, history: Any) -> None:
        for entry in history.values():
            values = [write[2] for write in entry["writes"]] + [entry.get("seed")]
            for value in values:
                messages = messages_in(value, single=True) or ()
                self._first_seen.remember(thread, _known(messages))

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


def _known(messages: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """The stamps that messages with ids came back with from storage."""
    return [
        (str(message.id), stamp)
        for message in messages
        if message.id and isinstance(stamp := message.response_metadata.get(STAMP_KEY), str)
    ]


def _anything_older(messages: Sequence[BaseMessage], cutoff: datetime) -> bool:
    """Whether any exchange may be old enough to go; cheap, as every save asks it."""
    humans = [message for message in messages if is_human(message)]
    return any(stamp < cutoff for message in humans if (stamp := stamp_of(message)))


def messages_in(value: Any, *, single: bool = False) -> list[BaseMessage] | None:
    """The messages of a channel's value, where it is a list of them and of nothing else.

    Args:
        value: A list, or one inside a DeltaChannel's snapshot or an Overwrite.
        single: Whether a message alone counts as well, as it does in a write.

    Returns:
        The messages, or None where the value is something else.
    """
    if type(value).__name__ in {"_DeltaSnapshot", "Overwrite"}:
        value = value.value
    if single and isinstance(value, BaseMessage):
        return [value]
    if isinstance(value, list) and all(isinstance(item, BaseMessage) for item in value):
        return value
    return None


def rebuilt(value: Any, messages: list[Any]) -> Any:
    """A value of the same form as this one, with these messages in it."""
    if isinstance(value, BaseMessage):
        return messages[0]
    if isinstance(value, list):
        return messages
    return type(value)(messages)


def _without_idle_removals(
    loaded: CheckpointTuple, present: dict[str, list[Any]]
) -> CheckpointTuple:
    """Leave out orders to remove a message that is gone already.

    A node can order the removal of an old message that its run still had and storage no
    longer has. If the run then stops before its next checkpoint, the order is pending,
    and ``add_messages`` refuses to remove what is not there: the thread could not resume.
    """
    writes = loaded.pending_writes
    if not writes or not present:
        return loaded
    added: dict[str, set[str]] = {}
    for _, channel, value in writes:
        for message in messages_in(value, single=True) or ():
            if message.type != "remove" and message.id:
                added.setdefault(channel, set()).add(message.id)
    kept: list[Any] = []
    for task, channel, value in writes:
        messages = messages_in(value, single=True) if channel in present else None
        if messages:
            known = {message.id for message in present[channel]}
            known |= added.get(channel, set()) | {REMOVE_ALL}
            left = [m for m in messages if m.type != "remove" or m.id in known]
            if len(left) < len(messages):
                value = left if isinstance(value, BaseMessage) else rebuilt(value, left)
        kept.append((task, channel, value))
    return loaded._replace(pending_writes=kept)
