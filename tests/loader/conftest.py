"""One small data set for all tests of the loader: uneven shards, one of them empty."""

from __future__ import annotations

from pathlib import Path

import pytest

import wdsdist
from tests.support import tars

COUNTS = (30, 0, 7, 41, 1, 24)
TOTAL = sum(COUNTS)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six shards; sample ``n`` has the key ``k<n>``, the class ``n`` and a text of ``n % 7`` bytes."""
    folder = tmp_path_factory.mktemp("shards")
    number = 0
    for shard, count in enumerate(COUNTS):
        members = []
        for _ in range(count):
            members += [(f"k{number}.cls", str(number).encode()), (f"k{number}.txt", b"x" * (number % 7))]
            number += 1
        (folder / f"{shard:03d}.tar").write_bytes(tars.plain_tar(members))
    wdsdist.index(folder)
    return folder
