"""Keyed permutations: each a bijection, each the same for ever, none distinguishable from chance."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import fewer
from wdsdist.sampling.permutation import mix_key, mix_keys, permute, shuffled

words = st.integers(0, 2**64 - 1)


def whole(n: int, key: int) -> list[int]:
    return permute(np.arange(n), n, key).tolist()


# Bijections


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1, mix_key(7)])
def test_every_element_stands_somewhere_once_for_every_small_n(key: int) -> None:
    for n in range(1, 301):
        assert sorted(whole(n, key)) == list(range(n))


@pytest.mark.parametrize("n", [4095, 4096, 4097, 65535, 65536, 65537, 10**6])
def test_every_element_stands_somewhere_once_near_powers_of_two(n: int) -> None:
    for seed in range(2):
        assert np.array_equal(np.sort(permute(np.arange(n), n, mix_key(seed))), np.arange(n))


@fewer()
@given(st.integers(2**39, 2**52 - 1) | st.integers(300, 2**39), words)
def test_no_two_positions_hold_the_same_element_of_a_large_n(n: int, key: int) -> None:
    positions = np.unique(np.random.default_rng(key).integers(0, n, 5000))
    elements = permute(positions, n, key)
    assert len(np.unique(elements)) == len(positions)
    assert elements.min() >= 0
    assert elements.max() < n


@given(st.lists(st.tuples(st.integers(1, 100) | st.integers(1, 2**45), words, st.floats(0, 1)), min_size=1))
def test_positions_with_sizes_and_keys_of_their_own_are_as_one_at_a_time(items: list[tuple[int, int, float]]) -> None:
    n = np.array([size for size, _, _ in items])
    keys = np.array([key for _, key, _ in items], np.uint64)
    positions = np.array([min(int(share * size), size - 1) for size, _, share in items])
    one_by_one = [int(permute(positions[i : i + 1], n[i], keys[i])[0]) for i in range(len(items))]
    assert permute(positions, n, keys).tolist() == one_by_one


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_the_type_of_the_numbers_makes_no_difference(kind: type[np.integer]) -> None:
    for n in (7, 100):
        key = mix_key(n)
        numbers = np.arange(n, dtype=kind)
        assert permute(numbers, kind(n), np.uint64(key)).tolist() == whole(n, key)
        assert permute(numbers.tolist(), n, key).tolist() == whole(n, key)
        assert permute(numbers[::-1], n, key).tolist() == whole(n, key)[::-1]


@given(st.integers(0, 3000), words)
def test_a_whole_shuffle_is_a_bijection(n: int, key: int) -> None:
    assert sorted(shuffled(n, key).tolist()) == list(range(n))


# The same for ever: runs that resume under another version must find the same order


def test_orders_are_pinned() -> None:
    assert mix_key() == 0
    assert mix_key(0) == 0xE220A8397B1DCDAF
    assert mix_key(5, 1) == 0xB6605DB578C8E249
    assert mix_key(-1) == mix_key(2**64 - 1)
    assert whole(10, mix_key(1)) == [3, 8, 1, 0, 2, 9, 7, 4, 6, 5]
    assert whole(40, mix_key(1))[:10] == [29, 4, 14, 11, 25, 33, 12, 19, 30, 13]
    large = [195777320, 571223581, 440642427, 225178424, 859595288]
    assert permute(np.arange(5), 10**9 + 7, mix_key(1)).tolist() == large
    largest = [128577735626050, 1247793529807222, 2989936443575458, 302053041084001, 397177077090623]
    assert permute(np.arange(5), 2**52 - 1, mix_key(1)).tolist() == largest
    assert shuffled(10, mix_key(1)).tolist() == [6, 0, 2, 9, 3, 1, 5, 4, 7, 8]


# Keys


@given(words, st.lists(st.lists(st.integers(0, 2**63 - 1), min_size=3, max_size=3), max_size=3))
def test_keys_mixed_from_arrays_are_those_mixed_one_by_one(seed: int, columns: list[list[int]]) -> None:
    rows = list(zip(*columns, strict=True)) or [()]
    expected = [mix_key(seed, *row) for row in rows]
    assert mix_keys(mix_key(seed), *(np.array(column) for column in columns)).tolist() == expected


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint64])
def test_a_key_can_be_mixed_from_numpy_numbers(kind: type[np.integer]) -> None:
    assert mix_key(kind(5), kind(1)) == mix_key(5, 1)


# Chance: the keys are fixed, so each of these holds always or never; the limits are six standard deviations


def assert_uniform(counts: np.ndarray, freedom: int, scale: float = 1.0) -> None:
    expected = counts.sum() / counts.size
    statistic = scale * ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - freedom) < 6 * np.sqrt(2 * freedom) + 6  # chi-square has a long tail at few degrees


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_a_few_elements_are_equally_likely(n: int) -> None:
    orders = {order: number for number, order in enumerate(permutations(range(n)))}
    keys = np.repeat(mix_keys(mix_key(11), np.arange(30_000)), n)
    found = permute(np.tile(np.arange(n), len(keys) // n), n, keys).reshape(-1, n)
    counts = np.bincount([orders[tuple(row)] for row in found.tolist()], minlength=len(orders))
    assert_uniform(counts, len(orders) - 1)


@pytest.mark.parametrize("n", [31, 32, 33, 63, 64, 65, 100])
def test_every_element_is_equally_likely_at_every_position(n: int) -> None:
    draws = 3000
    keys = np.repeat(mix_keys(mix_key(12), np.arange(draws)), n)
    positions = np.tile(np.arange(n), draws)
    counts = np.bincount(positions * n + permute(positions, n, keys), minlength=n * n)
    # Rows and columns have fixed sums, which leaves (n - 1)**2 degrees of freedom.
    assert_uniform(counts, (n - 1) ** 2, scale=(n - 1) / n)
