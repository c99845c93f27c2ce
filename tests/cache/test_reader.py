"""Shards that are mapped while a cache with a limit evicts."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support import folders
from tests.support.damage import cut, flip, flip_keeping_its_time
from wdsdist import StreamingDataLoader, StreamingDataset  # once, not in each process that is forked
from wdsdist.cache import Pinned, ShardCache, cached_path
from wdsdist.errors import CacheError, ShardDamagedError
from wdsdist.samples.shard_reader import ShardReader
from wdsdist.shards.manifest import Manifest


def test_what_is_released_may_be_evicted_and_is_mapped_anew(remote: Manifest, tmp_path: Path, room: int) -> None:
    reader = ShardReader(remote, ShardCache(tmp_path, limit=room, timeout=60))
    for number in (0, 1, 0, 0, 1):
        assert bytes(reader.shard(number).member(1, 0)) == f"shard{number:02}-0001.txt".encode()
        reader.release()


def test_what_is_released_stays_mapped_while_it_stays(remote: Manifest, tmp_path: Path) -> None:
    reader = ShardReader(remote, ShardCache(tmp_path))
    shard = reader.shard(0)
    assert not folders.is_free(cached_path(remote, 0, tmp_path))
    reader.release()
    assert folders.is_free(cached_path(remote, 0, tmp_path))
    with pytest.raises(ValueError, match="released"):
        shard.member(0, 0)  # never bytes that may be gone
    assert reader.shard(0) is shard
    assert not folders.is_free(cached_path(remote, 0, tmp_path))


def test_what_lies_on_a_local_disk_stays_readable(packed: Path) -> None:
    reader = ShardReader(wdsdist.open(packed))
    shard = reader.shard(0)
    reader.release()
    assert bytes(shard.member(0, 0)) == b"shard00-0000.txt"


@pytest.mark.parametrize("kind", [lambda view: view, lambda view: np.frombuffer(view, np.uint8)])
def test_a_view_that_is_kept_keeps_its_shard(remote: Manifest, tmp_path: Path, room: int, kind: type) -> None:
    reader = ShardReader(remote, ShardCache(tmp_path, limit=room, timeout=1))
    kept = kind(reader.shard(0).member(0, 0))
    reader.release()
    for _ in range(2):  # what is asked for again is the same
        assert bytes(reader.shard(0).member(0, 0)) == bytes(kept)
        reader.release()
    with pytest.raises(CacheError, match="cache_limit are missing"):
        reader.shard(1)
    del kept
    gc.collect()
    assert bytes(reader.shard(1).member(0, 0)) == b"shard01-0000.txt"


def test_a_reader_that_is_dropped_lets_go(remote: Manifest, tmp_path: Path) -> None:
    kept = ShardReader(remote, ShardCache(tmp_path)).shard(0).member(0, 0)
    gc.collect()
    assert not folders.is_free(cached_path(remote, 0, tmp_path))
    assert bytes(kept) == b"shard00-0000.txt"
    del kept
    gc.collect()
    assert folders.is_free(cached_path(remote, 0, tmp_path))


def test_what_goes_while_another_shard_of_the_batch_is_waited_for_is_mapped_anew(
    remote: Manifest, tmp_path: Path
) -> None:
    class Waiting(ShardCache):
        def pin(self, manifest: Manifest, number: int, **more: Any) -> Pinned:
            if number == 1:
                more["let_go"]()
                cached_path(remote, 0, tmp_path).unlink()
            return super().pin(manifest, number, **more)

    reader = ShardReader(remote, Waiting(tmp_path))
    reader.hold([0, 1])
    assert not any(folders.is_free(cached_path(remote, number, tmp_path)) for number in (0, 1))
    assert bytes(reader.shard(0).member(0, 0)) == b"shard00-0000.txt"


def test_batches_that_each_need_all_the_room_take_turns(remote: Manifest, tmp_path: Path, room: int) -> None:
    """Two that each hold what the other waits for would wait for ever."""
    errors = []

    def read(seed: int) -> None:
        reader = ShardReader(remote, ShardCache(tmp_path, limit=3 * room, timeout=60))
        try:
            for start in range(5):
                batch = [(seed * 10 + start + 3 * step) % len(remote.counts) for step in range(3)]
                reader.hold(batch)
                for number in batch:
                    assert bytes(reader.shard(number).member(0, 0)) == f"shard{number:02}-0000.txt".encode()
                reader.release()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("alter", [flip, flip_keeping_its_time, cut, cut_to_nothing])
@pytest.mark.parametrize("are_views_kept", [False, True])
def test_a_copy_that_is_altered_while_it_is_mapped_is_fetched_again(
    remote: Manifest, tmp_path: Path, packed: Path, alter: Callable[[Path], None], are_views_kept: bool
) -> None:
    """In a process of its own: to read what was cut off kills it."""

    def read() -> None:
        cache = ShardCache(tmp_path, timeout=60)
        reader = ShardReader(remote, cache)
        reader.hold([0, 1])
        kept = [reader.shard(number).member(1, 0) for number in (0, 1) if are_views_kept]
        reader.release()
        alter(cached_path(remote, 0, tmp_path))
        reader.hold([0, 1])
        assert bytes(reader.shard(0).content) == (packed / "00.tar").read_bytes()
        assert (cache.counters().shards_fetched, len(kept)) == (3, 2 * are_views_kept)
        reader.release()
        reader.hold([0, 1])
        assert cache.counters().shards_fetched == 3

    assert folders.status(folders.forked(read)) == 0


def spoil(path: Path) -> None:
    """Change what is in each sample, in place."""
    with path.open("r+b") as stream:
        content = stream.read().replace(b".txt", b".TXT")
        stream.seek(0)
        stream.write(content)


@pytest.mark.parametrize("alter", [spoil, cut_to_nothing])
def test_a_loader_without_workers_and_limit_reads_no_altered_copy(
    remote: Manifest, tmp_path: Path, alter: Callable[[Path], None]
) -> None:
    """Its batches are views of the mapped copies, and each is there while the next one is made."""

    def read() -> None:
        dataset = StreamingDataset("faulty://bucket/train", order="sampler", cache_dir=tmp_path, download_timeout=10)
        seen = []
        for number, batch in enumerate(StreamingDataLoader(dataset, 20, num_workers=0)):
            assert [bytes(text).decode() for text in batch["txt"]] == [f"{key}.txt" for key in batch["__key__"]]
            seen += batch["__key__"]
            if number == 5:
                for copy in tmp_path.rglob("*.tar"):
                    alter(copy)
        assert len(set(seen)) == 20 * folders.SHARDS

    assert folders.status(folders.forked(read)) == 0


@pytest.mark.parametrize("alter", [flip, flip_keeping_its_time, cut, cut_to_nothing])
def test_a_local_shard_that_is_altered_while_it_is_mapped_is_an_error(
    packed: Path, tmp_path: Path, alter: Callable[[Path], None]
) -> None:
    def read() -> None:
        shutil.copytree(packed, tmp_path / "data")
        dataset = StreamingDataset(tmp_path / "data", order="sampler", shuffle=False)
        batches = iter(StreamingDataLoader(dataset, 2, num_workers=0))
        kept = next(batches)
        alter(tmp_path / "data" / "00.tar")
        for more in (lambda: next(batches), lambda: dataset[5]):
            with pytest.raises(ShardDamagedError, match=r"shard .*/00\.tar was altered while it was being read: end"):
                more()
        del kept

    assert folders.status(folders.forked(read)) == 0


def test_a_local_shard_that_is_touched_or_replaced_is_read_on(packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "00.tar"
    for path in packed.glob("0[01].tar*"):
        shutil.copy(path, tmp_path)
    wdsdist.index(tmp_path)
    reader = ShardReader(wdsdist.open(tmp_path))
    shard = reader.shard(0)
    whole = bytes(shard.content)
    for change in (copy.touch, lambda: copy.chmod(0o600), lambda: (tmp_path / "01.tar").rename(copy), copy.unlink):
        change()
        for _ in range(2):
            reader.release()
            reader.hold([0])
            assert reader.shard(0) is shard
            assert bytes(shard.content) == whole
