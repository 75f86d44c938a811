"""When a message was first saved: writing the stamp and reading it back. Pure.

The stamp lives in ``response_metadata``, which LangChain keeps on every kind of message,
serializes with it, and sends to no provider.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeAlias, TypeVar

from langchain_core.messages import BaseMessage

from langgraph_ephemeral_checkpointer.messages.arguments import check_messages, check_moment

STAMP_KEY = "checkpointed_at"
"""Where the stamp is, in ``response_metadata``."""

M = TypeVar("M", bound=BaseMessage)

Place: TypeAlias = tuple[str, str]
"""A namespace of a thread and a channel in it."""

Name: TypeAlias = str | tuple[Place, str]
"""A message's id, or the place that holds it and a digest of its words."""

# Merging chunks concatenates strings, so several moments may stand in one stamp; the
# look-ahead makes a fraction or an offset give back the digits of the next one's year.
_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}"
    r"(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:Z|z|[+-]\d{2}(?::?\d{2})?)?)?"
    r"(?=\d{4}-\d{2}-\d{2}|\Z)"
)


def as_utc(moment: datetime) -> datetime:
    """The same moment in UTC; a naive one is UTC already."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def format_stamp(moment: datetime) -> str:
    """The text of a stamp: ISO 8601, UTC, microseconds."""
    return as_utc(moment).isoformat(timespec="microseconds")


def parse_stamp(stamp: object) -> datetime | None:
    """Read a stamp, whoever wrote it.

    Args:
        stamp: What stands under the key: ISO 8601 text in any zone (naive and date-only
            mean UTC), several such texts run together, or a datetime.

    Returns:
        The moment in UTC (of several, the youngest), or None where it cannot be read.
    """
    if isinstance(stamp, datetime):
        return as_utc(stamp)
    return _parse_text(stamp) if isinstance(stamp, str) else None


@lru_cache(maxsize=10_000)  # every save looks at every stamp of a channel again
def _parse_text(stamp: str) -> datetime | None:
    text = stamp.strip()
    parts = _MOMENT.findall(text)
    if not parts or "".join(parts) != text:
        return None
    try:
        return max(as_utc(datetime.fromisoformat(part.replace(",", "."))) for part in parts)
    except (ValueError, OverflowError):  # the 31st of February; the year 0000
        return None


def stamp_of(message: BaseMessage) -> datetime | None:
    """When the message was first saved, in UTC, or None where no stamp tells."""
    return parse_stamp(message.response_metadata.get(STAMP_KEY))


def is_stamped(message: BaseMessage) -> bool:
    """Whether anything stands where the stamp belongs, readable or not."""
    return STAMP_KEY in message.response_metadata


def with_stamp(message: M, stamp: str) -> M:
    """A copy of the message that carries the stamp; its content is shared, not copied."""
    metadata = {**message.response_metadata, STAMP_KEY: stamp}
    return message.model_copy(update={"response_metadata": metadata})


def stamp_messages(messages: Iterable[M], now: datetime) -> list[M]:
    """Stamp the messages that carry no stamp yet.

    Args:
        messages: Messages of any kind; neither they nor their list are changed.
        now: The time to stamp with; a naive one means UTC.

    Returns:
        A new list: stamped copies of the unstamped messages, and the others as they are.
        A stamp that cannot be read stays, and so do orders to remove a message.

    Raises:
        TypeError: Something in it is no message, or ``now`` is no datetime.
    """
    check_moment(now, "now")
    stamp = format_stamp(now)
    return [
        message if is_stamped(message) or message.type == "remove" else with_stamp(message, stamp)
        for message in check_messages(messages)
    ]


def oldest_message_time(messages: Iterable[BaseMessage]) -> datetime | None:
    """The oldest readable stamp among the messages, in UTC, or None where there is none.

    Args:
        messages: Messages of any kind.

    Raises:
        TypeError: Something in it is no message.
    """
    return min(filter(None, map(stamp_of, check_messages(messages))), default=None)
