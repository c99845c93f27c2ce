"""Remote data sets of small shards, in memory and on the web."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import wdsdist
from tests.support.folders import SHARDS
from tests.support.memory_store import MemoryStore
from tests.support.tars import write_shard
from tests.support.web import Web, served
from wdsdist.shards import index as shardindex
from wdsdist.shards.manifest import Manifest


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards of one size, with their indexes and an index.json."""
    folder = tmp_path_factory.mktemp("packed")
    for number in range(SHARDS):
        write_shard(folder / f"{number:02}.tar", 20, prefix=f"shard{number:02}-")
    wdsdist.index(folder)
    return folder


@pytest.fixture(scope="session")
def room(packed: Path) -> int:
    """Bytes that must be free for one shard, with its index and its stamp."""
    copy = packed / "00.tar"
    return copy.stat().st_size + shardindex.beside(copy).stat().st_size + 512


@pytest.fixture
def store(packed: Path) -> Iterator[MemoryStore]:
    """A store in memory, with the shards in a folder."""
    with MemoryStore({f"train/{path.name}": path.read_bytes() for path in packed.iterdir()}, name="bucket") as store:
        yield store


@pytest.fixture
def remote(store: MemoryStore) -> Manifest:
    """The shards in that store."""
    return wdsdist.open(f"{store.url}/train")


@pytest.fixture
def web(packed: Path) -> Iterator[Web]:
    """The shards on the web, for several processes."""
    with served(packed) as server:
        yield server
