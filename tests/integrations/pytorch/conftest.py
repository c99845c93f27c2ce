"""One small data set, and two ranks of a gloo group, for what torch and its companions do with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import wdsdist
from tests.support import tars
from tests.support.forking import fork_workers
from tests.support.gloo_ranks import Ranks

COUNTS = (9, 0, 14, 1, 13)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five shards; sample ``n`` of 37 has the class ``n`` and as many bytes of text."""
    folder = tmp_path_factory.mktemp("shards")
    numbers = iter(range(sum(COUNTS)))
    for shard, count in enumerate(COUNTS):
        members = []
        for _, number in zip(range(count), numbers, strict=False):
            members += [(f"k{number}.cls", b"%d" % number), (f"k{number}.txt", b"x" * number)]
        (folder / f"{shard:03d}.tar").write_bytes(tars.plain_tar(members))
    wdsdist.index(folder)
    return folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes of one gloo group, which fork their workers as processes do by default."""
    group = Ranks(2, tmp_path_factory.mktemp("ranks"))
    group.all(fork_workers)
    yield group
    group.end()
