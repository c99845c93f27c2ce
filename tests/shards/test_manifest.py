"""``index.json``: a valid wids index that loads as it was saved, and says so when it cannot."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tars import write_shard
from wdsdist import storage
from wdsdist.errors import IndexFormatError
from wdsdist.shards import manifest as manifests
from wdsdist.shards.manifest import Manifest, Shard, index_json, join

SHARDS = [
    Shard("00.tar", 3, 10_240, "ab" * 32),
    Shard("01.tar", 0, 1024, "cd" * 32),
    Shard("köln.tar", 5, 2**40, ""),
]

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\:"), min_size=1, max_size=20)
names = names.filter(lambda name: name not in (".", "..") and ".." not in re.split("[;?#]", name))
shards = st.builds(
    Shard, names, st.integers(0, 2**40), st.integers(-1, 2**58), st.sampled_from(["", "ab" * 32, "0" * 64])
)


def loaded(tmp_path: Path, data: Any, **more: Any) -> Manifest:
    path = tmp_path / "index.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return manifests.load(str(path), **more)


# Saved and loaded


@given(
    st.lists(shards, max_size=5, unique_by=lambda shard: shard.name),
    texts,
    st.dictionaries(st.sampled_from("abc"), st.integers() | texts),
)
def test_a_manifest_loads_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory, listed: list[Shard], name: str, extra: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    manifest = Manifest.of(str(folder), listed, name=name, extra=extra)
    storage.put(f"{folder}/index.json", manifests.dumps(manifest))
    found = manifests.load(f"{folder}/index.json")
    assert (found.shards, found.name, found.extra) == (manifest.shards, manifest.name, manifest.extra)
    assert found.base == str(folder)
    assert found.fingerprint == manifest.fingerprint


def test_a_manifest_shows_its_figures_but_no_credentials_and_no_control_characters() -> None:
    manifest = Manifest.of(
        "s3://me:pass@bucket/train", SHARDS, client_options=storage.named({"key": "secret"}, ["s3://bucket"])
    )
    assert repr(manifest) == "Manifest('s3://bucket/train': 8 samples in 3 shards, 1,099,511,639,040 bytes)"
    fields = Manifest.of("/data", [], extra={"fields": ["jpg", "t\x1b[2Jxt"]})
    assert repr(fields) == r"Manifest('/data': 0 samples in 0 shards, 0 bytes, fields jpg, t\x1b[2Jxt)"
    joined = join([Manifest.of("/a", SHARDS), Manifest.of("/b", SHARDS)], ["a", "b"])
    assert repr(joined) == "Manifest(2 data sets: 16 samples in 6 shards, 2,199,023,278,080 bytes)"


def test_some_shards_of_a_manifest_are_a_manifest() -> None:
    manifest = Manifest.of(
        "s3://bucket", SHARDS, name="n", extra={"k": 1}, client_options=storage.named({"key": "secret"}, [])
    )
    chosen = manifest.of_shards([2, 0])
    assert chosen.shards == (SHARDS[2], SHARDS[0])
    assert (chosen.base, chosen.name, chosen.extra, chosen.client_options) == (
        manifest.base, manifest.name, manifest.extra, manifest.client_options,
    )  # fmt: skip
    assert manifest.of_shards([]).num_samples == 0


# Identity


def test_the_fingerprint_is_the_same_wherever_the_shards_lie() -> None:
    here = Manifest.of("/data", SHARDS, name="a")
    there = Manifest.of("s3://bucket/x", SHARDS, name="b", extra={"k": 1})
    listed = Manifest.of("/", [Shard(f"/data/{s.name}", s.num_samples, s.size, s.sha256) for s in SHARDS])
    assert here.fingerprint == there.fingerprint == listed.fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        [SHARDS[1], SHARDS[0], SHARDS[2]],
        SHARDS[:2],
        [Shard("xx.tar", 3, 10_240, "ab" * 32), *SHARDS[1:]],
        [Shard("00.tar", 4, 10_240, "ab" * 32), *SHARDS[1:]],
        [Shard("00.tar", 3, 10_241, "ab" * 32), *SHARDS[1:]],
        [Shard("00.tar", 3, 10_240, "ac" * 32), *SHARDS[1:]],
    ],
)
def test_the_fingerprint_changes_with_what_the_shards_hold(changed: list[Shard]) -> None:
    assert Manifest.of("/data", changed).fingerprint != Manifest.of("/data", SHARDS).fingerprint


def test_the_fingerprint_is_pinned() -> None:
    # A change here makes every saved training state refuse its own data.
    assert Manifest.of("/data", SHARDS).fingerprint == "1d03594ca11e45cacd22f9ab9e571ac8"


def test_shards_of_a_store_differ_in_more_than_their_queries() -> None:
    listed = [{"url": f"get.tar?part={part}", "nsamples": 3} for part in range(2)]
    with pytest.raises(ValueError, match="says other than entry 0, which has the same name before any query"):
        index_json.entries(listed, "https://host/data")
    assert len(index_json.entries(listed, "/data")) == 2  # where it is a letter of the name


# The wids format


def test_wids_itself_reads_a_data_set_through_index_json(tmp_path: Path) -> None:
    wids = pytest.importorskip("wids", reason="pip install wids")
    listed = []
    for number, count in enumerate([3, 4]):
        path = write_shard(tmp_path / f"{number:02d}.tar", count, prefix=f"s{number}-")
        listed.append(Shard(path.name, count, path.stat().st_size, ""))
    storage.put(f"{tmp_path}/index.json", manifests.dumps(Manifest.of(str(tmp_path), listed)))
    dataset = wids.ShardListDataset(
        str(tmp_path / "index.json"), cache_dir=str(tmp_path / "cache"), keep=True, transformations=[]
    )
    assert len(dataset) == 7
    assert [dataset[number]["__key__"] for number in range(7)] == [
        *(f"s0-{n:04d}" for n in range(3)),
        *(f"s1-{n:04d}" for n in range(4)),
    ]


def test_a_foreign_index_may_give_a_base_and_locations_of_their_own_where_the_user_allows_it(tmp_path: Path) -> None:
    urls = ["x.tar", "https://host/y.tar", "/data/z.tar", "file:///data/w.tar"]
    listed = [{"url": url, "nsamples": 1, "md5sum": "0" * 32, "weight": 2} for url in urls]
    data = {"wids_version": 1, "base": "s3://bucket/train", "shardlist": listed}
    manifest = loaded(tmp_path, data, allow_elsewhere=True)
    assert [manifest.location(number) for number in range(4)] == [
        "s3://bucket/train/x.tar",
        "https://host/y.tar",
        "/data/z.tar",
        "/data/w.tar",
    ]


# Not an index

GOOD = {"wids_version": 1, "shardlist": [{"url": "x.tar", "nsamples": 7}]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "no JSON: Expecting value"),
        ("[" * 100_000, "no JSON: maximum recursion depth exceeded"),
        ("[1]", r"it is \[1\], not an object"),
        ("{}", "no 'wids_version'"),
        ({"wids_version": "1"}, "wids_version is '1'"),
        ({"shardlist": "x.tar"}, "shardlist is 'x.tar', not a list"),
        ({"wdsdist": 5}, "its notes are 5, not an object"),
        ({"wdsdist": {"version": 99, "classes": 7}}, "its notes are of version 99, and this wdsdist reads version 1"),
        ({"wdsdist": {"num_samples": 8000}}, "it promises 8,000 samples and lists 7"),
        *(
            ({"wdsdist": {name: note}}, f"its note '{name}' is .*, of another type")
            for name, notes in {
                "num_samples": ["7", None, True, -1, 1.5, 10**400],
                "classes": [7, "cat", {"cat": 0}, ["cat", None]],
                "generations": [[True], 3],
                "skipped": [3, {"links": "3"}],
                "columns": [["a"], {"a": 7}],
                "key_rule": [3],
            }.items()
            for note in notes
        ),
        *(
            ({"shardlist": [{"url": f"{n}.tar", "nsamples": 0, key: 2**62 - 1} for n in range(3)]}, "64-bit")
            for key in ("nsamples", "filesize")
        ),
    ],
    ids=str,
)
def test_what_is_no_wids_index_is_an_error_with_the_reason(tmp_path: Path, data: Any, reason: str) -> None:
    with pytest.raises(IndexFormatError, match=rf"index\.json is not a wids v1 index \(.*{reason}.*wdsdist index"):
        loaded(tmp_path, {**GOOD, **data} if isinstance(data, dict) else data)


def test_notes_that_wdsdist_does_not_know_are_free(tmp_path: Path) -> None:
    notes = {"source": {"kind": "folder"}, "shuffle_seed": None, "mine": [1, {"deep": None}], "classes": []}
    assert loaded(tmp_path, {**GOOD, "wdsdist": notes}).extra == notes


def test_an_index_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    content = manifests.dumps(Manifest.of("/data", SHARDS)).rstrip()
    for cut in range(len(content)):
        (tmp_path / "index.json").write_bytes(content[:cut])
        with pytest.raises(IndexFormatError):
            manifests.load(str(tmp_path / "index.json"))


def test_a_manifest_of_a_hundred_thousand_shards_stays_a_few_megabytes() -> None:
    listed = (Shard(f"{number:06d}.tar", 1000, 10**8, "ab" * 32) for number in range(100_000))
    manifest = Manifest.of("s3://bucket/train", listed)
    arrays = (manifest.names, manifest.counts, manifest.sizes, manifest.digests)
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in arrays)
    assert sum(array.nbytes for array in arrays) < 10_000_000
