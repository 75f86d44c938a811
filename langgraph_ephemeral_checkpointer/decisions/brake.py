"""The brake: a sweep that would take too large a share of all threads is refused. Pure.

It is for the first run after a wrong unit (days taken for hours) or a rule that matches
too much: then nearly everything is expired at once, which no ordinary day looks like.
"""

from __future__ import annotations


def refusal(expired: int, threads: int, percent: float) -> str | None:
    """Say why a sweep must not go on, or None if it may.

    Args:
        expired: How many threads the rules match, whether or not a limit would stop the
            sweep sooner: a limit makes a wrong rule slow, not right.
        threads: How many there are.
        percent: The greatest share that may go.
    """
    if expired * 100 <= percent * threads:
        return None
    share = 100 * expired / max(threads, 1)
    return (
        f"refused: the rules match {expired} of {threads} threads ({share:.0f}%), more than "
        f"max_delete_percent={percent:g} allows; nothing was deleted. If that is what you want, "
        "sweep once without the brake (--force)"
    )
