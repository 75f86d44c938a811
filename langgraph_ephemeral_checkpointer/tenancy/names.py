"""The names of one saver's tables, in the shapes that SQL wants them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from psycopg import sql

from langgraph_ephemeral_checkpointer.engine.plan import Statement
from langgraph_ephemeral_checkpointer.tenancy.wire import Hot, Query

SETTING = "langgraph.tenant"
"""The transaction-local setting that the Row-Level Security policies read."""

_MAX_IDENTIFIER = 63
"""Bytes that Postgres keeps of an identifier; it silently cuts off the rest."""

# With what every transaction begins. The statements after it name no schema but that of the tables:
# on the path of the session somebody may have planted a function or an operator that fits better
# than the server's own, and would run with all rights of the role, as whatever tenant is pinned.
_CLOSED = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"
CLOSE_PATH = Statement(_CLOSED, fetch=False)
"""Let no name mean anything but what the server calls so, until the transaction ends."""

# Saving and loading are statements whose one good plan is known. Left to itself, Postgres
# plans them anew each time, which takes longer than to execute them.
_GENERIC = "pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true)"
_PIN = f"{_CLOSED}, pg_catalog.set_config('{SETTING}', %(tenant)s::pg_catalog.text, true)"
_PIN_HOT = f"{_PIN}, {_GENERIC}"
_LOCK_ONE = f"{_PIN_HOT}, pg_catalog.pg_advisory_xact_lock(%(key)s::pg_catalog.int8)"
_PIN_HOT_QUERY, _LOCK_ONE_QUERY = Query(_PIN_HOT), Query(_LOCK_ONE)
_LOCK_MANY = "SELECT pg_advisory_xact_lock(k) FROM unnest(%s::bigint[]) AS u (k)"


def _checked(what: str, name: object, suffix: str = "") -> str:
    if not isinstance(name, str):
        raise TypeError(f"a {what} name is a string, not {type(name).__name__}")
    if not name or "\0" in name:
        raise ValueError(f"a {what} name must not be empty or contain a NUL character")
    if (size := len((name + suffix).encode())) > _MAX_IDENTIFIER:
        raise ValueError(
            f"the {what} name {name + suffix!r} is {size} bytes long; "
            f"Postgres keeps {_MAX_IDENTIFIER}: choose a shorter one"
        )
    return name


@lru_cache(maxsize=4096)
def _key(*parts: str) -> int:
    # Lengths make it unambiguous: ("a", "bc") and ("ab", "c") are two threads.
    text = "".join(f"{len(part)}:{part}" for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), signed=True)


@dataclass(frozen=True)
class Names:
    """Schema and table names, checked before any SQL.

    Args:
        schema: The schema of the three tables.
        table: The table of checkpoints; ``<table>_blobs`` and ``<table>_writes`` go with it.

    Raises:
        TypeError: A name is not a string.
        ValueError: A name is empty, holds a NUL, or is longer than Postgres keeps.
    """

    schema: str
    table: str
    _rendered: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    _queries: dict[str, Query] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        _checked("schema", self.schema)
        _checked("table", self.table, "_writes")

    @property
    def tables(self) -> tuple[str, str, str]:
        """The bare names: checkpoints, blobs, writes."""
        return (self.table, f"{self.table}_blobs", f"{self.table}_writes")

    def quoted(self) -> dict[str, str]:
        """The qualified, quoted names, for text that is executed without parameters."""
        names = zip(("checkpoints", "blobs", "writes"), self.tables, strict=True)
        return {key: sql.Identifier(self.schema, name).as_string(None) for key, name in names}

    def render(self, template: str) -> str:
        """Put the names into a statement that is executed with parameters.

        A ``%`` in a name is doubled: psycopg looks for placeholders in quoted names too.
        """
        if (text := self._rendered.get(template)) is None:
            escaped = {key: name.replace("%", "%%") for key, name in self.quoted().items()}
            text = self._rendered[template] = template.format(**escaped)
        return text

    def statement(self, template: str, params: object = (), *, fetch: bool = True) -> Statement:
        """A statement over these tables."""
        return Statement(self.render(template), params, fetch)

    def hot(self, template: str, params: Mapping[str, Any], *, fetch: bool = True) -> Statement:
        """A statement over these tables that runs all the time, see :mod:`.wire`."""
        text = self.render(template)
        if (query := self._queries.get(template)) is None:
            query = self._queries[template] = Query(text)
        return Hot(text, params, fetch, query=query)

    def key(self, tenant: str, thread_id: str) -> int:
        """The advisory lock of a thread: 64 bits over schema, table, tenant and thread."""
        return _key(self.schema, self.table, tenant, thread_id)

    @property
    def schema_key(self) -> int:
        """The advisory lock under which anything is made in the schema."""
        return Names(self.schema, "lock").key("", "")

    def lock(self, tenant: str, *thread_ids: str) -> list[Statement]:
        """Pin the tenant and lock threads until the transaction ends.

        The lock has a statement of its own: taken inside the statement it protects, it
        would come after that one's snapshot. Several locks are taken in one order
        everywhere, so that two callers never wait for each other.
        """
        if len(thread_ids) == 1:
            params = {"tenant": tenant, "key": self.key(tenant, thread_ids[0])}
            return [Hot(_LOCK_ONE, params, False, query=_LOCK_ONE_QUERY, ahead=True)]
        keys = sorted({self.key(tenant, thread_id) for thread_id in thread_ids})
        return [pin(tenant), Statement(_LOCK_MANY, (keys,), False)]


def pin(tenant: str, *, hot: bool = False) -> Statement:
    """Let the policies admit one tenant until the transaction ends, and close the search path.

    Args:
        tenant: The tenant.
        hot: A statement that is used all the time follows: do not plan it anew.
    """
    params = {"tenant": tenant}
    if hot:
        return Hot(_PIN_HOT, params, False, query=_PIN_HOT_QUERY)
    return Statement(_PIN, params, False)
