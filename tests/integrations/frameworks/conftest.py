"""What the tests of frameworks share: one small data set, and two ranks of a gloo group that need no network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import wdsdist
from tests.support.gloo_ranks import Ranks
from tests.support.tars import write_numbered


def _written(folder: Path, *counts: int) -> Path:
    write_numbered(folder, counts)
    wdsdist.index(folder)
    return folder


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five shards; sample ``n`` of 64 has the class ``n``."""
    return _written(tmp_path_factory.mktemp("shards"), 17, 9, 22, 1, 15)


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 61 samples: of their last global batch of 8, two ranks have 3 and 2, and one that is repeated."""
    return _written(tmp_path_factory.mktemp("uneven"), 17, 9, 22, 13)


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes of one gloo group, forked from one that has imported the framework of the module's tests."""
    group = Ranks(2, tmp_path_factory.mktemp("ranks"), share=[request.module.FRAMEWORK])
    yield group
    group.end()
