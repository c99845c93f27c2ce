"""One small data set for all tests of the loader: uneven shards, one of them empty."""

from __future__ import annotations

from pathlib import Path

import pytest

import wdsdist
from tests.support.tars import write_numbered

COUNTS = (30, 0, 7, 41, 1, 24)
TOTAL = sum(COUNTS)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six shards; sample ``n`` has the key ``k<n>``, the class ``n`` and a text of ``n % 7`` bytes."""
    folder = write_numbered(tmp_path_factory.mktemp("shards"), COUNTS, texts=lambda number: number % 7)
    wdsdist.index(folder)
    return folder
