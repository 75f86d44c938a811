"""The clock of these tests, and the synchronous savers, each in turn."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.backends import Backend

DAY = timedelta(days=1).total_seconds()


class Clock:
    """Seconds since the epoch, as the test says."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_days(self, days: float) -> None:
        self.now += days * DAY


@pytest.fixture
def backend(make_backend: Callable[..., Backend]) -> Backend:
    """Each of the synchronous savers in turn."""
    return make_backend()


@pytest.fixture
def clock() -> Clock:
    """A clock that begins in 2024."""
    return Clock(1_704_067_200.0)
