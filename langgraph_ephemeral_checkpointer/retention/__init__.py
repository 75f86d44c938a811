"""Retention per message: old exchanges go, the thread stays."""

from .exchanges import trim_messages
from .stamps import oldest_message_time, stamp_messages

__all__ = ["oldest_message_time", "stamp_messages", "trim_messages"]
