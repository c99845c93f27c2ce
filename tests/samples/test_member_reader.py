"""`MemberReader` reads what it is asked for and no more, from local, compressed and remote shards alike."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wdsdist
from tests.support.memory_store import Fault, MemoryStore
from tests.support.web import served
from wdsdist.errors import NotFoundError, StorageError
from wdsdist.samples.member_reader import MemberReader
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.source import CacheOptions

SAMPLES = [{"txt": f"caption {number}" * 9_000, "cls": str(number)} for number in range(12)]
LARGE = len("caption 0") * 9_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wdsdist.pack(SAMPLES, tmp_path / "shards", shard_samples=4, shuffle_seed=None)
    return tmp_path / "shards"


@pytest.fixture
def store(folder: Path) -> Iterator[MemoryStore]:
    with MemoryStore({f"x/{path.name}": path.read_bytes() for path in folder.iterdir()}) as store:
        yield store


@pytest.fixture(params=["local", "compressed", "remote", "without ranges"])
def data(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Manifest]:
    if request.param == "compressed":
        yield wdsdist.pack(SAMPLES, tmp_path / "z", shard_samples=4, shuffle_seed=None, compress="zst")
    elif request.param == "without ranges":
        with served(folder, ranges=False) as web:
            yield wdsdist.open(web.url)
    else:
        yield wdsdist.open(folder if request.param == "local" else f"{request.getfixturevalue('store').url}/x")


def cached(manifest: Manifest, tmp_path: Path) -> MemberReader:
    return MemberReader(manifest, CacheOptions(tmp_path / "cache"))


def test_members_are_what_was_packed_whole_and_in_part_by_many_threads(data: Manifest, tmp_path: Path) -> None:
    reader = cached(data, tmp_path)

    def read(number: int) -> dict[str, bytes]:
        sample = reader.sample(number)
        return {member.extension: reader.read(sample, member) for member in sample.members}

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(read, range(12)))
    assert found == [{name: value.encode() for name, value in sample.items()} for sample in SAMPLES]
    sample = reader.sample(2)
    member = next(member for member in sample.members if member.extension == "txt")
    assert (reader.read(sample, member, 2, 5), reader.read(sample, member, LARGE - 4, LARGE + 9)) == (b"pti", b"on 2")


def test_a_sample_outside_is_named(data: Manifest, tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="there is no sample 12: the data set has 12"):
        cached(data, tmp_path).sample(12)


def test_a_remote_part_is_fetched_alone_and_wrong_bytes_once_more(store: MemoryStore, tmp_path: Path) -> None:
    reader = cached(wdsdist.open(f"{store.url}/x"), tmp_path)
    sample = reader.sample(2)
    store.plant(Fault("x/shard-000000.tar", "wrong-bytes", times=1))
    read = {member.extension: reader.read(sample, member).decode() for member in sample.members}
    assert read == SAMPLES[2]
    ranges = [(one.start, one.stop) for one in store.requests if one.path.endswith(".tar")]
    assert len(ranges) == 2, "the sample twice"
    assert all(stop - start < 2 * LARGE for start, stop in ranges if start is not None and stop is not None)


def test_a_shard_that_is_gone_is_named(store: MemoryStore, folder: Path, tmp_path: Path) -> None:
    remote = cached(wdsdist.open(f"{store.url}/x"), tmp_path)
    sample = remote.sample(4)
    del store.files["x/shard-000001.tar"]
    (folder / "shard-000001.tar").unlink()
    for read in (lambda: remote.read(sample, sample.members[0]), lambda: MemberReader(wdsdist.open(folder)).sample(4)):
        with pytest.raises(NotFoundError, match=r"shard-000001\.tar does not exist"):
            read()


def test_a_store_that_does_not_answer_is_not_asked_for_the_whole_shard(store: MemoryStore, tmp_path: Path) -> None:
    options = CacheOptions(tmp_path / "cache", timeout=0.1)
    reader = MemberReader(wdsdist.open(f"{store.url}/x"), options)
    sample = reader.sample(0)
    store.plant(Fault("x/shard-000000.tar", "error", error=ConnectionError("down")))
    with pytest.raises(StorageError, match="down"):
        reader.read(sample, sample.members[0])
    assert not [one for one in store.requests if one.path.endswith(".tar") and one.stop is None]
