"""Free columns against `tarfile`."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from tests.support.memory_store import MemoryStore
from tests.support.tars import plain_tar
from wdsdist.errors import ArgumentError, ShardDamagedError
from wdsdist.shards.columns import from_index, read
from wdsdist.shards.columns.read import ColumnLookup
from wdsdist.shards.manifest import join

SAMPLE = st.dictionaries(st.sampled_from(["jpg", "JSON", "seg.png", "txt"]), st.binary(max_size=30), min_size=1)
SHARDS = st.lists(st.lists(SAMPLE, max_size=4), min_size=1, max_size=3)


def written(folder: Path, shards: list[list[dict[str, bytes]]]) -> list[str]:
    names = []
    for number, samples in enumerate(shards):
        members = [
            (f"{number}/k{place}.{extension}", data)
            for place, sample in enumerate(samples)
            for extension, data in sample.items()
        ]
        (folder / f"{number}.tar").write_bytes(plain_tar(members))
        names += [f"{number}/k{place}" for place in range(len(samples))]
    return names


@fewer(3)
@given(SHARDS)
def test_free_columns_are_what_tarfile_says(tmp_path_factory: pytest.TempPathFactory, shards: list) -> None:
    folder = tmp_path_factory.mktemp("data")
    keys = written(folder, shards)
    data = wdsdist.index(folder)
    sizes: dict[str, dict[str, int]] = {key: {} for key in keys}
    where = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                key, _, extension = member.name.partition(".")
                sizes[key][extension.lower()] = member.size
                where[key] = path.name
    assert data.column("key").tolist() == keys
    assert data.column("shard").tolist() == [where[key] for key in keys]
    assert data.column("bytes").tolist() == [sum(sizes[key].values()) for key in keys]
    for name in {extension for one in sizes.values() for extension in one}:
        expected = np.array([sizes[key].get(name, np.nan) for key in keys])
        np.testing.assert_array_equal(data.column(f"{name}.bytes"), expected)


def test_a_concatenation_has_the_columns_that_all_its_data_sets_have(tmp_path: Path) -> None:
    found = []
    for name, sample in (("a", {"jpg": b"1", "txt": b"12"}), ("b", {"txt": b"123"}), ("c", {"txt": b"", "cls": b"0"})):
        (tmp_path / name).mkdir()
        written(tmp_path / name, [[sample], [sample]])
        found.append(wdsdist.index(tmp_path / name))
    joined = join([join(found[:2], ["a", "b"]), found[2]], ["ab", "c"])
    assert [data.base for data in joined.data_sets] == [data.base for data in found]
    assert read.names(joined) == ["key", "shard", "bytes", "txt.bytes"]
    lookup = ColumnLookup(joined, "txt.bytes")
    assert lookup(np.arange(6), np.zeros(6, np.int64)).tolist() == [2, 2, 3, 3, 0, 0]
    with pytest.raises(ArgumentError, match=r"no column 'jpg.bytes'"):
        ColumnLookup(joined, "jpg.bytes")


def test_an_index_with_other_samples_than_the_manifest_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, [[{"txt": b"1"}, {"txt": b"2"}]])
    wdsdist.index(tmp_path)
    listing = json.loads((tmp_path / "index.json").read_text())
    listing["shardlist"][0]["nsamples"] = 3
    del listing["wdsdist"]
    (tmp_path / "index.json").write_text(json.dumps(listing))
    data = wdsdist.open(tmp_path)
    with pytest.raises(ShardDamagedError, match=r"0.tar has 2 samples but its index says 3"):
        data.column("key")


def test_free_columns_of_a_store_read_no_shard(tmp_path: Path) -> None:
    keys = written(tmp_path, [[{"jpg": b"x" * 9}], [{"jpg": b"y"}]])
    wdsdist.index(tmp_path)
    with MemoryStore({path.name: path.read_bytes() for path in tmp_path.iterdir()}) as store:
        data = wdsdist.open(store.url)
        assert data.column("key").tolist() == keys
        assert data.column("jpg.bytes").tolist() == [9, 1]
        assert not [path for path in store.paths("read") if path.endswith(".tar")]
    assert not from_index.is_free("jpg.width")
