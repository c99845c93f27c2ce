"""One small data set, two ranks of a gloo group, and the check of what any loader reads of it on both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.gloo_ranks import Ranks, fork_workers
from tests.support.tars import write_numbered

COUNTS = (9, 0, 14, 1, 13)
TOTAL = sum(COUNTS)
Batches = list[list[int]]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five shards; sample ``n`` of 37 has the class ``n`` and as many bytes of text."""
    folder = write_numbered(tmp_path_factory.mktemp("shards"), COUNTS, texts=lambda number: number)
    wdsdist.index(folder)
    return folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes of one gloo group, which fork their workers as processes do by default."""
    group = Ranks(2, tmp_path_factory.mktemp("ranks"))
    group.all(fork_workers)
    yield group
    group.end()


def check_epochs(found: Any) -> None:
    """Check the epochs of two ranks: equal batches, each sample once and one twice, and no epoch like another."""
    assert not [error for error in found if isinstance(error, str)], found
    for first, second in zip(*found, strict=True):
        assert list(map(len, first)) == list(map(len, second))
        counts = Counter(chain(*first, *second))
        assert (counts.keys(), counts.total()) == (set(range(TOTAL)), TOTAL + 1), "one sample makes the ranks even"
    assert len(set(map(str, found[0]))) == len(found[0])
