"""The order of a mix: each epoch has the shares of the weights, and each data set goes on where it stood."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.sampling.mix_order import MixOrder, Mixture
from wdsdist.sampling.order import OrderSettings

EPOCHS = 8


@st.composite
def mixes(draw: st.DrawFn) -> tuple[Mixture, OrderSettings]:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    mixture = Mixture(
        counts=tuple(np.array([size]) for size in sizes),
        windows=(5,) * len(sizes),
        weights=tuple(Fraction(draw(st.integers(1, 9))) for _ in sizes),
        num_samples=draw(st.integers(1, 40)),
        stratified=draw(st.booleans()),
    )
    lanes = draw(st.integers(1, 6))
    return mixture, OrderSettings(seed=draw(st.integers(0, 99)), num_canonical_replicas=lanes, window=5)


@given(mixes())
def test_each_data_set_goes_on_where_it_stood_in_the_epoch_before(mix: tuple[Mixture, OrderSettings]) -> None:
    mixture, settings = mix
    passes: list[Counter[tuple[int, int]]] = [Counter() for _ in mixture.counts]
    for epoch in range(EPOCHS):
        order, places = MixOrder(mixture, settings, epoch), np.arange(mixture.num_samples)
        shards, samples = order.locate(places)
        for shard, *taken in zip(shards.tolist(), order.epochs(places).tolist(), samples.tolist(), strict=True):
            passes[shard][tuple(taken)] += 1
    for (size,), found in zip(mixture.counts, passes, strict=True):
        assert set(found.values()) <= {1}, "a sample came twice in one pass over its data set"
        turns = Counter(turn for turn, _ in found)
        assert sorted(turns) == list(range(len(turns))), "a pass was left out"
        assert all(turns[turn] == size for turn in range(len(turns) - 1)), "a pass was not finished"
