"""The commands around a sweep: check a rules file, compact an SQLite file."""

from __future__ import annotations

import os
from typing import Any

from clypi import arg

from langgraph_ephemeral_checkpointer.cli import options
from langgraph_ephemeral_checkpointer.cli.backends import DSN_VARIABLE, open_saver
from langgraph_ephemeral_checkpointer.cli.console import Console
from langgraph_ephemeral_checkpointer.cli.executable import DONE, FAILED, Executable
from langgraph_ephemeral_checkpointer.cli.failures import UsageError
from langgraph_ephemeral_checkpointer.cli.output import to_json
from langgraph_ephemeral_checkpointer.common.secrets import Dsn
from langgraph_ephemeral_checkpointer.rules import RulesError, load_rules
from langgraph_ephemeral_checkpointer.rules.words import rules_in_words
from langgraph_ephemeral_checkpointer.strategies.sqlite.compact import Compaction, compact_sqlite


class Check(Executable):
    """Check a rules file, and name the line and the key of everything that is wrong in it."""

    config: str = arg(
        parser=options.path,
        help="The rules file, or a langgraph.json; a word without --config is taken for it too. "
        "Required.",
    )
    debug: bool = options.DEBUG

    @classmethod
    def operand(cls) -> str | None:
        """Name the field that a word without an option is the value of."""
        return "config"

    def execute(self, console: Console) -> int:
        """Write what the file says, or what is wrong."""
        try:
            rules = load_rules(self.config)
        except RulesError as error:
            console.traceback(error)
            for problem in error.problems:
                console.failure(problem.text(error.path))
            return FAILED
        for line in rules_in_words(rules):
            console.line(line)
        return DONE


class Compact(Executable):
    """Give the space that deleted threads have left in an SQLite file back to the disk."""

    backend: str = arg(
        "sqlite", parser=options.one_of(options.PLAIN_BACKENDS), help="Only sqlite (the default)."
    )
    dsn: Dsn | None = options.DSN
    json: bool = arg(False, help="Write the sizes as one JSON object, for machines.")
    debug: bool = options.DEBUG

    def execute(self, console: Console) -> int:
        """Compact, and write the sizes before and after."""
        if self.backend != "sqlite":
            raise UsageError("compact is for --backend sqlite; Postgres has autovacuum")
        with open_saver(
            self.backend, self.dsn, os.environ, console, variable=DSN_VARIABLE
        ) as saver:
            done = _compact(saver, console)
        if self.json:
            console.line(
                to_json({"bytes_before": done.bytes_before, "bytes_after": done.bytes_after})
            )
        else:
            console.line(done.text())
        return DONE


def compact_and_tell(saver: Any, console: Console) -> None:
    """Compact the file of an open saver and say so in a message."""
    console.message(_compact(saver, console).text())


def _compact(saver: Any, console: Console) -> Compaction:
    with console.progress(lambda: "compacting"):
        return compact_sqlite(saver)
