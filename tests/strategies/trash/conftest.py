"""A backend here is a storage that can have a trash."""

from __future__ import annotations

import pytest

from tests.support.storages import Storage


@pytest.fixture
def backend(trashed: Storage) -> Storage:
    return trashed
