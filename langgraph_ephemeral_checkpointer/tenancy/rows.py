"""Between LangGraph's objects and rows: pure, apart from the serializer it is given.

State, metadata included, is stored as the bytes the serializer makes of it, so that
encrypting serializers work and any text survives. What SQL has to know to load, prune
and delete (ids, versions, the step, the run) has columns of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)

from langgraph_ephemeral_checkpointer.decisions.checkpoint_ids import moment, time_of_saved
from langgraph_ephemeral_checkpointer.langgraph_names import (
    DELTA_COUNTERS,
    DELTA_MARK,
    PARENTS,
    SNAPSHOT_CLASS,
    SOURCE,
    STEP,
)
from langgraph_ephemeral_checkpointer.tenancy.arrays import Blobs, Integers, Texts

EVERY_CHANNEL = ""
"""Stands among a checkpoint's delta channels where a client marks it without naming them."""


class TypedSerializer(Protocol):
    """What the rows need of LangGraph's ``SerializerProtocol``."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Give the type tag and the bytes of an object."""
        ...

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Give back the object."""
        ...


class Target(NamedTuple):
    """One thread, namespace and checkpoint of one tenant; no id means the newest."""

    tenant: str
    thread_id: str
    ns: str
    checkpoint_id: str | None

    @property
    def thread(self) -> tuple[str, str]:
        """The thread, which its id names within the tenant only."""
        return (self.tenant, self.thread_id)

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """The config that names a checkpoint beside this one."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.ns,
                "checkpoint_id": checkpoint_id,
            }
        }


class ListedConfig(dict[str, Any]):
    """The config of a checkpoint in a listing, which knows whose the listing is.

    LangGraph hands it back as it is, to rebuild the delta channels of that checkpoint, whenever
    somebody reads on. A config that the caller makes of it is a plain one: it names a
    checkpoint, of whichever tenant is in scope.
    """

    __slots__ = ("tenant",)

    def __init__(self, config: Mapping[str, Any], tenant: str) -> None:
        super().__init__(config)
        self.tenant = tenant

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


@dataclass(slots=True, eq=False)
class Save:
    """Everything one save writes; :meth:`params` with some or all of the channel values.

    Attributes:
        target: The thread and namespace; its checkpoint id is the parent's.
        checkpoint_id: The checkpoint's own.
        columns: The parameters that are the same whatever is written.
        values: The channel values.
        named: Every channel that has a version, with it.
        versions: Of those, the ones whose value is stored.
        changed: The channels that changed since the parent.
        callers: The checkpoints a subgraph call belongs to: namespace and id, in turn.
        delta: The delta channels, as far as this checkpoint shows them.
        serde: Serializes the values.
    """

    target: Target
    checkpoint_id: str
    columns: Mapping[str, Any]
    values: Mapping[str, Any]
    named: Mapping[str, str]
    versions: Mapping[str, str]
    changed: Collection[str]
    callers: Sequence[str]
    delta: Collection[str]
    serde: TypedSerializer

    def params(self, *, whole: bool) -> dict[str, Any]:
        """The parameters of the save statement.

        Args:
            whole: Write every channel value, not only the changed ones.
        """
        written = [name for name in self.versions if whole or name in self.changed]
        relied_on = [] if whole else [n for n in self.versions if n not in self.changed]
        typed = [self.serde.dumps_typed(self.values[name]) for name in written]
        return {
            **self.columns,
            "written": Texts(written),
            "written_versions": Texts([self.versions[name] for name in written]),
            "written_types": Texts([kind for kind, _ in typed]),
            "written_blobs": Blobs([blob for _, blob in typed]),
            "relied_on": Texts(relied_on),
            "relied_on_versions": Texts([self.versions[name] for name in relied_on]),
        }


def thread_target(tenant: str, thread_id: str, config: RunnableConfig) -> Target:
    """What a config points at."""
    configurable = config["configurable"]
    checkpoint_id = configurable.get("checkpoint_id")
    return Target(
        tenant,
        thread_id,
        configurable.get("checkpoint_ns") or "",
        None if not checkpoint_id else str(checkpoint_id),
    )


def _column_text(value: object) -> str | None:
    """Text for a column that only helps to find rows; None where it cannot be one."""
    if not isinstance(value, str) or "\0" in value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return str(value)


def _callers(parents: object) -> list[str]:
    """The checkpoints a subgraph call belongs to: namespace and id, in turn."""
    if not parents or not isinstance(parents, Mapping):
        return []
    pairs = [(_column_text(ns), _column_text(id_)) for ns, id_ in parents.items()]
    return [text for pair in pairs if None not in pair for text in pair if text is not None]


def _column_int(value: object) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62
    return cast("int", value) if fits else None


def _is_snapshot(value: object) -> bool:
    # By name: the class exists only in newer releases of LangGraph.
    return type(value).__name__ == SNAPSHOT_CLASS


def prepare_save(
    serde: TypedSerializer,
    target: Target,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Save:
    """Lay out one save.

    A channel value is stored under the version that the checkpoint names for it. A value
    without a version cannot be named, so it stays inside the checkpoint itself.

    Args:
        serde: Serializes the checkpoint.
        target: The thread and namespace; its checkpoint id is the parent's.
        config: The config given to ``put``; what it holds of metadata is kept too.
        checkpoint: The checkpoint; it is not changed.
        metadata: Its metadata; not changed.
        new_versions: The channels that changed since the parent.
    """
    plain = plain_versions(checkpoint["channel_versions"])
    versions = {name: str(version) for name, version in plain.items()}
    values = checkpoint["channel_values"]
    seen = checkpoint["versions_seen"]
    stored: dict[str, Any] = {
        **checkpoint,
        "channel_versions": plain,
        "versions_seen": {node: plain_versions(some) for node, some in seen.items()},
        "channel_values": {k: v for k, v in values.items() if k not in versions},
    }
    meta = dict(get_checkpoint_metadata(config, metadata))
    meta.pop("writes", None)
    counted: Any = meta.get(DELTA_COUNTERS) or {}
    delta = {name for name in counted if name in versions}
    delta |= {name for name, value in values.items() if _is_snapshot(value)}
    if meta.get(DELTA_MARK):
        delta.add(EVERY_CHANNEL)
    # A channel that is rebuilt from ancestors needs the parent to exist.
    rebuilt = any(name in versions and name not in values for name in delta)
    held = {name: version for name, version in versions.items() if name in values}
    channels = Texts(versions)
    callers = _callers(meta.get(PARENTS))
    kind, state = serde.dumps_typed((stored, meta))
    return Save(
        target=target,
        checkpoint_id=checkpoint["id"],
        columns={
            "tenant": target.tenant,
            "thread_id": target.thread_id,
            "ns": target.ns,
            "id": checkpoint["id"],
            "parent": target.checkpoint_id,
            "callers": Texts(callers),
            "source": _column_text(meta.get(SOURCE)),
            "step": _column_int(meta.get(STEP)),
            "run_id": _column_text(meta.get("run_id")),
            "format": _column_int(checkpoint.get("v")),
            "channels": channels,
            "versions": Texts(versions.values()),
            "held": channels if len(held) == len(versions) else Texts(held),
            "delta": Texts(sorted(delta)),
            "made_at": moment(time_of_saved(checkpoint["id"], checkpoint.get("ts"))),
            "type": kind,
            "state": state,
            "rebuilt": rebuilt,
        },
        values=values,
        named=versions,
        versions=held,
        changed=new_versions,
        callers=callers,
        delta=delta,
        serde=serde,
    )


def plain_versions(versions: ChannelVersions) -> ChannelVersions:
    """Versions without what this package attaches to them while a run lasts."""
    return {
        name: str(version) if isinstance(version, str) else version
        for name, version in versions.items()
    }


def write_params(
    serde: TypedSerializer,
    target: Target,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    now: datetime,
) -> dict[str, Any]:
    """The parameters of the statement that stores a task's writes."""
    typed = [serde.dumps_typed(value) for _, value in writes]
    return {
        "tenant": target.tenant,
        "thread_id": target.thread_id,
        "ns": target.ns,
        "id": target.checkpoint_id,
        "task_id": str(task_id),
        "task_path": task_path,
        "idx": Integers(WRITES_IDX_MAP.get(channel, i) for i, (channel, _) in enumerate(writes)),
        "channels": Texts(channel for channel, _ in writes),
        "types": Texts(kind for kind, _ in typed),
        "blobs": Blobs(blob for _, blob in typed),
        "now": now,
    }


def replaces(writes: Iterable[tuple[str, Any]]) -> bool:
    """Whether writes take the place of earlier ones: LangGraph's special channels do."""
    return all(channel in WRITES_IDX_MAP for channel, _ in writes)


def load_tuple(serde: TypedSerializer, row: Sequence[Any]) -> CheckpointTuple:
    """Build what LangGraph loads from a row of the load statement."""
    thread_id, ns, checkpoint_id, parent, kind, state, names, kinds, blobs, *writes = row
    checkpoint, metadata = serde.loads_typed((kind, state))
    values = checkpoint["channel_values"]
    for name, value_kind, blob in zip(names or (), kinds or (), blobs or (), strict=True):
        values[name] = serde.loads_typed((value_kind, blob))
    target = Target("", thread_id, ns, checkpoint_id)
    return CheckpointTuple(
        target.config(checkpoint_id),
        checkpoint,
        metadata,
        target.config(parent) if parent else None,
        load_writes(serde, *writes),
    )


def listed(found: CheckpointTuple, tenant: str) -> CheckpointTuple:
    """The same, as an entry of a tenant's listing."""
    return found._replace(config=cast(RunnableConfig, ListedConfig(found.config, tenant)))


def load_writes(
    serde: TypedSerializer,
    tasks: Sequence[str] | None,
    channels: Sequence[str],
    kinds: Sequence[str],
    blobs: Sequence[bytes],
) -> list[tuple[str, str, Any]]:
    """Pending writes, in the order in which the rows hold them."""
    if not tasks:
        return []
    rows = zip(tasks, channels, kinds, blobs, strict=True)
    return [(task, name, serde.loads_typed((kind, blob))) for task, name, kind, blob in rows]


def column_filter(wanted: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of a metadata filter SQL can test; the rest is tested on the loaded rows."""
    wanted = wanted or {}
    return {
        "source": _column_text(wanted.get(SOURCE)),
        "step": _column_int(wanted.get(STEP)),
        "run_id": _column_text(wanted.get("run_id")),
    }


def matches(metadata: Any, wanted: Any) -> bool:
    """Whether metadata contains what a filter asks for, as Postgres' ``@>`` would say."""
    if isinstance(wanted, Mapping):
        return isinstance(metadata, Mapping) and all(
            key in metadata and matches(metadata[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return isinstance(metadata, (list, tuple)) and all(
            any(matches(item, value) for item in metadata) for value in wanted
        )
    # True is no 1 here, as in JSON.
    return isinstance(metadata, bool) == isinstance(wanted, bool) and bool(metadata == wanted)
