from __future__ import annotations

from tests.cli.conftest import call, file

__all__ = ["call", "file"]
