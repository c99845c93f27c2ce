"""Local shards that are read through the cache, as those of a slow mount: ``stage=True``."""

from __future__ import annotations

import errno
import functools
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import wdsdist
from tests.support.damage import flip
from tests.support.tars import write_shard, write_shards
from wdsdist.cache import ShardCache
from wdsdist.cache.contents import clean, usage
from wdsdist.cli import _wdsdist
from wdsdist.errors import CacheError, NotFoundError, ShardDamagedError
from wdsdist.shards import index as shardindex
from wdsdist.shards.manifest import Manifest, Shard

SHARDS, SAMPLES = 4, 20


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A folder of shards, as it might be mounted from elsewhere."""
    folder = tmp_path / "mount"
    folder.mkdir()
    write_shards(folder, SHARDS, SAMPLES)
    wdsdist.index(folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path / "cache")


def keys_of(dataset: wdsdist.StreamingDataset) -> list[str]:
    loader = wdsdist.StreamingDataLoader(dataset, batch_size=10, num_workers=0)
    return [key for batch in loader for key in batch["__key__"]]


def test_an_epoch_has_the_same_samples_and_reads_the_copies(mount: Path, tmp_path: Path) -> None:
    plain = wdsdist.StreamingDataset(mount, num_replicas=1, rank=0)
    staged = wdsdist.StreamingDataset(mount, num_replicas=1, rank=0, stage=True, cache_dir=tmp_path / "cache")
    assert staged.fingerprint == plain.fingerprint
    assert sorted(keys_of(staged)) == sorted(keys_of(plain))  # in another order, as remote ones
    assert staged.cache.counters().shards_fetched == SHARDS
    with staged.cache.pin(staged.manifest, 1) as pinned:
        assert pinned.path.is_relative_to(tmp_path / "cache")
        assert pinned.path.read_bytes() == (mount / "01.tar").read_bytes()
        assert shardindex.beside(pinned.path).exists()  # so that training does not wait for the mount
    again = wdsdist.StreamingDataset(mount, num_replicas=1, rank=0, stage=True, cache_dir=tmp_path / "cache")
    keys_of(again)
    assert again.cache.counters().shards_fetched == 0


def test_data_sets_that_are_joined_are_staged_too(mount: Path, tmp_path: Path) -> None:
    options = {"stage": True, "cache_dir": tmp_path / "cache", "num_replicas": 1, "rank": 0}
    joined = wdsdist.concat({"one": mount}, **options)
    mixed = wdsdist.mix({"one": (mount, 1.0)}, **options)
    assert len(keys_of(joined)) == len(keys_of(mixed)) == SHARDS * SAMPLES
    assert (joined.cache.counters().shards_fetched, mixed.cache.counters().shards_fetched) == (SHARDS, 0)
    assert mixed.order_config.manifest.is_copied.all()  # so that they are prefetched


def test_a_limit_is_kept(mount: Path, tmp_path: Path) -> None:
    limit = 3 * (mount / "00.tar").stat().st_size
    dataset = wdsdist.StreamingDataset(
        mount, num_replicas=1, rank=0, stage=True, cache_dir=tmp_path / "cache", cache_limit=limit, shuffle_window=5
    )
    assert len(keys_of(dataset)) == SHARDS * SAMPLES
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*")) <= limit


def test_a_shard_that_was_packed_anew_is_copied_anew(mount: Path, cache: ShardCache) -> None:
    cache.pin(wdsdist.open(mount).staged(), 1).close()
    write_shard(mount / "01.tar", SAMPLES, prefix="other1-")
    wdsdist.index(mount)
    with cache.pin(wdsdist.open(mount).staged(), 1) as pinned:
        assert pinned.index.key(0) == "other1-0000"
    assert cache.counters().shards_fetched == 2


def test_a_shard_without_a_digest_is_copied_anew_once_its_file_has_changed(mount: Path, cache: ShardCache) -> None:
    manifest = Manifest.of(str(mount), [Shard("01.tar", SAMPLES, -1, "")]).staged()
    cache.pin(manifest, 0).close()
    cache.pin(manifest, 0).close()
    assert cache.counters().shards_fetched == 1
    write_shard(mount / "01.tar", SAMPLES, prefix="other1-")
    wdsdist.index(mount)
    with cache.pin(manifest, 0) as pinned:
        assert pinned.index.key(0) == "other1-0000"


def test_a_shard_that_was_altered_is_an_error(mount: Path, cache: ShardCache) -> None:
    manifest = wdsdist.open(mount).staged()
    flip(mount / "02.tar", 600)
    with pytest.raises(ShardDamagedError, match=r"02\.tar does not have the digest"):
        cache.pin(manifest, 2)
    assert not cache.path(manifest, 2).exists()


def test_a_shard_that_is_gone_is_an_error(mount: Path, cache: ShardCache) -> None:
    manifest = wdsdist.open(mount).staged()
    (mount / "03.tar").unlink()
    with pytest.raises(NotFoundError, match=r"03\.tar does not exist"):
        cache.pin(manifest, 3)


def test_what_the_cache_cannot_hold_is_an_error_of_the_cache(mount: Path, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", limit=1000)
    with pytest.raises(CacheError, match="cache_limit is 1,000 bytes"):
        cache.pin(wdsdist.open(mount).staged(), 0)


def test_shards_can_be_staged_before_training(mount: Path, tmp_path: Path) -> None:
    words = ["cache", "warm", str(mount), "--stage", "--cache-dir", str(tmp_path / "cache")]
    done = CliRunner().invoke(_wdsdist, words)
    assert done.stdout.startswith(f"warm: {SHARDS} shards, ")
    dataset = wdsdist.StreamingDataset(mount, num_replicas=1, rank=0, stage=True, cache_dir=tmp_path / "cache")
    keys_of(dataset)
    assert dataset.cache.counters().shards_fetched == 0


def test_a_folder_whose_name_is_no_utf_8_is_staged_shown_and_cleaned_and_its_columns_may_lie_elsewhere(
    mount: Path, tmp_path: Path
) -> None:
    named = mount.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    staged = wdsdist.StreamingDataset(named, num_replicas=1, rank=0, stage=True, cache_dir=tmp_path / "cache")
    assert len(keys_of(staged)) == SHARDS * SAMPLES
    (kept,) = usage(tmp_path / "cache")
    assert kept.shards == SHARDS
    assert clean(tmp_path / "cache", sources=[str(named)]).removed == SHARDS
    wdsdist.open(named).add_columns(fields=["txt"], output=named / "mine", workers=1)
    assert len(wdsdist.open(named).column("txt")) == SHARDS * SAMPLES


def test_a_cache_that_cannot_be_locked_is_a_clear_error_of_those_who_look_at_it(
    mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ShardCache(tmp_path / "cache").pin(wdsdist.open(mount).staged(), 0).close()
    make = os.open

    def read_only(path: Any, flags: int, *how: Any, **more: Any) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return make(path, flags, *how, **more)

    monkeypatch.setattr(os, "open", read_only)
    for look in (usage, functools.partial(clean, everything=True)):
        with pytest.raises(CacheError, match=r"cache cannot be looked at or changed: Read-only file system"):
            look(tmp_path / "cache")
