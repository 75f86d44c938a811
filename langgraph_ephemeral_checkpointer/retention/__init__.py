"""Retention per message: old exchanges go, the thread stays.

``stamp_messages``, ``trim_messages`` and ``oldest_message_time`` are pure functions on lists
of messages; ``RetainedCheckpointer`` applies them at every save of any saver;
``purge_messages`` takes old exchanges out of what is stored already.
"""

from __future__ import annotations

from .arguments import OnBeforeTrim
from .exchanges import trim_messages
from .purge import apurge_messages, purge_messages
from .result import PurgeResult
from .stamps import oldest_message_time, stamp_messages
from .wrapper import RetainedCheckpointer

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
