"""Virtual epochs of one data set: each sample once before any comes again, with exact length and resume."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import StateError
from wdsdist.sampling.order import OrderSettings, epoch_order

TOTAL = 103


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any),
    length=st.integers(1, 100),
    name=st.sampled_from(["shard", "sampler"]),
    shuffle=st.booleans(),
)
def test_virtual_epochs_are_the_data_sets_own_in_pieces(
    counts: list[int], length: int, name: Any, shuffle: bool
) -> None:
    settings, sizes = OrderSettings(name=name, shuffle=shuffle, window=8, num_canonical_replicas=2), np.array(counts)
    total = sum(counts)
    whole = [epoch_order(sizes, settings, epoch) for epoch in range(-(-5 * length // total))]
    expected = list(chain.from_iterable(zip(*order.locate(np.arange(total)), strict=True) for order in whole))
    for epoch in range(5):
        order = epoch_order(sizes, settings, epoch, length)
        found = list(zip(*order.locate(np.arange(length)), strict=True))
        assert found == expected[epoch * length : (epoch + 1) * length]
        own = [place // total for place in range(epoch * length, (epoch + 1) * length)]
        assert order.epochs(np.arange(length)).tolist() == own
        assert order.num_samples == length


def test_the_state_of_another_length_is_refused(shards: Path) -> None:
    def loader(length: int) -> StreamingDataLoader:
        return StreamingDataLoader(StreamingDataset(shards, samples_per_epoch=length), 8, num_workers=0)

    with pytest.raises(StateError, match="num_samples is 40 in the state and 50 here"):
        loader(50).load_state_dict(loader(40).state_dict())


class TestLen:
    @pytest.mark.parametrize(("drop_last", "expected"), [(False, 26), (True, 25)])
    def test_is_the_samples_of_this_rank(self, shards: Path, drop_last: bool, expected: int) -> None:
        dataset = StreamingDataset(shards, num_replicas=4, rank=1, drop_last=drop_last)
        assert len(dataset) == expected == len(list(dataset))
        assert len(StreamingDataset(shards, num_replicas=4, rank=1, samples_per_epoch=41)) == 11

    def test_asks_the_launcher_for_the_rank(self, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = StreamingDataset(shards)
        assert len(dataset) == TOTAL
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert len(dataset) == 26
        assert bool(dataset)
