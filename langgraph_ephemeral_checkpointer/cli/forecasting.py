"""What ``status --forecast`` writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from langgraph_ephemeral_checkpointer.cli.output import row, to_json
from langgraph_ephemeral_checkpointer.common.durations import format_duration
from langgraph_ephemeral_checkpointer.reports.forecast import BUCKETS, Forecast
from langgraph_ephemeral_checkpointer.strategies.sqlite.compact import format_bytes

_WIDTHS = (10, 9, 7)
_BAR = 40


def forecast_json(found: Forecast) -> str:
    """Give a forecast as a JSON object."""
    told = dataclasses.asdict(found)
    told["idle"] = [
        {"below_seconds": end, "threads": count}
        for end, count in zip([*BUCKETS, None], found.idle, strict=True)
    ]
    return to_json(told)


def forecast_lines(found: Forecast) -> Iterator[str]:
    """Give a forecast as a table and a histogram."""
    yield row("IDLE LIMIT", "THREADS", "SHARE", "BYTES", widths=_WIDTHS, right=(1, 2))
    for take in found.takes:
        share = 100 * take.threads / max(found.threads, 1)
        size = "unknown" if take.bytes is None else format_bytes(take.bytes)
        yield row(
            format_duration(take.ttl_seconds),
            str(take.threads),
            f"{share:.0f}%",
            size,
            widths=_WIDTHS,
            right=(1, 2),
        )
    yield ""
    yield from _histogram(found)
    yield (
        f"{found.threads} threads, of which no limit takes {found.interrupted} interrupted, "
        f"{found.unknown} of unknown age, {found.exempt} exempt"
    )


def _histogram(found: Forecast) -> Iterator[str]:
    yield "idle for"
    most = max(1, *found.idle)
    labels = [f"< {format_duration(end)}" for end in BUCKETS] + [
        f">= {format_duration(BUCKETS[-1])}"
    ]
    for label, count in zip(labels, found.idle, strict=True):
        # A bar that is not empty is seen, however small its share.
        bar = "#" * max(round(_BAR * count / most), count > 0)
        yield row(label, str(count), bar, widths=_WIDTHS[:2], right=(1,)).rstrip()
    yield ""
