"""What the tests of frameworks share: one small data set, and two ranks of a gloo group that need no network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import wdsdist
from tests.support import tars
from tests.support.gloo_ranks import Ranks

COUNTS = (17, 9, 22, 1, 15)
TOTAL = sum(COUNTS)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five shards; sample ``n`` of 64 has the class ``n``."""
    return _written(tmp_path_factory.mktemp("shards"), COUNTS)


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 61 samples: of their last global batch of 8, two ranks have 3 and 2, and one that is repeated."""
    return _written(tmp_path_factory.mktemp("uneven"), (17, 9, 22, 13))


def _written(folder: Path, counts: tuple[int, ...]) -> Path:
    numbers = itertools.count()
    for shard, count in enumerate(counts):
        members = [(f"k{number}.cls", str(number).encode()) for number in itertools.islice(numbers, count)]
        (folder / f"{shard:03d}.tar").write_bytes(tars.plain_tar(members))
    wdsdist.index(folder)
    return folder


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes of one gloo group, forked from one that has imported the framework of the module's tests."""
    group = Ranks(2, tmp_path_factory.mktemp("ranks"), share=[request.module.FRAMEWORK])
    yield group
    group.end()
