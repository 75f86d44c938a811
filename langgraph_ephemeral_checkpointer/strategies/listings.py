"""What the size of a saver's listing says of whether it is whole."""

from __future__ import annotations

_LIKELY_LIMITS = frozenset(10**power for power in range(2, 9))
_REMEDY = (
    "threads that are not listed are never swept. If there are more, subclass GenericStrategy, "
    "override list_checkpoints() so that it gives every thread, and pass strategy="
)


def doubt_about(saver: str, threads: int, checkpoints: int) -> str | None:
    """Say why a listing of all threads may not be whole, or None where nothing speaks for it.

    Args:
        saver: The name of the saver's class.
        threads: How many threads it listed.
        checkpoints: How many checkpoints of these.
    """
    if checkpoints == 0:
        return (
            f"{saver} listed no checkpoint of any thread. On an empty store that is right, but "
            f"some savers list nothing unless a thread is named, and {_REMEDY}"
        )
    for count, what in ((checkpoints, "checkpoints"), (threads, "threads")):
        if count in _LIKELY_LIMITS:
            return (
                f"{saver} listed exactly {count:,} {what}. That may be chance, but some savers "
                f"stop at a limit of their own, and {_REMEDY}"
            )
    return None
