"""What the commands write: tables for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.common.durations import format_duration
from langgraph_ephemeral_checkpointer.reports.status import ThreadStatus
from langgraph_ephemeral_checkpointer.result import KeepReason, SweepResult

# Columns of a fixed width come first and the thread last, so that a table of any length is
# written as its rows come.
_STATUS_WIDTHS = (8, 8, 11, 24)
_SWEEP_WIDTHS = (12, 15)
_TENANT_WIDTHS = (20,)


def row(*cells: str, widths: Iterable[int], right: Iterable[int] = ()) -> str:
    """Lay out the cells of a line; the last one needs no width.

    Args:
        cells: Their texts.
        widths: Of all cells but the last; a longer text moves the rest of its line.
        right: Indexes of the cells that are flush right.
    """
    *first, last = cells
    aligned = [
        cell.rjust(width) if index in right else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(first, widths, strict=True))
    ]
    return "  ".join([*aligned, last])


def to_json(value: Any) -> str:
    """Write a value as one line of ASCII."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def _with_tenant(tenant: str | None, thread: str) -> str:
    return thread if tenant is None else row(tenant, thread, widths=_TENANT_WIDTHS)


def status_header(tenants: bool = False) -> str:
    """Give the header of the table of ``status``, with a column of tenants or without."""
    thread = _with_tenant("TENANT" if tenants else None, "THREAD")
    return row("IDLE", "AGE", "CHECKPOINTS", "STATE", thread, widths=_STATUS_WIDTHS, right=(2,))


def status_row(status: ThreadStatus, console: Console, tenant: str | None = None) -> str:
    """Give the line of one thread in the table of ``status``."""
    state, style = _state(status)
    return row(
        _age(status.idle_seconds),
        _age(status.age_seconds),
        str(status.checkpoint_count),
        console.paint(state, style) + " " * (_STATUS_WIDTHS[3] - len(state)),
        _with_tenant(tenant and console.quote(tenant), console.quote(status.thread_id)),
        widths=(*_STATUS_WIDTHS[:3], 0),
        right=(2,),
    )


def status_json(status: ThreadStatus, tenant: str | None = None) -> str:
    """Give the JSON object of one thread."""
    told = {**dataclasses.asdict(status), "expired": status.expired}
    return to_json(told if tenant is None else {"tenant": tenant, **told})


def _age(seconds: float | None) -> str:
    return "unknown" if seconds is None else format_duration(seconds)


def _state(status: ThreadStatus) -> tuple[str, str | None]:
    if status.reason is not None:
        return f"expired: {status.reason}", "red"
    if status.interrupted:
        return "interrupted", "yellow"
    if status.kept is KeepReason.AGE_UNKNOWN:
        return "age unknown", "yellow"
    if status.excess_checkpoints:
        return f"active, {status.excess_checkpoints} too many", None
    return "active", None


class Counts:
    """What ``status`` says at its end."""

    def __init__(self) -> None:
        self.threads = self.expired = self.interrupted = self.unknown = 0

    def add(self, status: ThreadStatus) -> None:
        """Count one thread."""
        self.threads += 1
        self.expired += status.expired
        self.interrupted += status.interrupted
        self.unknown += status.idle_seconds is None

    def text(self) -> str:
        """Give the counts as a line."""
        return (
            f"{number(self.threads, 'thread')}: {self.expired} expired, "
            f"{self.interrupted} interrupted, {self.unknown} of unknown age"
        )


def sweep_json(result: SweepResult, console: Console) -> str:
    """Give the JSON object of a sweep."""
    return to_json(_told(result, console))


def _told(result: SweepResult, console: Console) -> dict[str, Any]:
    told = dataclasses.asdict(result)
    told["errors"] = {key: console.redact(error) for key, error in result.errors.items()}
    told["by_tenant"] = {name: _told(part, console) for name, part in result.by_tenant.items()}
    return told


def sweep_lines(result: SweepResult, console: Console) -> Iterator[str]:
    """Give the table of a sweep, and its sum."""
    if result.deleted_thread_ids or result.kept or any(result.errors):
        thread = _with_tenant("TENANT" if result.by_tenant else None, "THREAD")
        yield row("ACTION", "WHY", thread, widths=_SWEEP_WIDTHS)
    parts: dict[Any, SweepResult] = dict(result.by_tenant) or {None: result}
    for tenant, part in parts.items():
        yield from _sweep_rows(part, tenant and console.quote(tenant), console)
    yield summary(result)


def summary(result: SweepResult) -> str:
    """Give what a sweep did as a line."""
    kept = sum(len(part.kept) for part in result.by_tenant.values() or [result])
    return (
        f"{'would delete' if result.dry_run else 'deleted'} "
        f"{number(len(result.deleted_thread_ids), 'thread')}, "
        f"{'would keep' if result.dry_run else 'kept'} {kept} that a rule matched, "
        f"{result.deferred_count} left for the next sweep; "
        f"{'would prune' if result.dry_run else 'pruned'} "
        f"{number(result.pruned_checkpoint_count, 'checkpoint')}; "
        f"{number(result.active_thread_count, 'thread')} alive; "
        f"{result.sweep_duration_seconds:.2f} s"
    )


def _sweep_rows(result: SweepResult, tenant: str | None, console: Console) -> Iterator[str]:
    def line(action: str, style: str, why: str, thread_id: str, error: str | None = None) -> str:
        note = "" if error is None else f"  ({console.redact(error)})"
        return row(
            console.paint(action, style) + " " * (_SWEEP_WIDTHS[0] - len(action)),
            why,
            _with_tenant(tenant, console.quote(thread_id) + note),
            widths=(0, _SWEEP_WIDTHS[1]),
        )

    deleted = "would delete" if result.dry_run else "deleted"
    for thread_id in result.deleted_thread_ids:
        yield line(deleted, "red", result.reasons.get(thread_id, "expired"), thread_id)
    for thread_id, reason in result.kept.items():
        yield line("kept", "yellow", reason, thread_id, result.errors.get(thread_id))
    for thread_id, error in result.errors.items():
        if thread_id and thread_id not in result.kept:
            yield line("left whole", "yellow", "-", thread_id, error)


def number(count: int, noun: str) -> str:
    """Give a count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
