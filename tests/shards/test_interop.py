"""Indexes of other tools beside tars: counts that open a data set at once, and splits that are kept apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.sources import Shards
from tests.support.tars import write_shard
from tests.support.web import served
from wdsdist.errors import (
    ArgumentError,
    DestinationExistsError,
    NotFoundError,
    ShardDamagedError,
)
from wdsdist.shards.build_index import index_splits
from wdsdist.shards.interop import find_splits
from wdsdist.storage import named

NAMES = ["00000.tar", "00001.tar"]
WIDS = {"__kind__": "wids-shard-index-v1", "wids_version": 1}
LISTED = [{"url": "00000.tar", "nsamples": 2}, {"url": "00001.tar", "nsamples": 3}]


def wids(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {"wids-meta.json": {"shardlist": [{"url": name, "nsamples": count} for name, count in pairs]}}


COUNTS: dict[str, dict[str, Any]] = {
    "timm": {"_info.json": {"splits": {"train": {"filenames": NAMES, "shard_lengths": [2, 3]}}}},
    "wids": {"wids-meta.json": {**WIDS, "shardlist": LISTED}},
    "energon": {".nv-meta/.info.json": {"shard_counts": dict(zip(NAMES, (2, 3), strict=True))}},
    "energon's splits": {
        ".nv-meta/.info.json": {"shard_counts": dict(zip(NAMES, (2, 3), strict=True))},
        ".nv-meta/split.yaml": "exclude: []\nsplit_parts:\n  test: []\n  train:\n  - 0000{0..1}.tar\n  val: []\n",
    },
}


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def written(folder: Path, names: Sequence[str], *, fewest: int) -> Path:
    """A new folder of shards, the first with ``fewest`` samples and each next with one more."""
    folder.mkdir()
    for samples, name in enumerate(names, fewest):
        write_shard(folder / name, samples)
    return folder


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    return written(tmp_path / "tars", NAMES, fewest=2)


@pytest.mark.parametrize("tool", COUNTS)
def test_counts_of_another_tool_open_a_data_set_without_reading_a_tar(
    tars: Path, tool: str, no_scan: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tars, COUNTS[tool])
    no_scan()
    made = wdsdist.open(tars)
    some = wdsdist.open([tars / NAMES[1]])
    monkeypatch.undo()
    assert [(shard.name, shard.num_samples) for shard in made.shards] == list(zip(NAMES, (2, 3), strict=True))
    assert (made.num_bytes, some.num_samples) == (sum(path.stat().st_size for path in tars.glob("*.tar")), 3)
    assert Shards(made).shard(1).key(2) == "sample0002"


@pytest.mark.parametrize("remote", [False, True])
def test_a_wrong_count_is_an_error_that_names_the_file(tars: Path, tmp_path: Path, remote: bool) -> None:
    write(tars, wids(*zip(NAMES, (2, 4), strict=True)))
    with served(tars) as web:
        made = wdsdist.open(web.url if remote else tars)
        reader = Shards(made, tmp_path / "cache")
        assert reader.shard(0).key(1) == "sample0001"
        with pytest.raises(ShardDamagedError, match=r"has 3 samples but wids-meta\.json says 4: .*wdsdist index"):
            reader.shard(1)
    with pytest.raises(ShardDamagedError, match=r"00001\.tar has 3 samples but .*wids-meta\.json says 4"):
        wdsdist.pack(tars, tmp_path / "packed", workers=1)
    assert wdsdist.index(tars, workers=1).num_samples == 5


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (wids(("00000.tar", 2)), r"1 tars, such as 00001\.tar, are in only one of the two"),
        (wids(*((name, 1) for name in [*NAMES, "2.tar"])), r"1 tars, such as 2\.tar, are in only one of the two"),
        (wids(("../00000.tar", 2)), r"'\.\./00000\.tar', may lie outside"),
        (wids(("a.jpg", 2)), "'a.jpg' is not a tar"),
        (wids(("00000.tar", -1)), "has the nsamples -1, which is not a count"),
        (wids(("00000.tar", 1 << 80)), "has the nsamples 12089"),
        ({"wids-meta.json": "[" * 100_000}, "cannot be used"),
        ({"_info.json": {"splits": {"train": {"filenames": NAMES, "shard_lengths": [2]}}}}, "cannot be used"),
        (
            {**COUNTS["energon"], ".nv-meta/split.yaml": "split_parts: {train: ['{0..99999999}.tar']}"},
            "more than 1,048,576 tars",
        ),
        ({**COUNTS["energon"], ".nv-meta/split.yaml": "split_parts: {train: [x.tar]}"}, r"no 'x\.tar'"),
        ({**COUNTS["energon"], ".nv-meta/split.yaml": "{a: *b}"}, "is not YAML"),
        ({**COUNTS["energon"], ".nv-meta/split.yaml": "exclude: [00000.tar]"}, "excludes samples or tars"),
    ],
)
def test_counts_that_cannot_be_used_are_refused_and_do_not_keep_from_indexing(
    tars: Path, files: dict[str, Any], message: str
) -> None:
    write(tars, files)
    with pytest.raises(NotFoundError, match=message) as caught:
        wdsdist.open(tars)
    assert "run `wdsdist index" in str(caught.value)
    assert wdsdist.index(tars, workers=1).num_samples == 5


# Splits

SPLIT_NAMES = ["imagenet-train-0000.tar", "imagenet-train-0001.tar", "imagenet-validation-00.tar"]


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    return written(tmp_path / "splits", SPLIT_NAMES, fewest=1)


def test_splits_in_one_folder_are_told_and_made_on_request(
    splits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert wdsdist.pack(splits, tmp_path / "packed", workers=1).num_samples == 6
    assert f"`wdsdist index {splits} --splits` makes one each" in caplog.text
    caplog.clear()
    assert wdsdist.index(splits, workers=1).num_samples == 6
    assert "train (2 of the tars), validation (1 of the tars)" in caplog.text
    assert f"`wdsdist index {splits} --splits`" in caplog.text
    (splits / "index.json").unlink()
    assert [made.num_samples for made in index_splits(splits, workers=1)] == [3, 3]
    assert wdsdist.open(splits / "index-train.json").num_samples == 3
    assert wdsdist.verify(splits / "index-validation.json", workers=1) == []
    with pytest.raises(NotFoundError, match=r"holds several data sets: name one, such as .*/index-train\.json"):
        wdsdist.open(splits)


def test_notes_of_splits_go_before_names(splits: Path) -> None:
    parts = {"a": SPLIT_NAMES[::2], "b": SPLIT_NAMES[1:2]}
    info = {split: {"filenames": names, "shard_lengths": [1] * len(names)} for split, names in parts.items()}
    write(splits, {"_info.json": {"splits": info}})
    assert find_splits(str(splits), SPLIT_NAMES, named({}, [])) == parts
    with pytest.raises(NotFoundError, match=r"holds the splits a, b, as its _info\.json says.*--splits"):
        wdsdist.open(splits)
    assert wdsdist.open(f"{splits}/imagenet-train-*.tar").num_samples == 2


def test_notes_of_energon_lie_above_the_tars_that_they_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = written(tmp_path / "parts", ["a.tar", "b.tar"], fewest=3)
    splits = "exclude: []\nsplit_parts:\n  train: [parts/a.tar]\n  val: [parts/b.tar]\n  test: []\n"
    counts = {"shard_counts": {"parts/a.tar": 3, "parts/b.tar": 4}}
    write(tmp_path, {".nv-meta/.info.json": counts, ".nv-meta/split.yaml": splits})
    with pytest.raises(NotFoundError, match=rf"`wdsdist index {tmp_path} --splits`"):
        wdsdist.open(tmp_path)
    wdsdist.index(parts, output=tmp_path / "own", workers=1)
    assert "look like splits, train (1 of the tars), val (1 of the tars)" in caplog.text
    assert [made.num_samples for made in index_splits(tmp_path, workers=1)] == [3, 4]
    assert wdsdist.open(parts / "index-val.json").shards[0].name == "b.tar"


def test_tars_of_one_split_or_of_none_are_no_splits(splits: Path, caplog: pytest.LogCaptureFixture) -> None:
    (splits / SPLIT_NAMES[2]).rename(splits / "contrast-latest.tar")
    wdsdist.index(splits, workers=1)
    assert "splits" not in caplog.text
    with pytest.raises(ArgumentError, match="has no splits"):
        index_splits(splits)
    (splits / SPLIT_NAMES[1]).rename(splits / "x-test.tar")
    with pytest.raises(ArgumentError, match=r"1 tars of no split, such as contrast-latest\.tar"):
        index_splits(splits)


def test_an_index_of_other_tars_is_never_replaced(splits: Path, tmp_path: Path) -> None:
    wdsdist.index(f"{splits}/*-train-*.tar", workers=1)
    before = (splits / "index.json").read_bytes()
    with pytest.raises(DestinationExistsError, match=r"lists 2 other tars, such as .*name=.*output="):
        wdsdist.index(f"{splits}/*-validation-*.tar", workers=1)
    assert (splits / "index.json").read_bytes() == before
    assert wdsdist.index(f"{splits}/*-validation-*.tar", name="val", workers=1).num_samples == 3
    assert wdsdist.open(splits).num_samples == wdsdist.open(splits / "index-val.json").num_samples == 3
    assert wdsdist.index(splits, workers=1).num_samples == 6  # all of them, so that none is lost


def test_tars_of_equal_names_are_indexed_in_mirrored_folders(tmp_path: Path) -> None:
    places = [tmp_path / "buckets" / size for size in ("256x256", "512x256", "512x256/more")]
    for samples, place in enumerate(places, 1):
        place.mkdir(parents=True)
        write_shard(place / "0.tar", samples, prefix=place.name)
    made = wdsdist.index(f"{tmp_path}/buckets/**/*.tar", output=tmp_path / "own", workers=1)
    assert made.num_samples == 6
    found = {str(path) for path in (tmp_path / "own").rglob("*.wdsindex")}
    assert found == {f"{tmp_path}/own{place}/0.tar.wdsindex" for place in places}
    opened = wdsdist.open(tmp_path / "own", allow_elsewhere=True)
    assert wdsdist.verify(opened, workers=1) == []
    assert Shards(opened.of_shards([2])).shard(0).key(0) == "more0000"
    assert not list((tmp_path / "buckets").rglob("*.wdsindex"))
