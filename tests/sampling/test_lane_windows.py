"""The windows of lanes: how large they are, and how the first one is read in blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.sampling.order import LaneWindows, OrderSettings, epoch_order


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=4), st.integers(1, 30_000), st.integers(0, 2**64 - 1))
def test_places_are_a_permutation_of_each_window(lengths: list[int], window: int, key: int) -> None:
    windows = made(lengths, window, key=key)
    for lane, length in enumerate(lengths):
        offsets = np.arange(length)
        lanes = np.full(length, lane)
        places = windows.in_blocks(lanes, offsets)
        size = int(np.append(windows.begins(lane), length)[1]) if length else 0
        assert np.array_equal(np.sort(places[:size]), offsets[:size])
        assert np.array_equal(places[size:], offsets[size:])
        number, begin, sizes = windows.find(lanes, offsets)
        ends = [(one, first, length) for one, first, length in zip(number, begin, sizes, strict=True)]
        parts = list(dict.fromkeys((int(one), int(first), int(size)) for one, first, size in ends))
        assert [first for _, first, _ in parts] == [0, *np.cumsum([size for *_, size in parts])[:-1].tolist()][
            : len(parts)
        ]
        assert sum(size for *_, size in parts) == length
        assert len({one for one, *_ in parts}) == len(parts)


@pytest.mark.parametrize(
    ("length", "window", "expected"),
    [
        (16_500, 16_000, [8250, 8250]),
        (100_001, 32_000, [25_001, 25_001, 25_001, 24_998]),
        (16_000, 16_000, [16_000]),
        (15_000, 16_000, [15_000]),
        (8, 3, [3, 3, 2]),
        (7, 3, [3, 3, 1]),
    ],
)
def test_the_windows_of_a_lane_are_of_like_size(length: int, window: int, expected: list[int]) -> None:
    windows = made([length], window)
    assert np.diff(np.append(windows.begins(0), length)).tolist() == expected


def test_the_first_samples_of_an_epoch_come_from_few_ranges_of_all_over_its_first_window() -> None:
    counts = np.full(64, 1000)
    order = epoch_order(counts, OrderSettings(window=16_000, num_canonical_replicas=2), epoch=3)
    shards, samples, _ = order.locate(np.arange(0, 490, 2))  # the first 1/64 of the first lane's first window
    places = np.sort(shards * 1000 + samples)
    ranges = 1 + np.count_nonzero(np.diff(places) > 1)
    assert len(set(shards.tolist())) > 12
    assert ranges <= 40  # for 245 samples; at random they would be as many as samples


def test_the_samples_of_a_first_window_that_come_first_are_others_in_each_epoch() -> None:
    firsts: list[set[int]] = []
    for epoch in range(20):
        order = epoch_order(np.array([10_007]), OrderSettings(window=20_000), epoch)
        firsts.append(set(order.locate(np.arange(10_007 // 4))[1].tolist()))
    assert len(set.union(*firsts)) > 0.98 * 10_007


def made(lengths: list[int], window: int, *, key: int = 1) -> LaneWindows:
    """Return the windows of lanes of so many samples."""
    return LaneWindows(np.array(lengths, np.int64), window, key=key)
