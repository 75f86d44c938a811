"""What the two savers share: options, whose call it is, and the plan of every call."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ephemeral_checkpointer.common.arguments import checked_count, checked_flag
from langgraph_ephemeral_checkpointer.engine.plan import Plan
from langgraph_ephemeral_checkpointer.messages.arguments import check_channels
from langgraph_ephemeral_checkpointer.messages.hooks import OnBeforeTrim
from langgraph_ephemeral_checkpointer.messages.keeper import Keeper
from langgraph_ephemeral_checkpointer.messages.purge import PurgeOptions
from langgraph_ephemeral_checkpointer.tenancy import clocks, erasing, plans
from langgraph_ephemeral_checkpointer.tenancy.driver import SetUp
from langgraph_ephemeral_checkpointer.tenancy.names import Names
from langgraph_ephemeral_checkpointer.tenancy.plans import Listing, Step
from langgraph_ephemeral_checkpointer.tenancy.purging import TenantAccess, TenantStorage
from langgraph_ephemeral_checkpointer.tenancy.rows import (
    Target,
    prepare_save,
    replaces,
    thread_target,
    write_params,
)
from langgraph_ephemeral_checkpointer.tenancy.runs import run_of
from langgraph_ephemeral_checkpointer.tenancy.saving import Saving
from langgraph_ephemeral_checkpointer.tenancy.schema import ddl
from langgraph_ephemeral_checkpointer.tenancy.scope import (
    DEFAULT_TENANT,
    Scopes,
    TenantOf,
    checked_tenant,
    checked_thread,
)


class Options(TypedDict, total=False):
    """The options of :class:`TenantSaver`, which has their meanings, for type checkers."""

    table: str
    schema: str
    tenant: str | None
    tenant_of: TenantOf | None
    keep_checkpoints: int | None
    message_retention: timedelta | None
    message_channels: Collection[str] | None
    create_schema: bool
    require_rls: bool
    serde: SerializerProtocol | None
    clock: Callable[[], float]


class TenantSaver(BaseCheckpointSaver[str]):
    """The half of the tenant savers that does no I/O.

    Args:
        table: Table of checkpoints; ``<table>_blobs`` and ``<table>_writes`` go with it.
        schema: Their schema.
        tenant: The tenant where no scope is open and ``tenant_of`` does not tell it; None:
            such a call is a TenantRequiredError. Left out beside ``tenant_of`` it is None.
        tenant_of: Gives the tenant of a thread id. A call that names no thread (``vacuum``,
            ``purge_messages``, ``delete_for_runs``, a sweep) does not ask it.
        keep_checkpoints: Keep only so many of a thread's newest root checkpoints, and what
            those need, at each save; None keeps all.
        message_retention: Drop at each save the exchanges that are older, from the
            channels it stores; None drops none. Messages are stamped with the time of their
            first save in any case, so that it can be switched on later.
        message_channels: The channels to look at; None: every list of messages.
        create_schema: Make tables that are missing at first use.
        require_rls: Refuse a role for which Row-Level Security is void.
        serde: Serializes state; LangGraph's own by default.
        clock: Gives the time in seconds since the epoch.

    Raises:
        TypeError: An option of a wrong type.
        ValueError: A name too long for Postgres, an empty tenant, a number out of range.
    """

    def __init__(
        self,
        *,
        table: str = "agent_threads",
        schema: str = "public",
        tenant: str | None = DEFAULT_TENANT,
        tenant_of: TenantOf | None = None,
        keep_checkpoints: int | None = None,
        message_retention: timedelta | None = None,
        message_channels: Collection[str] | None = None,
        create_schema: bool = True,
        require_rls: bool = False,
        serde: SerializerProtocol | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(serde=serde)
        self.names = Names(schema, table)
        self._scopes = Scopes(tenant, tenant_of)
        self._keep = None
        if keep_checkpoints is not None:
            self._keep = checked_count("keep_checkpoints", keep_checkpoints)
        if message_retention is not None:
            _positive("message_retention", message_retention)
        self._messages = Keeper(max_age=message_retention, channels=message_channels, clock=clock)
        self._saving = Saving(self.names, self._keep)
        self._doing = f"a statement on {table!r}"
        self._create_schema = checked_flag("create_schema", create_schema)
        self._require_rls = checked_flag("require_rls", require_rls)
        self._clock = clock
        self._set_up = SetUp()

    # Scope ---------------------------------------------------------------------------

    def tenant_scope(self, tenant: str) -> Any:
        """Make ``tenant`` the tenant of every call in the ``with`` block.

        The scope belongs to the context: concurrent tasks and threads keep their own,
        and an inner scope gives way to the outer one again. A run keeps the scope in
        which it was started.

        Args:
            tenant: The tenant; not empty.

        Returns:
            A context manager.

        Raises:
            TypeError: The tenant is not a string.
            ValueError: It is empty, or Postgres cannot hold it as text.
            ScopeLostError: As the block ends: it is left in another context than it was entered in.
        """
        return self._scopes.scope(checked_tenant(tenant))

    def current_tenant(self) -> str:
        """The tenant of the open scope, else the default one.

        Raises:
            TenantRequiredError: There is neither.
        """
        return self._scopes.current()

    def tenant_of_run(self, config: RunnableConfig) -> str:
        """The tenant of a run, for savers that wrap this one.

        Args:
            config: What LangGraph calls a saver with.

        Returns:
            The tenant whose scope was open when the run that made ``config`` started, else the
            default one; where no run made it, :meth:`current_tenant`.

        Raises:
            TenantRequiredError: There is neither.
        """
        return self._scopes.current(config)

    @property
    def names_a_tenant(self) -> bool:
        """Whether :meth:`current_tenant` has an answer."""
        return (self._scopes.open or self._scopes.default) is not None

    def tenant_of_thread(self, thread_id: str) -> str:
        """The tenant of a thread: the open scope's, else ``tenant_of``'s, else the default.

        Raises:
            ValueError: The thread id is empty, or Postgres cannot hold it as text.
            TenantRequiredError: There is none of the three.
            TenantResolutionError: ``tenant_of`` did not give one.
        """
        return self._scopes.of_thread(checked_thread(thread_id))

    def now(self) -> datetime:
        """The time of the saver's clock."""
        return datetime.fromtimestamp(self._clock(), UTC)

    def untrimmed_threads(self) -> dict[str, str]:
        """The threads that were saved with exchanges in them that should have gone, and why.

        A channel of LangGraph's DeltaChannel kind hands its value to a saver only now and
        then, as a snapshot. Between two snapshots ``message_retention`` can drop nothing from
        it: the thread is listed here, and logged once, until a snapshot or a purge has taken
        what is too old.

        Returns:
            By thread id, the channels and why. Of the tenant in scope, and of the threads
            used most recently (10,000) by this process.

        Raises:
            TenantRequiredError: No scope is open and there is no default tenant.
        """
        return self._messages.untrimmed(self._scopes.current())

    def ddl(self, *, maintenance_role: str | None = None) -> list[str]:
        """The statements that make the schema, for a migration tool.

        Args:
            maintenance_role: A role that shall see every tenant, and only it.

        Returns:
            Statements, to be run in this order and in one transaction. Those of the
            maintenance role come last: where the tables are there, run these alone.

        Raises:
            ValueError: ``maintenance_role`` is empty or PUBLIC.
        """
        return ddl(self.names, maintenance_role)

    def get_next_version(self, current: str | int | None, channel: None = None) -> str:
        """Number versions like LangGraph's own Postgres saver: they sort as text.

        The random tail keeps apart what two runs make of one thread.
        """
        number = current if isinstance(current, int) else int(str(current or "0").split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - no secret

    # Plans ---------------------------------------------------------------------------

    def _thread(self, config: RunnableConfig) -> str:
        return checked_thread((config.get("configurable") or {}).get("thread_id"))

    def _target(self, config: RunnableConfig, tenant: str | None = None) -> Target:
        thread_id = self._thread(config)
        owner = tenant or self._scopes.of_thread(thread_id, config)
        return thread_target(owner, thread_id, config)

    def _load(self, config: RunnableConfig) -> Plan[Step, CheckpointTuple | None]:
        # Outside the plan: without a tenant not even the tables are looked at.
        self._scopes.begin(config)
        target = self._target(config)

        def loading() -> Plan[Step, CheckpointTuple | None]:
            found = yield from plans.load(self.names, self.serde, target)
            newest = target.checkpoint_id is None
            if found is None:
                if newest:
                    self._messages.nothing_there(target.thread, target.ns)
                return None
            clocks.follow(found.checkpoint["id"])
            return self._messages.incoming(target.thread, target.ns, found, newest=newest)

        return loading()

    def _listing(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Listing:
        thread_id = None
        if config and (config.get("configurable") or {}).get("thread_id") is not None:
            thread_id = self._thread(config)
        if thread_id is None:
            tenant = self._scopes.current(config)
        else:
            tenant = self._scopes.of_thread(thread_id, config)
        return Listing(
            self.names,
            self.serde,
            tenant,
            thread_id,
            config,
            wanted=filter,
            before=before,
            limit=limit,
        )

    def _save(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        *,
        joins: bool = False,
    ) -> tuple[Target, Plan[Step, None]]:
        target = self._target(config)
        if run_of(self._scopes, config) is not None:  # by hand they come in any order
            clocks.check_order(target.thread_id, checkpoint["id"], target.checkpoint_id)
        checkpoint = self._messages.outgoing(target.thread, target.ns, checkpoint, metadata)
        wanted = prepare_save(self.serde, target, config, checkpoint, metadata, new_versions)
        return target, self._saving.save(wanted, joins=joins)

    def _write(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Plan[Step, None]:
        target = self._target(config)
        if target.checkpoint_id is None:
            raise ValueError("put_writes needs configurable['checkpoint_id']")
        writes = self._messages.outgoing_writes(target.thread, writes)
        params = write_params(self.serde, target, writes, task_id, task_path, self.now())
        return plans.store_writes(self.names, target, params, over=replaces(writes))

    def _history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Plan[Step, Mapping[str, Any]]:
        target = self._target(config, getattr(config, "tenant", None))

        def loading() -> Plan[Step, Mapping[str, Any]]:
            found = yield from plans.history(self.names, self.serde, target, channels)
            self._messages.incoming_history(
                target.thread, target.ns, target.checkpoint_id or "", found
            )
            return found

        return loading()

    def _delete_thread(self, thread_id: str) -> Plan[Step, None]:
        thread_id = checked_thread(thread_id)
        tenant = self._scopes.of_thread(thread_id)
        self._messages.forget((tenant, thread_id))
        self._saving.forget((tenant, thread_id))
        return erasing.erase(self.names, tenant, [thread_id])

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Plan[Step, None]:
        if isinstance(run_ids, str):
            raise TypeError("run_ids must be a sequence of run ids, not one string")
        return erasing.erase_runs(self.names, self._scopes.current(), [str(r) for r in run_ids])

    def _copy_thread(self, source: str, target: str) -> Plan[Step, None]:
        source, target = checked_thread(source), checked_thread(target)
        if source == target:
            raise ValueError(f"thread {source!r} cannot be copied onto itself")
        return erasing.copy(self.names, self._scopes.of_both(source, target), source, target)

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Plan[Step, None]:
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids must be a sequence of thread ids, not one string")
        if strategy not in {"keep_latest", "delete"}:
            raise ValueError(f"unknown prune strategy {strategy!r}: use 'keep_latest' or 'delete'")
        threads = [checked_thread(thread_id) for thread_id in thread_ids]
        owned = [(self._scopes.of_thread(thread_id), thread_id) for thread_id in threads]
        prune = erasing.erase_each if strategy == "delete" else erasing.keep_latest_each
        return prune(self.names, owned)

    def _vacuum(self, days: float) -> Plan[Step, int]:
        if isinstance(days, bool) or not isinstance(days, (int, float)):
            raise TypeError(f"days is a number, not {type(days).__name__}")
        if not 0 < days < float("inf"):
            raise ValueError(f"days must be finite and greater than 0, not {days}")
        try:
            cutoff = self.now() - timedelta(days=days)
        except OverflowError:  # longer than recorded history: nothing is that old
            cutoff = datetime.min.replace(tzinfo=UTC)
        return erasing.vacuum(self.names, self._scopes.current(), cutoff)

    def _purge(
        self,
        older_than: timedelta,
        channels: Collection[str] | None,
        on_before_trim: OnBeforeTrim | None,
        *,
        dry_run: bool,
        batch_size: int,
        clock: Callable[[], float] | None,
        runs_sync: bool,
    ) -> tuple[TenantStorage, PurgeOptions]:
        _positive("older_than", older_than)
        options = PurgeOptions(
            older_than,
            self._messages.channels if channels is None else check_channels(channels),
            on_before_trim,
            dry_run,
            batch_size,
            clock or self._clock,
        )
        access = TenantAccess(self, runs_sync=runs_sync)
        return TenantStorage(access, self._scopes.current()), options

    def _forget(self, tenant: str | None) -> Plan[Step, int]:
        whose = self._scopes.explicit() if tenant is None else checked_tenant(tenant)
        return erasing.forget(self.names, whose)

    def _tenants(self) -> Plan[Step, list[str]]:
        # A maintenance role sees all whatever is pinned, an application role its own.
        return erasing.tenants(self.names, self._scopes.open or self._scopes.default or "")


def _positive(name: str, duration: object) -> None:
    if not isinstance(duration, timedelta):
        raise TypeError(f"{name} is a timedelta, not {type(duration).__name__}")
    if duration <= timedelta(0):
        raise ValueError(f"{name} must be greater than zero, not {duration}")
