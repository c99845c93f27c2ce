"""Ranges of bytes, and the map of those that a sparse copy has."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import folders
from wdsdist.cache.extents import ExtentMap, coalesced, covered, merged

pairs = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
some_ranges = st.lists(pairs, max_size=12).map(lambda found: np.array(found, np.int64).reshape(-1, 2))
far = st.tuples(st.integers(0, 10**8), st.integers(1, 10**6)).map(lambda pair: (pair[0], sum(pair)))


def bytes_in(ranges: np.ndarray) -> set[int]:
    return {byte for start, stop in ranges.tolist() for byte in range(start, stop)}


@given(some_ranges)
def test_merged_ranges_have_the_same_bytes_and_gaps_between_them(ranges: np.ndarray) -> None:
    found = merged(ranges)
    assert bytes_in(found) == bytes_in(ranges)
    assert (found[1:, 0] > found[:-1, 1]).all()


@given(some_ranges, some_ranges)
def test_a_range_is_covered_where_all_of_its_bytes_are_there(ranges: np.ndarray, extents: np.ndarray) -> None:
    there = bytes_in(extents)
    expected = [bytes_in(one.reshape(1, 2)) <= there for one in ranges]
    assert covered(ranges, merged(extents)).tolist() == expected


@given(st.lists(far, min_size=1, max_size=50).map(lambda found: np.array(found, np.int64)))
def test_coalesced_ranges_hold_what_is_needed_and_little_else(ranges: np.ndarray) -> None:
    found = coalesced(ranges)
    assert covered(ranges, found).all()
    needed, fetched = (int(np.diff(merged(some)).sum()) for some in (ranges, found))
    assert fetched <= 1.25 * needed + 4096 * len(ranges)


def test_what_one_process_records_another_sees(tmp_path: Path) -> None:
    ExtentMap.create(tmp_path / "map", 9, "digest")
    one, other = ExtentMap(tmp_path / "map"), ExtentMap(tmp_path / "map")
    one.add(np.array([[10, 20]]))
    other.add(np.array([[20, 30], [50, 60]]))
    assert one.extents().tolist() == other.extents().tolist() == [[10, 30], [50, 60]]


def test_a_record_that_was_cut_claims_nothing(tmp_path: Path) -> None:
    path = tmp_path / "map"
    ExtentMap.create(path, 9, "digest")
    ExtentMap(path).add(np.array([[10, 20], [30, 40]]))
    path.write_bytes(path.read_bytes()[:-1])
    assert ExtentMap(path).extents().tolist() == [[10, 20]]


def test_a_record_that_the_disk_takes_in_part_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ExtentMap.create(tmp_path / "map", 9, "digest")
    extents, write = ExtentMap(tmp_path / "map"), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:16]))
        with pytest.raises(OSError, match="No space left on device"):
            extents.add(np.array([[10, 20], [30, 40]]))
    assert extents.extents().tolist() == [[10, 20]]


def test_a_map_from_before_the_last_boot_or_of_another_shard_is_none(tmp_path: Path) -> None:
    ExtentMap.create(tmp_path / "map", 9, "digest")
    assert ExtentMap(tmp_path / "map").is_of(9, "digest")
    assert not ExtentMap(tmp_path / "map").is_of(9, "another")
    folders.reboot(tmp_path)
    assert not ExtentMap(tmp_path / "map").is_of(9, "digest")
