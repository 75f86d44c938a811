"""The command that sweeps again and again."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from clypi import arg

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import Executable
from langgraph_ephemeral_checkpointer.cli.failures import CommandError
from langgraph_ephemeral_checkpointer.cli.pools import savers_of
from langgraph_ephemeral_checkpointer.cli.runner import Health, Runner
from langgraph_ephemeral_checkpointer.cli.serving import serving
from langgraph_ephemeral_checkpointer.cli.settings import settings_of
from langgraph_ephemeral_checkpointer.common.lazy import remedy
from langgraph_ephemeral_checkpointer.common.secrets import Dsn

UNREADY_AFTER = 3
TEXT = "text/plain; charset=utf-8"


class Run(Executable, takes=options.RUNNING):
    """Sweep again and again, until SIGTERM or Ctrl-C; then finish the batch and end with 0."""

    backend: str | None = options.BACKEND_OR_FILE
    dsn: Dsn | None = options.DSN
    table: str | None = options.TABLE
    schema: str | None = options.SCHEMA
    tenant: str | None = options.TENANT
    all_tenants: bool = options.ALL_TENANTS
    config: str | None = options.CONFIG
    resolver: str | None = options.RESOLVER
    dry_run: bool = arg(
        False, help="Delete nothing and write nothing; show what live sweeps would do."
    )
    once: bool = arg(False, help="Sweep once and end, with status 1 if that failed.")
    audit_log: str | None = options.AUDIT_LOG
    hash_ids: bool = options.HASH_IDS
    metrics_port: int | None = arg(
        None,
        parser=options.port,
        help="Serve /metrics for Prometheus, /healthz and /readyz; 0 is any free port. Needs the "
        "extra metrics.",
    )
    metrics_host: str = arg(
        "0.0.0.0",  # noqa: S104 - a scrape and a probe come from another machine
        help="The address to serve them on (default: 0.0.0.0, which is all).",
    )
    unready_after: int = arg(
        UNREADY_AFTER,
        parser=options.count,
        help="Answer /readyz with 503 after N failed sweeps in a row (default: 3).",
    )
    json: bool = arg(False, help="Write the result of each sweep as a JSON object and line.")
    log_format: str = options.LOG_FORMAT
    debug: bool = options.DEBUG

    @classmethod
    def names_rules(cls) -> bool:
        """Name the rules before anything is deleted."""
        return True

    def execute(self, console: Console) -> int:
        """Sweep until told to stop."""
        settings = settings_of(self, os.environ)
        health = Health(self.unready_after)
        with ExitStack() as stack:
            metrics = None
            if self.metrics_port is not None:
                metrics, pages = _metrics(health)
                port = stack.enter_context(serving(self.metrics_host, self.metrics_port, pages))
                console.message(f"serving metrics on port {port}", event="serving", port=port)
            savers = stack.enter_context(savers_of(settings, os.environ, console))
            runner = Runner(
                settings,
                savers,
                console,
                health,
                metrics=metrics,
                write_json=self.json,
                once=self.once,
                dry_run=self.dry_run,
            )
            return runner.run(settings.sweep.interval)


def _metrics(health: Health) -> tuple[Any, dict[str, Any]]:
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ImportError as error:
        raise CommandError(remedy("--metrics-port", "metrics", error)) from error
    from langgraph_ephemeral_checkpointer.metrics import SweepMetrics

    registry = CollectorRegistry()
    return SweepMetrics(registry), {
        "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
        "/healthz": lambda: (200, TEXT, b"ok\n"),
        "/readyz": health.answer,
    }
