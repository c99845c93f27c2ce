"""Packing into a URL, in one process: what appears there, in which order, and what never does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_store import Fault, MemoryStore
from tests.support.packing import pack_shown
from wdsdist.errors import DestinationError, SourceError
from wdsdist.packing import pack
from wdsdist.shards import open as catalog
from wdsdist.shards.progress import ShardsProgress

DEST = "faulty://bucket/dest"


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore(name="bucket") as store:
        yield store


def contents(store: MemoryStore) -> dict[str, bytes]:
    found = {path.removeprefix("dest/"): content for path, content in store.files.items()}
    return {name: data for name, data in found.items() if not name.startswith(".wdsdist-pack")}


def pack_there(source: Path, **options: Any) -> Any:
    return pack(source, DEST, **{"shard_samples": 5, "workers": 1, **options})


def test_a_url_gets_the_bytes_that_a_folder_gets(source: Path, store: MemoryStore, alone: dict[str, bytes]) -> None:
    manifest = pack_there(source)
    assert contents(store) == alone
    assert manifest.fingerprint == catalog.open(DEST).fingerprint
    told: list[ShardsProgress] = []
    assert (
        pack_shown(source, DEST, shard_samples=5, workers=1, progress=told.append).fingerprint == manifest.fingerprint
    )
    assert told == []


def written(store: MemoryStore) -> list[str]:
    """Return the names of the objects that were written, in order."""
    return [path.removeprefix("dest/") for path in store.paths("write")]


def test_the_record_comes_first_each_index_after_its_shard_and_index_json_last(
    source: Path, store: MemoryStore
) -> None:
    pack_there(source)
    names = written(store)
    assert names[0] == ".wdsdist-pack.json"
    assert names[-1] == "index.json"
    shards = [f"shard-00000{number}.tar" for number in range(8)]
    assert sorted(names[1:-1]) == [name for shard in shards for name in (shard, f"{shard}.wdsindex")]
    assert all(names.index(shard) < names.index(f"{shard}.wdsindex") for shard in shards)


@pytest.mark.parametrize("refuse_from", range(0, 18, 2))
def test_wherever_uploads_begin_to_fail_the_next_run_finishes_the_rest(
    source: Path, store: MemoryStore, alone: dict[str, bytes], refuse_from: int
) -> None:
    store.plant(Fault("*", "error", after=refuse_from, verb="write", error=PermissionError("access denied")))
    with pytest.raises(DestinationError, match=r"faulty://bucket/dest/.* cannot be written: PermissionError: access"):
        pack_there(source)
    done = set(contents(store))
    assert "index.json" not in done
    store.heal()
    store.requests.clear()
    pack_there(source)
    assert contents(store) == alone
    whole = {name for name in done if f"{name}.wdsindex" in done}
    assert not whole & set(written(store))


def test_a_failure_in_the_middle_of_a_shard_shows_nothing_of_it(
    source: Path, store: MemoryStore, before_writing: Callable[[Callable[[], object]], None]
) -> None:
    before_writing((source / "part1/xxxxx/0007.bin").unlink)
    with pytest.raises(SourceError, match="vanished"):
        pack_there(source, shuffle_seed=None)
    assert "shard-000003.tar" not in contents(store)


def test_a_url_that_workers_do_not_share_is_no_data_set(source: Path, store: MemoryStore) -> None:
    with pytest.raises(DestinationError, match=r"does not hold shard-00000\d\.tar, which a worker has written"):
        pack_there(source, workers=2)
    assert "index.json" not in contents(store)
