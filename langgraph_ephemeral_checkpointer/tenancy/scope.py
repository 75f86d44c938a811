"""Whose thread it is: tenant scopes, and how the tenant of a call is found."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from langchain_core.runnables import RunnableConfig

from langgraph_ephemeral_checkpointer.common.arguments import check_callable
from langgraph_ephemeral_checkpointer.engine.steps import GIVES_A_COROUTINE, is_async_callable
from langgraph_ephemeral_checkpointer.errors import (
    CrossTenantError,
    ScopeLostError,
    TenantRequiredError,
    TenantResolutionError,
)
from langgraph_ephemeral_checkpointer.tenancy.runs import RunStart, begin, run_of, run_of_node

TenantOf = Callable[[str], str]
"""Gives the tenant of a thread id."""


class _LeftOut(str):
    """The default tenant of a saver that was given none."""

    __slots__ = ()


DEFAULT_TENANT: Final[str] = _LeftOut("default")

P = ParamSpec("P")
T = TypeVar("T")

_ANYWHERE: Final = object()
"""Instead of a run: the scope counts whatever node it is looked up in."""


def checked_tenant(tenant: object) -> str:
    """Return ``tenant`` if it can name a tenant.

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty, or Postgres cannot hold it as text (NUL, lone surrogates).
    """
    return _checked_text("tenant", tenant)


def checked_thread(thread_id: object) -> str:
    """Return the text of a thread id; integers and UUIDs mean their text.

    Raises:
        ValueError: It is None or empty, or Postgres cannot hold it as text.
    """
    if thread_id is None:
        raise ValueError("a thread id is required; give configurable['thread_id']")
    return _checked_text("thread id", str(thread_id))


def _checked_text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {what} is a string, not {type(value).__name__}")
    if not value:
        raise ValueError(f"a {what} must not be empty")
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a {what} must be valid Unicode: {error}") from error
    if b"\0" in encoded:
        raise ValueError(f"a {what} must not contain a NUL character")
    return str(value)


class _Opened(NamedTuple):
    """A scope that was opened, and the run in whose nodes it was."""

    tenant: str | None
    run: RunStart | object | None


_NONE: Final = _Opened(None, None)


class Scopes:
    """The tenants of one saver: the open scope, ``tenant_of``, and the default.

    Args:
        default: The tenant where nothing else names one; None: there is none, and none
            either where it was left out and ``tenant_of`` is given.
        tenant_of: Gives the tenant of a thread id.
    """

    def __init__(self, default: str | None, tenant_of: TenantOf | None) -> None:
        if tenant_of is not None:
            check_callable("tenant_of", tenant_of)
            if is_async_callable(tenant_of):
                raise TypeError("tenant_of must be a plain function: it is called before any I/O")
            # A call that names no thread would else do nothing, and call that success.
            default = None if isinstance(default, _LeftOut) else default
        self._default = None if default is None else checked_tenant(default)
        self._tenant_of = tenant_of
        self._opened: ContextVar[_Opened] = ContextVar("lgec_tenant_scope", default=_NONE)

    @property
    def default(self) -> str | None:
        """The tenant where nothing else names one."""
        return self._default

    @property
    def open(self) -> str | None:
        """The tenant of the innermost open scope of this context.

        In a node that is the one its run was started in, unless the run's own nodes opened
        another: nodes run in copies of the context of whoever reads on.
        """
        tenant, opened_in = self._opened.get()
        if opened_in is _ANYWHERE or (run := run_of_node(self)) is None or run is opened_in:
            return tenant
        return run.tenant

    def begin(self, config: RunnableConfig) -> None:
        """Keep the open scope for the run that loads its first checkpoint with ``config``."""
        begin(self, config, lambda: self.open)

    def _of_call(self, config: RunnableConfig | None) -> str | None:
        run = None if config is None else run_of(self, config)
        return self.open if run is None else run.tenant

    @contextmanager
    def scope(self, tenant: str) -> Iterator[None]:
        """Make ``tenant`` the tenant of everything in the ``with`` block.

        Raises:
            TypeError: The tenant is not a string.
            ValueError: The tenant is empty.
            ScopeLostError: The block is left in another context than it was entered in.
        """
        token = self._opened.set(_Opened(checked_tenant(tenant), run_of_node(self)))
        try:
            yield
        finally:
            try:
                self._opened.reset(token)
            except ValueError as error:
                raise ScopeLostError(
                    f"the scope of tenant {tenant!r} was left in another context than it "
                    "was opened in, as generators of web frameworks do: what ran between may have "
                    "lacked it. Open it around the calls themselves"
                ) from error

    async def within(self, tenant: str | None, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine with ``tenant`` as the open scope; None: with none open."""
        token = self._opened.set(_Opened(tenant, _ANYWHERE))
        try:
            return await work
        finally:
            with suppress(ValueError):  # closed where it never ran to its end: another context
                self._opened.reset(token)

    def explicit(self) -> str:
        """The tenant of the open scope, and of nothing else.

        Raises:
            TenantRequiredError: No scope is open.
        """
        if (tenant := self.open) is None:
            raise TenantRequiredError(
                "this erases a tenant, so it never uses the default one: "
                "name the tenant, or open saver.tenant_scope(...)"
            )
        return tenant

    def current(self, config: RunnableConfig | None = None) -> str:
        """The tenant of a call that names no thread: the scope's, else the default.

        Args:
            config: Of the call; it may belong to a run, whose scope it then is.

        Raises:
            TenantRequiredError: There is neither.
        """
        if (tenant := self._of_call(config) or self._default) is not None:
            return tenant
        if self._tenant_of is None:
            raise TenantRequiredError
        raise TenantRequiredError(
            "this call names no thread, so tenant_of cannot tell whose rows it is about: "
            "open saver.tenant_scope(...), or give the saver tenant="
        )

    def of_thread(self, thread_id: str, config: RunnableConfig | None = None) -> str:
        """The tenant of a call about one thread.

        Args:
            thread_id: The thread.
            config: Of the call; it may belong to a run, whose scope it then is.

        Raises:
            TenantRequiredError: No scope, no ``tenant_of`` and no default.
            TenantResolutionError: ``tenant_of`` raised, or gave something else than a
                non-empty string.
        """
        if (tenant := self._of_call(config)) is not None:
            return tenant
        if self._tenant_of is not None:
            return _resolve(self._tenant_of, thread_id)
        if self._default is None:
            raise TenantRequiredError
        return self._default

    def of_both(self, source: str, target: str) -> str:
        """The one tenant of two threads.

        Raises:
            CrossTenantError: They belong to different tenants.
        """
        tenant = self.of_thread(source)
        if self.of_thread(target) != tenant:
            raise CrossTenantError(
                f"thread {source!r} was not copied to {target!r}, which is another tenant's: a "
                "thread is copied within one tenant only. Choose an id of the same one"
            )
        return tenant


def _resolve(tenant_of: TenantOf, thread_id: str) -> str:
    try:
        tenant: object = tenant_of(thread_id)
    except Exception as error:
        raise TenantResolutionError(
            f"tenant_of failed for thread {thread_id!r} ({type(error).__name__}); it must return "
            "a non-empty string, or open saver.tenant_scope(...)"
        ) from error
    if inspect.iscoroutine(tenant):
        tenant.close()  # else Python warns that it was never awaited
    try:
        return checked_tenant(tenant)
    except (TypeError, ValueError) as error:
        raise TenantResolutionError(
            f"tenant_of gave no tenant for thread {thread_id!r}: {error}; it must return a "
            "non-empty string, or open saver.tenant_scope(...)"
        ) from error


class _Scoped(Protocol):
    _scopes: Scopes


_S = TypeVar("_S", bound=_Scoped)


def in_scope_of_call(
    method: Callable[Concatenate[_S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_S, P], Coroutine[Any, Any, T]]:
    """Let an asynchronous method belong to the scope in which it is called.

    The body of a coroutine runs where it is awaited: outside of the ``with`` block in which it
    was made it would work on another tenant's threads.
    """

    @functools.wraps(method)
    def call(saver: _S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return saver._scopes.within(saver._scopes.open, method(saver, *args, **kwargs))

    setattr(call, GIVES_A_COROUTINE, True)
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(call)
    return call
