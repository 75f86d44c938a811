"""Retention per message: old exchanges go, the thread stays.

``stamp_messages``, ``trim_messages`` and ``oldest_message_time`` are pure functions on lists
of messages; ``RetainedCheckpointer`` applies them at every save of any saver;
``purge_messages`` takes old exchanges out of what is stored already.
"""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.messages.exchanges import trim_messages
from langgraph_ephemeral_checkpointer.messages.hooks import OnBeforeTrim
from langgraph_ephemeral_checkpointer.messages.result import PurgeResult
from langgraph_ephemeral_checkpointer.messages.stamps import oldest_message_time, stamp_messages
from langgraph_ephemeral_checkpointer.retention.purge import apurge_messages, purge_messages
from langgraph_ephemeral_checkpointer.retention.wrapper import RetainedCheckpointer

__all__ = [
    "OnBeforeTrim",
    "PurgeResult",
    "RetainedCheckpointer",
    "apurge_messages",
    "oldest_message_time",
    "purge_messages",
    "stamp_messages",
    "trim_messages",
]
