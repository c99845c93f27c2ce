"""The deal of a mix: each stream in full and in order, in proportion, found at any position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from wdsdist.sampling.mix_order import Deal


@dataclass(frozen=True)
class Mix:
    """Weights, and how they are dealt."""

    weights: tuple[int, ...]
    num_samples: int = 1
    lanes: int = 1
    seed: int = 0

    def deal(self, epoch: int = 0) -> Deal:
        return Deal(
            [Fraction(weight) for weight in self.weights], num_samples=self.num_samples, lanes=self.lanes,
            seed=self.seed, epoch=epoch,
        )  # fmt: skip

    def share(self, stream: int) -> float:
        return self.weights[stream] / sum(self.weights)

    def taken(self, epoch: int = 0) -> np.ndarray:
        """Return int [rows, lanes, streams]: one where a place of the epoch's whole rows takes a stream."""
        rows = self.num_samples // self.lanes
        streams = self.deal(epoch).locate(np.arange(rows * self.lanes))[0]
        return np.eye(len(self.weights), dtype=int)[streams].reshape(rows, self.lanes, len(self.weights))


@st.composite
def mixes(draw: st.DrawFn, **fixed: Any) -> Mix:
    free = {
        "weights": st.lists(st.integers(1, 30), min_size=1, max_size=6).map(tuple),
        "num_samples": st.integers(1, 400),
        "lanes": st.integers(1, 24),
        "seed": st.integers(0, 2**64 - 1),
    }
    return Mix(**{name: fixed[name] if name in fixed else draw(strategy) for name, strategy in free.items()})


def windows(taken: np.ndarray, length: int) -> np.ndarray:
    """Return the sums of all runs of ``length`` rows."""
    sums = np.cumsum(np.concatenate([np.zeros_like(taken[:1]), taken]), axis=0)
    return sums[length:] - sums[:-length]


# Every sample of each stream


@given(mixes(), st.integers(0, 50))
@example(Mix((1, 1), num_samples=3, lanes=8), 0)
def test_an_epoch_takes_from_each_stream_what_follows_the_epoch_before(mix: Mix, epoch: int) -> None:
    deal = mix.deal(epoch)
    streams, numbers = deal.locate(np.arange(mix.num_samples))
    for stream in range(len(mix.weights)):
        assert sorted(numbers[streams == stream].tolist()) == list(range(deal.counts[stream]))
    following = mix.deal(epoch + 1)
    assert following.starts == [start + count for start, count in zip(deal.starts, deal.counts, strict=True)]
    assert mix.deal(0).starts == [0] * len(mix.weights)


@given(mixes(lanes=1))
def test_on_one_lane_streams_are_taken_strictly_in_order(mix: Mix) -> None:
    streams, numbers = mix.deal().locate(np.arange(mix.num_samples))
    for stream in range(len(mix.weights)):
        assert (np.diff(numbers[streams == stream]) == 1).all()


def test_places_far_in_an_epoch_far_in_training_are_found() -> None:
    weights = [Fraction(2**31 - 2), Fraction(1)]
    deal = Deal(weights, num_samples=2**50, lanes=4096, seed=1, epoch=2**62)
    positions = np.arange(2**50 - 100_000, 2**50)
    streams, numbers = deal.locate(positions)
    assert len(set(zip(streams.tolist(), numbers.tolist(), strict=True))) == len(positions)
    assert abs(deal.starts[1] - 2**112 // (2**31 - 1)) <= 1
    assert (numbers >= 0).all()


# In proportion


@given(mixes(), st.integers(0, 30))
def test_the_shares_of_all_epochs_are_kept(mix: Mix, epoch: int) -> None:
    limit = 1 if len(mix.weights) < 3 else 3.4
    for stream, start in enumerate(mix.deal(epoch).starts):
        assert abs(start - epoch * mix.num_samples * mix.share(stream)) < limit


@given(mixes(), st.integers(1, 64), st.integers(0, 3))
def test_each_run_of_a_lane_has_its_share_of_each_stream(mix: Mix, length: int, epoch: int) -> None:
    found = windows(mix.taken(epoch), length) if length <= mix.num_samples // mix.lanes else np.zeros((0, 1, 1))
    limit = {1: 0.5, 2: 1, 3: 3}.get(len(mix.weights), 4.4)  # with three or more, one sample of it at an epoch's end
    shares = [mix.share(stream) for stream in range(len(mix.weights))]
    assert (np.abs(found - length * np.array(shares)) < limit).all()


@given(mixes(weights=(7, 3)), st.integers(1, 30), st.integers(0, 3))
def test_each_run_of_whole_rows_has_its_share_to_within_one_sample(mix: Mix, length: int, epoch: int) -> None:
    if length <= mix.num_samples // mix.lanes:
        found = windows(mix.taken(epoch).sum(axis=1), length)
        assert (np.abs(found - length * mix.lanes * np.array([0.7, 0.3])) < 1).all()


@given(mixes(weights=(3, 2)), st.integers(0, 23))
def test_each_rank_has_its_share_of_each_row_of_its_lanes(mix: Mix, number: int) -> None:
    world = number % mix.lanes + 1
    mix = replace(mix, lanes=mix.lanes // world * world)
    own = mix.taken().reshape(-1, mix.lanes // world, world, 2).sum(axis=1)
    assert (np.abs(own - mix.lanes // world * np.array([0.6, 0.4])) < 1).all()


# Lanes


@given(mixes(num_samples=4000))
def test_lanes_of_the_mix_are_lanes_of_its_streams(mix: Mix) -> None:
    positions = np.arange(mix.num_samples)
    streams, numbers = mix.deal(1).locate(positions)
    for stream in range(len(mix.weights)):
        mine = streams == stream
        elsewhere = (numbers[mine] % mix.lanes != positions[mine] % mix.lanes).sum()
        assert elsewhere <= 3 * mix.lanes * len(mix.weights)


# What decides it


def test_seed_and_epoch_decide_the_deal() -> None:
    mix = Mix((2, 3, 5), num_samples=101, lanes=4)

    def streams(mix: Mix, epoch: int = 0) -> tuple[int, ...]:
        return tuple(mix.deal(epoch).locate(np.arange(101))[0].tolist())

    assert streams(mix) == streams(mix)
    assert len({streams(replace(mix, seed=seed)) for seed in range(8)}) > 5
    assert streams(mix) != streams(mix, 1)


def test_the_deal_is_pinned() -> None:
    # A change here breaks the resumption of every mix that was started before it.
    streams, numbers = Mix((1, 2, 4), num_samples=30, lanes=4, seed=5).deal(3).locate(np.arange(30))
    assert "".join(map(str, streams)) == "012222112122122020021221221212"
    expected = "0 1 2 3 0 1 2 3 4 5 6 7 0 5 10 3 8 1 2 11 4 9 14 7 12 13 6 15 8 16"
    assert " ".join(map(str, numbers)) == expected
