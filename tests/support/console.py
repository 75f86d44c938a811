from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from langgraph_ephemeral_checkpointer.cli.main import main
from tests.support.program import sqlite_file


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Call main() in this process, without any environment that it looks at."""
    for name in ("LGEC_DSN", "NO_COLOR", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str) -> Answer:
        status = main(list(words))
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of four threads: idle, fresh, waiting for a human, and of unknown age."""
    return sqlite_file(tmp_path / "threads.db")
