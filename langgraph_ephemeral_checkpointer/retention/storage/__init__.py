"""Reading a thread's image out of each kind of storage, and writing changes back."""

from __future__ import annotations

from typing import Any

from langgraph_ephemeral_checkpointer.errors import UnsupportedCheckpointerError
from langgraph_ephemeral_checkpointer.strategies import MemoryStrategy, detect_strategy

from .base import MessageStorage, count_rows

__all__ = ["MessageStorage", "count_rows", "storage_of"]


def storage_of(saver: Any) -> MessageStorage:
    """Find out how the messages of a saver are stored.

    Args:
        saver: A saver of LangGraph's own, or of a subclass.

    Raises:
        UnsupportedCheckpointerError: If nothing is known of its storage.
    """
    strategy = detect_strategy(saver)
    if isinstance(strategy, MemoryStrategy):
        from .memory import MemoryStorage

        return MemoryStorage(strategy)
    from langgraph_ephemeral_checkpointer.strategies.sqlite import (
        AsyncSqliteStrategy,
        SqliteStrategy,
    )

    if isinstance(strategy, SqliteStrategy | AsyncSqliteStrategy):
        from .sqlite import SqliteStorage

        return SqliteStorage(strategy)
    try:
        from langgraph_ephemeral_checkpointer.strategies.postgres import (
            AsyncPostgresStrategy,
            PostgresStrategy,
        )
    except ImportError:  # no psycopg, so this is no Postgres saver
        pass
    else:
        if isinstance(strategy, PostgresStrategy | AsyncPostgresStrategy):
            from .postgres import PostgresStorage

            return PostgresStorage(strategy)
    raise UnsupportedCheckpointerError(
        f"messages stored by {type(saver).__name__} cannot be purged, because nothing is known "
        "of its tables; wrap it in RetainedCheckpointer so that its saves trim them"
    )
