"""Reading a thread's image out of each kind of storage, and writing changes back."""

from __future__ import annotations

from typing import Any

from langgraph_ephemeral_checkpointer.errors import UnsupportedCheckpointerError
from langgraph_ephemeral_checkpointer.messages.storage import MessageStorage
from langgraph_ephemeral_checkpointer.strategies import MemoryStrategy, detect_strategy


def storage_of(saver: Any) -> MessageStorage:
    """Find out how the messages of a saver are stored.

    Args:
        saver: A saver of LangGraph's own, or of a subclass.

    Raises:
        UnsupportedCheckpointerError: If nothing is known of its storage.
    """
    strategy = detect_strategy(saver)
    if isinstance(strategy, MemoryStrategy):
        from langgraph_ephemeral_checkpointer.strategies.memory.purge import MemoryStorage

        return MemoryStorage(strategy)
    from langgraph_ephemeral_checkpointer.strategies.sqlite.strategy import (
        AsyncSqliteStrategy,
        SqliteStrategy,
    )

    if isinstance(strategy, SqliteStrategy | AsyncSqliteStrategy):
        from langgraph_ephemeral_checkpointer.strategies.sqlite.purge import SqliteStorage

        return SqliteStorage(strategy)
    try:
        from langgraph_ephemeral_checkpointer.strategies.postgres.strategy import (
            AsyncPostgresStrategy,
            PostgresStrategy,
        )
    except ImportError:  # no psycopg, so this is no Postgres saver
        pass
    else:
        if isinstance(strategy, PostgresStrategy | AsyncPostgresStrategy):
            from langgraph_ephemeral_checkpointer.strategies.postgres.purge import PostgresStorage

            return PostgresStorage(strategy)
    raise UnsupportedCheckpointerError(
        f"messages stored by {type(saver).__name__} cannot be purged, because nothing is known "
        "of its tables; wrap it in RetainedCheckpointer so that its saves trim them"
    )
