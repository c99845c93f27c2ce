"""Finding data sets and indexing tars: every way to name one, each tar scanned once, no damage passed over."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import wdsdist
from tests.support.tars import plain_tar, write_shard
from wdsdist.errors import DestinationError, ShardDamagedError
from wdsdist.shards import index as shardindex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.open import matching

COUNTS = [3, 4, 0]
NAMES = ["train-00.tar", "train-01.tar", "train-02.tar"]


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """A folder of three tars that someone else made."""
    folder = tmp_path / "tars"
    folder.mkdir()
    for name, count in zip(NAMES, COUNTS, strict=True):
        write_shard(folder / name, count, prefix=name[6:8] + "-", extensions=("jpg", "cls"))
    return folder


@pytest.fixture
def data_set(tars: Path) -> Path:
    """The same folder, indexed."""
    wdsdist.index(tars, workers=1)
    return tars


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Call it with a folder, and from then on no file can be made there: as without permission, but also for root."""
    make = os.open
    closed: set[Path] = set()

    def opened(path: Any, *how: Any, **more: Any) -> int:
        if isinstance(path, Path) and path.parent in closed and path.name.startswith(".tmp-"):
            raise PermissionError(13, "Permission denied", str(path))
        return make(path, *how, **more)

    monkeypatch.setattr(os, "open", opened)
    return closed.add


def listed(manifest: Manifest) -> list[tuple[str, int]]:
    """Return the location and the samples of each shard."""
    return [(manifest.location(number), shard.num_samples) for number, shard in enumerate(manifest.shards)]


def expected(folder: Path | str, *numbers: int) -> list[tuple[str, int]]:
    return [(f"{folder}/{NAMES[number]}", COUNTS[number]) for number in numbers]


# Ways to name a data set


@pytest.mark.parametrize(
    "form", [str, Path, "{}/".format, "file://{}".format, "{}/index.json".format, "file://{}/index.json".format]
)
def test_an_indexed_folder_opens_by_its_path_its_url_or_its_index(data_set: Path, form: Callable[[Path], str]) -> None:
    manifest = wdsdist.open(form(data_set))
    assert listed(manifest) == expected(data_set, 0, 1, 2)
    assert wdsdist.open(manifest) is manifest


@pytest.mark.parametrize("indexed", [True, False])
def test_tars_open_one_by_one_by_pattern_and_in_lists_in_the_order_given(tars: Path, indexed: bool) -> None:
    if indexed:
        wdsdist.index(tars, workers=1)
    assert listed(wdsdist.open(tars / NAMES[1])) == expected(tars, 1)
    assert listed(wdsdist.open(f"file://{tars}/{NAMES[1]}")) == expected(tars, 1)
    assert listed(wdsdist.open(f"{tars}/train-{{00..02}}.tar")) == expected(tars, 0, 1, 2)
    assert listed(wdsdist.open([str(tars / NAMES[2]), tars / NAMES[0]])) == expected(tars, 2, 0)
    assert listed(wdsdist.open((f"{tars}/train-{{00..01}}.tar", f"{tars}/train-02.tar"))) == expected(tars, 0, 1, 2)


def test_tars_of_an_indexed_folder_are_found_in_its_index_not_scanned(
    data_set: Path, no_scan: Callable[[], None]
) -> None:
    for sidecar in data_set.glob("*.wdsindex"):
        sidecar.unlink()
    added = write_shard(data_set / "added.tar", 4)
    assert listed(wdsdist.open([data_set / NAMES[2], added])) == [*expected(data_set, 2), (str(added), 4)]
    no_scan()
    assert listed(wdsdist.open(data_set / NAMES[1])) == expected(data_set, 1)


@pytest.fixture
def in_memory(data_set: Path) -> str:
    """The data set in a store that is reached by URL."""
    store, url = fsspec.filesystem("memory"), f"memory://{data_set.parent.name}"
    for path in data_set.iterdir():
        store.pipe(f"/{data_set.parent.name}/{path.name}", path.read_bytes())
    return url


def test_a_pattern_in_a_store_may_have_folders_at_each_level() -> None:
    store = fsspec.filesystem("memory")
    for name in ("0.tar", "a/0.tar", "b/0.tar", "b/1.tar", "b/c/0.tar"):
        store.pipe(f"/patterns/{name}", b"")
    for pattern, found in (("*/0.tar", ["a/0", "b/0"]), ("*.tar", ["0"]), ("**/0.tar", ["a/0", "b/0", "b/c/0"])):
        assert matching(f"memory://patterns/{pattern}", None) == [f"memory://patterns/{name}.tar" for name in found]


def test_a_data_set_opens_by_the_url_of_its_folder_or_index_or_tars(in_memory: str, data_set: Path) -> None:
    for url in (in_memory, f"{in_memory}/", f"{in_memory}/index.json", f"{in_memory}/train-{{00..02}}.tar"):
        assert listed(wdsdist.open(url)) == expected(in_memory, 0, 1, 2)
    assert listed(wdsdist.open(f"{in_memory}/{NAMES[1]}")) == expected(in_memory, 1)
    opened = wdsdist.open(in_memory, storage_options={"skip_instance_cache": True})
    assert opened.client_options is not None
    assert opened.client_options.given == {"skip_instance_cache": True}
    assert opened.fingerprint == wdsdist.open(data_set).fingerprint


# What is not a data set


def test_hidden_tars_are_passed_over(tars: Path) -> None:
    (tars / ".tmp-1-train-03.tar").write_bytes(b"half of a tar")  # as copying and packing name what is half written
    (tars / "._train-00.tar").write_bytes(b"what macOS notes of another file")
    assert wdsdist.index(tars).num_samples == sum(COUNTS)


# Foreign tars: scanned once, their index kept


def test_a_foreign_tar_is_scanned_once(tars: Path, user_cache: Path, no_scan: Callable[[], None]) -> None:
    first = wdsdist.open(tars / NAMES[1])
    assert (tars / f"{NAMES[1]}.wdsindex").is_file()
    assert not list(user_cache.iterdir())
    no_scan()
    again = wdsdist.open(tars / NAMES[1])
    assert again.shards == first.shards
    assert again.shards[0].sha256 == hashlib.sha256((tars / NAMES[1]).read_bytes()).hexdigest()


def test_where_the_folder_cannot_be_written_the_index_is_kept_in_the_users_cache(
    tars: Path,
    user_cache: Path,
    read_only: Callable[[Path], None],
    no_scan: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WDSDIST_CACHE_DIR", str(user_cache / "not" / "made yet"))
    read_only(tars)
    first = [wdsdist.open(tars / name).shards for name in NAMES]
    assert sorted(path.name for path in tars.iterdir()) == NAMES
    assert len(list(user_cache.rglob("*.wdsindex"))) == 3
    no_scan()
    assert [wdsdist.open(tars / name).shards for name in NAMES] == first


def test_a_user_without_a_home_opens_and_reads_tars(tars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDSDIST_CACHE_DIR", "~nobody-has-this-name/cache")
    for _ in range(2):
        assert listed(wdsdist.open(tars / NAMES[1])) == expected(tars, 1)
    assert wdsdist.StreamingDataset(tars / NAMES[1], num_replicas=1, rank=0)[0]["__key__"]


def test_a_tar_that_is_replaced_does_not_keep_its_index_in_the_cache(
    tars: Path, read_only: Callable[[Path], None]
) -> None:
    path = tars / NAMES[1]
    read_only(tars)
    assert wdsdist.open(path).num_samples == 4
    size = path.stat().st_size
    write_shard(path, 2, extensions=("jpg", "cls"))
    assert path.stat().st_size == size  # tarfile fills up to 10,240 bytes: only the time tells them apart
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert wdsdist.open(path).num_samples == 2


@pytest.mark.parametrize(("change", "how"), [(-1000, "1,000 bytes short of"), (512, "512 bytes longer than")])
def test_a_tar_of_another_size_than_its_index_says_is_damage_that_names_both_sizes(
    tars: Path, change: int, how: str
) -> None:
    path = tars / NAMES[1]
    wdsdist.open(path)
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + bytes(change))
    with pytest.raises(ShardDamagedError, match=rf"{path} is {how} its index \(10,240\): fetch .*wdsdist index"):
        wdsdist.open(path)


def test_a_damaged_index_in_the_users_cache_is_made_again(
    tars: Path, user_cache: Path, read_only: Callable[[Path], None]
) -> None:
    read_only(tars)
    wdsdist.open(tars / NAMES[1])
    (kept,) = user_cache.rglob("*.wdsindex")
    kept.write_bytes(b"not an index")
    assert listed(wdsdist.open(tars / NAMES[1])) == expected(tars, 1)
    assert shardindex.load(kept).num_samples == 4


# Damaged tars


@pytest.mark.parametrize("workers", [1, 2])
def test_one_damaged_tar_among_good_ones_leaves_no_data_set(tars: Path, workers: int) -> None:
    (tars / NAMES[1]).write_bytes((tars / NAMES[1]).read_bytes()[:-9000])
    with pytest.raises(ShardDamagedError, match=NAMES[1]):
        wdsdist.index(tars, workers=workers)
    assert not (tars / "index.json").exists()
    with pytest.raises(ShardDamagedError, match=NAMES[1]):
        wdsdist.open(f"{tars}/train-{{00..02}}.tar")
    assert not (tars / f"{NAMES[1]}.wdsindex").exists()


# Indexing


@pytest.mark.parametrize("workers", [1, 2])
def test_indexing_makes_a_data_set_of_a_folder_of_tars(tars: Path, workers: int) -> None:
    made = wdsdist.index(tars, workers=workers)
    found = wdsdist.open(tars)
    assert listed(found) == listed(made) == expected(tars, 0, 1, 2)
    assert found.fingerprint == made.fingerprint
    for shard in found.shards:
        content = (tars / shard.name).read_bytes()
        assert (shard.size, shard.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert shardindex.load(tars / f"{shard.name}.wdsindex").num_samples == shard.num_samples


def test_indexing_notes_what_the_tars_hold(tars: Path) -> None:
    odd = [("README", b"12345"), (".hidden", b""), ("1.JPG", b"123"), ("1.txt", b"12")]
    (tars / "odd.tar").write_bytes(plain_tar(odd))
    extra = wdsdist.index(tars, workers=1).extra
    assert wdsdist.open(tars).extra == extra
    assert extra["source"] == {"kind": "tar"}
    assert extra["fields"] == ["cls", "jpg", "txt"]
    assert extra["payload_bytes"] == 5 + 7 * 2 * len("00-0000.jpg")
    assert sum(extra["skipped"].values()) == 2


def test_indexing_again_gives_the_same_bytes(data_set: Path) -> None:
    before = {path.name: path.read_bytes() for path in data_set.iterdir()}
    wdsdist.index(data_set, workers=2)
    assert {path.name: path.read_bytes() for path in data_set.iterdir()} == before


def test_a_folder_that_cannot_be_written_is_not_indexed(tars: Path, read_only: Callable[[Path], None]) -> None:
    read_only(tars)
    with pytest.raises(DestinationError, match=rf"{tars}/.* cannot be written: Permission denied: name a local"):
        wdsdist.index(tars, workers=1)
    assert sorted(path.name for path in tars.iterdir()) == NAMES


def test_a_tar_with_a_name_that_no_index_can_stand_beside_is_indexed_in_the_users_cache(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / ("x" * 248 + ".tar"), 3)
    assert wdsdist.open(tar).num_samples == 3
    assert wdsdist.open(tar).num_samples == 3
