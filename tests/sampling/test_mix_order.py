"""The order of a mix: each data set plays its own epochs, one after another, whatever the epochs of the mix are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.sampling.mix_order import Deal, MixOrder
from wdsdist.sampling.order import OrderSettings, epoch_order
from wdsdist.sampling.permutation import mix_key

EPOCHS = 4

Taken = Counter[tuple[int, int, int]]
"""Epoch of the data set, shard and sample, each as often as it comes."""


def taken_in_turn(counts: np.ndarray, settings: OrderSettings, number: int, total: int) -> Taken:
    """Return the first samples that a data set gives when it is simply played from its start."""
    own = replace(settings, seed=mix_key(settings.seed, number))
    line: list[tuple[int, int, int]] = []
    epoch = 0
    while len(line) < total:
        order = epoch_order(counts, own, epoch)
        shards, samples, _ = order.locate(np.arange(order.num_samples))
        line += [(epoch, shard, sample) for shard, sample in zip(shards.tolist(), samples.tolist(), strict=True)]
        epoch += 1
    return Counter(line[:total])


@given(
    shards=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), min_size=1, max_size=4),
    num_samples=st.integers(1, 120),
    lanes=st.integers(1, 6),
    shuffle=st.booleans(),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_each_data_set_plays_its_own_epochs_one_after_another(
    shards: list[list[int]], num_samples: int, lanes: int, shuffle: bool, seed: int, data: st.DataObject,
) -> None:  # fmt: skip
    counts = [np.array(each) for each in shards]
    weights = [Fraction(data.draw(st.integers(1, 9))) for _ in shards]
    settings = OrderSettings(seed=seed, shuffle=shuffle, window=4, num_canonical_replicas=lanes)
    own = [replace(settings, seed=mix_key(seed, number)) for number in range(len(shards))]
    first = np.cumsum([0, *map(len, shards)])
    taken: list[Taken] = [Counter() for _ in shards]
    for epoch in range(EPOCHS):
        deal = Deal(weights, num_samples=num_samples, lanes=lanes, seed=seed, epoch=epoch)
        order = MixOrder(deal, counts, own)
        assert order.num_samples == num_samples
        for part in np.array_split(np.arange(num_samples), 3):
            for shard, sample, turn in zip(*(column.tolist() for column in order.locate(part)), strict=True):
                stream = int(np.searchsorted(first, shard, side="right")) - 1
                taken[stream][turn, shard - int(first[stream]), sample] += 1
    for number, part in enumerate(taken):
        assert part == taken_in_turn(counts[number], settings, number, part.total())
