"""Columns against `tarfile`, `json` and numpy: those that the shards say, classes, and members."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from tests.support.memory_store import Fault, MemoryStore
from tests.support.tars import plain_tar, write_samples
from tests.support.web import served
from wdsdist.batching.batcher import ColumnLookup
from wdsdist.curation import columns, fields
from wdsdist.errors import ArgumentError, ShardDamagedError
from wdsdist.shards.manifest import Manifest, join

SAMPLE = st.dictionaries(st.sampled_from(["jpg", "JSON", "seg.png", "txt"]), st.binary(max_size=30), min_size=1)
SHARDS = st.lists(st.lists(SAMPLE, max_size=4), min_size=1, max_size=3)


@fewer(3)
@given(SHARDS)
def test_free_columns_are_what_tarfile_says(tmp_path_factory: pytest.TempPathFactory, shards: list) -> None:
    folder = tmp_path_factory.mktemp("data")
    keys = write_samples(folder, shards)
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


def test_keys_that_are_not_utf8_stay_different(tmp_path: Path) -> None:
    names = [b"\xff.txt", b"\xfe.txt", "ä.txt".encode()]
    content = plain_tar((name.decode("utf-8", "surrogateescape"), b"x") for name in names)
    (tmp_path / "0.tar").write_bytes(content)
    data = wdsdist.index(tmp_path)
    assert data.column("key").tolist() == ["\\xff", "\\xfe", "ä"]
    assert data.select("\"key\" = 'ä'").num_samples == 1
    assert len(data.select(exclude=["\\xff"]).column("key")) == 2


def test_a_concatenation_has_the_columns_that_all_its_data_sets_have(tmp_path: Path) -> None:
    found = []
    for name, sample in (("a", {"jpg": b"1", "txt": b"12"}), ("b", {"txt": b"123"}), ("c", {"txt": b"", "cls": b"0"})):
        (tmp_path / name).mkdir()
        write_samples(tmp_path / name, [[sample], [sample]])
        found.append(wdsdist.index(tmp_path / name))
    joined = join([join(found[:2], ["a", "b"]), found[2]], ["ab", "c"])
    assert columns.names(joined) == ["key", "shard", "bytes", "txt.bytes"]
    lookup = ColumnLookup(joined, "txt.bytes")
    assert lookup(np.arange(6), np.zeros(6, np.int64)).tolist() == [2, 2, 3, 3, 0, 0]
    with pytest.raises(ArgumentError, match=r"no column 'jpg.bytes'"):
        ColumnLookup(joined, "jpg.bytes")


def test_free_columns_of_a_store_read_no_shard(tmp_path: Path) -> None:
    keys = write_samples(tmp_path, [[{"jpg": b"x" * 9}], [{"jpg": b"y"}]])
    wdsdist.index(tmp_path)
    with MemoryStore({path.name: path.read_bytes() for path in tmp_path.iterdir()}) as store:
        data = wdsdist.open(store.url)
        assert data.column("key").tolist() == keys
        assert data.column("jpg.bytes").tolist() == [9, 1]
        assert not [path for path in store.paths("read") if path.endswith(".tar")]


# Classes


def test_classes_are_columns_by_themselves(tmp_path: Path) -> None:
    packed = wdsdist.pack(({"cls": n % 3, "txt": "x"} for n in range(12)), tmp_path / "shards", shard_samples=5)
    with served(tmp_path / "shards") as web:  # which cannot be written
        assert wdsdist.open(web.url).select('"cls" = 1').num_samples == 4
    data = packed.with_source(extra={**packed.extra, "classes": ["cat", "dog"]})
    assert {"cls", "cls.name"} <= set(data.columns)
    assert not (tmp_path / "shards" / "columns").exists()
    named = [{0: "cat", 1: "dog"}.get(number) for number in data.column("cls")]
    assert data.column("cls.name").tolist() == named
    assert data.select("\"cls.name\" = 'dog'").column("cls").tolist() == [1] * 4
    assert [path.name for path in (tmp_path / "shards" / "columns").glob("*.parquet")] == ["cls.parquet"]


def test_classes_of_appended_samples_are_read_too(tmp_path: Path) -> None:
    def pack(numbers: range, **more: Any) -> Manifest:
        return wdsdist.pack(({"cls": n % 3} for n in numbers), tmp_path / "shards", **more)

    assert pack(range(12)).select('"cls" = 1').num_samples == 4
    assert pack(range(6), append=True).select('"cls" = 1').num_samples == 6
    assert wdsdist.open(tmp_path / "shards").column("cls").tolist() == [n % 3 for n in (*range(12), *range(6))]


# Members


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("txt", b"\xff", "can't decode byte 0xff"),
        ("cls", b"cat", "invalid literal"),
        ("json", b"{", "Expecting property name"),
        ("json", b"[" * 200_000, "nested too deeply"),
        ("json", b"9" * 10_000, "digits"),
        ("json.gz", b"no gzip", "incorrect header"),
        ("txt.gz", gzip.compress(bytes(fields.MOST_BYTES + 1), mtime=0), "unpacks to over 16,777,216 bytes"),
        ("bin", bytes(fields.MOST_BYTES + 1), "more than the 16,777,216 of a small member"),
    ],
)
def test_members_that_cannot_be_read_have_no_value_and_the_reason_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes, reason: str
) -> None:
    write_samples(tmp_path, [[{name: content}, {name: b"1" if name != "json.gz" else gzip.compress(b"1")}]])
    data = wdsdist.index(tmp_path).add_columns(fields=[name], workers=1)
    assert columns.column(data, name).is_null().to_pylist()[0]
    assert f"{name}: the members of " in caplog.text
    assert reason in caplog.text


def test_only_what_is_asked_for_is_fetched_and_wrong_bytes_once_more(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    packed = ({"json": {"n": n}, "bin": random.bytes(300_000)} for n in range(8))
    wdsdist.pack(packed, tmp_path / "data", shuffle_seed=None)
    with MemoryStore({path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}) as store:
        for times in (0, 1, 9, 99):
            store.requests.clear()
            store.plant(Fault("shard-000000.tar", "wrong-bytes", times=times))
            output = tmp_path / f"columns{times}"
            if times == 99:
                with pytest.raises(ShardDamagedError, match="the data of member 'json' of sample"):
                    wdsdist.open(store.url).add_columns(fields=["json.n"], output=output)
                continue
            data = wdsdist.open(store.url).add_columns(fields=["json.n"], output=output)
            assert data.column("json.n").tolist() == list(range(8))
            reads = [one for one in store.requests if one.path == "shard-000000.tar"]
            assert sum((one.stop or 1 << 30) - (one.start or 0) for one in reads) < 8 * 3 * 4096 * (1 + times)
