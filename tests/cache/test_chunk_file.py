"""Copies: their chunks and claims, also of processes that are killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cache.conftest import running
from wdsdist.cache import chunk_file
from wdsdist.cache.chunk_file import CHUNK, OpenCopy, chunks_of, joined, runs
from wdsdist.cache.locks import LockableFile

SIZE = 10 * CHUNK + 5
CONTENT = np.random.default_rng(0).bytes(SIZE)
NO_SHARD: Any = None
"""Of copies whose chunks alone are looked at."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with LockableFile(tmp_path / "copy", writable=True, create=True) as file:
        chunk_file.initialise(file, SIZE, source="s3://bucket")
    return tmp_path / "copy"


def opened(path: Path) -> OpenCopy:
    file = LockableFile(path, writable=True)
    assert file.lock(alone=False)
    return OpenCopy(file, NO_SHARD, NO_SHARD)


def fill(copy: OpenCopy, start: int, stop: int, *, piece: int = 3000) -> None:
    with copy.claimed(np.arange(start, stop)) as claim:
        for first, last in claim.ranges:
            for at in range(first, last, piece):
                claim.write(at, memoryview(CONTENT)[at : min(at + piece, last)])


def test_a_chunk_is_there_once_all_of_its_bytes_are_written(path: Path) -> None:
    copy = opened(path)
    with copy.claimed(np.arange(11)) as claim:
        claim.write(0, memoryview(CONTENT)[: CHUNK - 1])
        assert not copy.map.any()
        claim.write(CHUNK - 1, memoryview(CONTENT)[CHUNK - 1 : 2 * CHUNK])
        assert np.flatnonzero(copy.map).tolist() == [0, 1]
        claim.write(2 * CHUNK, memoryview(CONTENT)[2 * CHUNK :])
    assert copy.data[:] == CONTENT
    again = opened(path)
    assert (again.map.all(), again.made) == (True, copy.made)


def test_an_empty_copy_takes_no_space(path: Path) -> None:
    assert path.stat().st_blocks * 512 <= chunk_file.overhead(SIZE, 0)
    copy = opened(path)
    fill(copy, 3, 4)
    assert path.stat().st_blocks * 512 <= chunk_file.overhead(SIZE, 0) + CHUNK
    fill(copy, 0, 11)
    assert path.stat().st_blocks * 512 <= chunk_file.room_of(SIZE, 0)


def test_the_map_of_a_new_copy_has_its_room(tmp_path: Path) -> None:
    with LockableFile(tmp_path / "copy", writable=True, create=True) as file:
        chunk_file.initialise(file, 100_000 * CHUNK, source="s3://bucket")
        assert 100_000 < file.stat().st_blocks * 512 <= chunk_file.overhead(100_000 * CHUNK, 0)


def test_a_chunk_that_is_claimed_or_there_is_not_claimed_again(path: Path) -> None:
    mine, other = opened(path), opened(path)
    fill(mine, 0, 2)
    with mine.claimed(np.array([4, 5])) as claim, other.claimed(np.arange(11)) as rest:
        assert (claim.num_chunks, rest.num_chunks) == (2, 7)
        assert rest.ranges == [(2 * CHUNK, 4 * CHUNK), (6 * CHUNK, SIZE)]
        with mine.claimed(np.arange(11)) as none:  # another open file, though of this process
            assert none.num_chunks == 0
    with other.claimed(np.arange(11), most=3) as few:
        assert few.num_chunks == 3


def test_chunks_that_another_process_fetched_before_the_claim_are_not_fetched_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, other, claim = opened(path), opened(path), LockableFile.claim

    def claim_late(file: LockableFile, start: int, stop: int) -> list[tuple[int, int]]:
        monkeypatch.undo()
        fill(other, 0, 4)
        return claim(file, start, stop)

    monkeypatch.setattr(LockableFile, "claim", claim_late)
    with copy.claimed(np.arange(11)) as rest:
        assert rest.ranges == [(4 * CHUNK, SIZE)]


def test_a_chunk_that_comes_in_a_gap_is_not_written(path: Path) -> None:
    copy = opened(path)
    fill(copy, 4, 5)
    with copy.claimed(np.arange(11)) as claim:
        assert claim.ranges == [(0, SIZE)]
        claim.write(0, memoryview(bytes(SIZE)))
    assert copy.map.all()
    assert copy.data[4 * CHUNK : 5 * CHUNK] == CONTENT[4 * CHUNK : 5 * CHUNK]
    assert copy.data[5 * CHUNK :] == bytes(SIZE - 5 * CHUNK)


def test_claims_of_a_killed_process_are_free_and_its_chunks_are_whole(path: Path) -> None:
    def fetch(done: Callable[[], object]) -> None:
        with opened(path).claimed(np.arange(11)) as claim:
            claim.write(0, memoryview(CONTENT)[: CHUNK + 7])
            done()

    copy = opened(path)
    with running(fetch), copy.claimed(np.arange(11)) as claim:
        assert claim.num_chunks == 0
    with copy.claimed(np.arange(11)) as claim:
        assert claim.ranges == [(CHUNK, SIZE)]
    assert copy.data[:CHUNK] == CONTENT[:CHUNK]


def test_a_forked_child_holds_no_lock_of_its_parent(path: Path) -> None:
    copy = opened(path)
    with copy.claimed(np.arange(11)), running(lambda done: done() if not copy.hold() else None):
        copy.file.close()
        with LockableFile(path) as file:
            assert file.lock(alone=True)


@pytest.mark.parametrize("plant", ["link", "folder", "pipe"])
def test_what_others_planted_is_not_opened(tmp_path: Path, plant: str) -> None:
    path = tmp_path / "planted"
    {"link": lambda: path.symlink_to("/etc/hostname"), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[plant]()
    with pytest.raises(OSError, match=r"symbolic links|directory|not a file of this user"):
        LockableFile(path)


chunk_numbers = st.lists(st.integers(0, 200), unique=True).map(lambda numbers: np.array(sorted(numbers), np.int64))


@given(chunk_numbers, st.integers(0, 20))
def test_joined_ranges_hold_all_chunks_and_an_eighth_more_at_most(chunks: np.ndarray, gap: int) -> None:
    ranges = joined(runs(chunks), gap)
    held = [number for start, stop in ranges.tolist() for number in range(start, stop)]
    assert set(held) >= set(chunks.tolist())
    assert len(held) == len(set(held)) <= len(chunks) * 1.125
    assert len(joined(runs(chunks), 0)) == len(runs(chunks)) >= len(ranges)


@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 20_000))))
def test_chunks_of_ranges_are_those_of_each_byte(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in ranges], np.int64)
    lengths = np.array([length for _, length in ranges], np.int64)
    expected = {at // CHUNK for start, length in ranges for at in {*range(start, start + length, 512)} | (
        {start + length - 1} if length else set())}  # fmt: skip
    assert chunks_of(starts, starts + lengths).tolist() == sorted(expected)
