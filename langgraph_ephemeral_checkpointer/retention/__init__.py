"""Retention per message: old exchanges go, the thread stays."""

from .exchanges import trim_messages
from .stamps import oldest_message_time, stamp_messages
from .wrapper import OnBeforeTrim, RetainedCheckpointer

__all__ = [
    "OnBeforeTrim",
    "RetainedCheckpointer",
    "oldest_message_time",
    "stamp_messages",
    "trim_messages",
]
