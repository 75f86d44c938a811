"""Time out of checkpoint ids, and ids out of times.

LangGraph names a checkpoint by a UUID version 6, whose text sorts by time
(https://www.rfc-editor.org/rfc/rfc9562#name-uuid-version-6). ``uuid.UUID.time`` reads
the fields of version 1 on Python < 3.14, so the bits are taken apart here.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from fractions import Fraction

_GREGORIAN = 0x01B21DD213814000
"""100-nanosecond ticks from 1582-10-15, where UUID time begins, to 1970-01-01."""
_MAX_TICKS = (1 << 60) - 1
TICKS_PER_SECOND = 10_000_000

# The variant is not checked: ids of the JavaScript client carry other variant bits,
# and a cut-off id made here carries none.
UUID6 = "[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
"""The form of a UUID version 6 as a regular expression, for Python and Postgres."""

_UUID6 = re.compile(UUID6)
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def time_of_id(checkpoint_id: str) -> float | None:
    """Read the time out of a checkpoint id.

    Args:
        checkpoint_id: Any string.

    Returns:
        Seconds since the Unix epoch (negative before 1970), or None where the id is not
        the text of a UUID version 6 or 7.
    """
    if (time := time_of_uuid6(checkpoint_id)) is not None:
        return time
    checkpoint_id = checkpoint_id.lower()
    if _UUID7.fullmatch(checkpoint_id):
        return int(checkpoint_id.replace("-", "")[:12], 16) / 1000
    return time_of_uuid6(checkpoint_id)


def time_of_uuid6(checkpoint_id: str) -> float | None:
    """Read the time out of a lower-case UUID version 6, whose text sorts by time among its like.

    Args:
        checkpoint_id: Any string.

    Returns:
        Seconds since the Unix epoch, or None for everything else.
    """
    ticks = ticks_of(checkpoint_id)
    return None if ticks is None else (ticks - _GREGORIAN) / TICKS_PER_SECOND


def ticks_of(checkpoint_id: str) -> int | None:
    """Read the time out of a lower-case UUID version 6 as it is: in ticks of 100 nanoseconds."""
    if _UUID6.fullmatch(checkpoint_id) is None:
        return None
    # By position, which is cheaper than taking the dashes out: this runs on every thread.
    return int(checkpoint_id[:8] + checkpoint_id[9:13] + checkpoint_id[15:18], 16)


def ticks_at(nanoseconds: int) -> int:
    """Give the ticks of a time in nanoseconds since the Unix epoch."""
    return _GREGORIAN + nanoseconds // 100


def is_uuid6(checkpoint_id: str) -> bool:
    """Say whether an id is a lower-case UUID version 6, whose text sorts by time among its like."""
    return _UUID6.fullmatch(checkpoint_id) is not None


def first_id_at(seconds: float) -> str:
    """Make the smallest UUID version 6 text of a moment, to compare ids with as text.

    Args:
        seconds: Seconds since the Unix epoch. Times that no id can hold give the
            smallest or the greatest id there is.

    Returns:
        Every UUID version 6 from before ``seconds`` sorts below it, every later one not.
    """
    # Exact, and rounded up: what falls between two ticks is after the earlier one. Compared
    # first: an age of 1e300 seconds fits no clock, and infinity is no fraction.
    if seconds <= -_GREGORIAN / TICKS_PER_SECOND:
        ticks = 0
    elif seconds >= (_MAX_TICKS - _GREGORIAN) / TICKS_PER_SECOND:
        ticks = _MAX_TICKS
    else:
        ticks = _GREGORIAN + math.ceil(Fraction(seconds) * TICKS_PER_SECOND)
    digits = f"{ticks:015x}"
    return f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}-0000-000000000000"


def time_of_saved(checkpoint_id: str, ts: object) -> float | None:
    """Tell when a checkpoint was saved: by its id, or where that holds no time by its ``ts``.

    Returns:
        Seconds since the Unix epoch, or None where neither tells.
    """
    time = time_of_id(checkpoint_id)
    return time if time is not None else time_of_ts(ts)


def moment(seconds: float | None) -> datetime | None:
    """Make a time of seconds since the Unix epoch.

    Returns:
        The time in UTC, or None where there is none or a datetime cannot hold it.
    """
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def time_of_ts(ts: object) -> float | None:
    """Read a checkpoint's ``ts``.

    Args:
        ts: What the checkpoint holds under ``ts``; LangGraph writes ISO 8601 in UTC.

    Returns:
        Seconds since the Unix epoch, or None where it is no ISO 8601 time. A time without
        a zone is taken as UTC.
    """
    if not isinstance(ts, str):
        return None
    try:
        moment = datetime.fromisoformat(ts)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
