"""Schedules of a mix: in each epoch the weights of its phase, and each data set goes on where it stood."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.sampling.mix_order import MixOrder, Mixture, Schedule, changed, described, parsed, phase_number, schedule
from wdsdist.sampling.order import OrderSettings, epoch_order
from wdsdist.sampling.weighted_interleave import Deal

EPOCHS = 8


@st.composite
def schedules(draw: st.DrawFn, streams: int) -> Schedule:
    of_phase = st.lists(st.integers(0, 9), min_size=streams, max_size=streams).filter(any)
    starts = draw(st.sets(st.integers(1, EPOCHS - 1), max_size=3)) | {0}
    return schedule({epoch: [Fraction(weight) for weight in draw(of_phase)] for epoch in starts})


@st.composite
def mixes(draw: st.DrawFn) -> tuple[Mixture, OrderSettings]:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    mixture = Mixture(
        counts=tuple(np.array([size]) for size in sizes),
        windows=(5,) * len(sizes),
        phases=draw(schedules(len(sizes))),
        num_samples=draw(st.integers(1, 40)),
        stratified=draw(st.booleans()),
    )
    lanes = draw(st.integers(1, 6))
    return mixture, OrderSettings(seed=draw(st.integers(0, 99)), num_canonical_replicas=lanes, window=5)


@given(mixes())
def test_each_data_set_goes_on_where_it_stood_when_the_weights_change(mix: tuple[Mixture, OrderSettings]) -> None:
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


@given(mixes())
def test_an_epoch_has_the_shares_of_its_phase(mix: tuple[Mixture, OrderSettings]) -> None:
    mixture, settings = mix
    for epoch in range(EPOCHS):
        weights = mixture.phases[phase_number(mixture.phases, epoch)].weights
        shards, _ = MixOrder(mixture, settings, epoch).locate(np.arange(mixture.num_samples))
        for stream, weight in enumerate(weights):
            assert abs(np.count_nonzero(shards == stream) - weight * mixture.num_samples) < len(weights)
            assert weight or not (shards == stream).any()


@given(st.integers(0, 99), st.integers(1, 30), st.integers(1, 5))
def test_a_schedule_of_one_phase_is_the_mix_of_these_weights(seed: int, num_samples: int, lanes: int) -> None:
    weights = [Fraction(7, 10), Fraction(3, 10)]
    (phase,) = schedule({0: weights, 4: [10 * weight for weight in weights]})
    for epoch in range(6):
        plain, other = (
            Deal(one, num_samples=num_samples, lanes=lanes, seed=seed, epoch=epoch) for one in (weights, phase.weights)
        )
        assert plain.starts == other.starts
        for one, two in zip(plain.locate(np.arange(num_samples)), other.locate(np.arange(num_samples)), strict=True):
            assert one.tolist() == two.tolist()


@given(st.data(), st.integers(0, EPOCHS))
def test_a_changed_schedule_is_one_before_an_epoch_and_the_other_from_it_on(data: st.DataObject, epoch: int) -> None:
    first, second = data.draw(schedules(2)), data.draw(schedules(2))
    both = changed(first, second, epoch)
    assert parsed(described(both)) == both
    for number in range(EPOCHS + 2):
        wanted = first if number < epoch else second
        assert both[phase_number(both, number)].weights == wanted[phase_number(wanted, number)].weights


@pytest.mark.parametrize("text", ["", "1/2", "0: 0 0", "3: 1/2 1/2", "1 1", "a b", "0: 1/2 1/2; 1: 1/2 1/2"])
def test_a_text_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises((ValueError, ZeroDivisionError)):
        parsed(text)


def test_each_data_set_of_a_mix_opens_an_epoch_by_its_own_windows() -> None:
    counts, settings = np.full(64, 1000), OrderSettings(window=16_000)
    mixture = Mixture(
        counts=(counts, counts),
        windows=(16_000, 16_000),
        phases=schedule({0: [Fraction(99), Fraction(1)]}),
        num_samples=64_000,
        stratified=False,
    )
    own = epoch_order(counts, settings, 0).opening
    found = MixOrder(mixture, settings, 0).opening
    assert found[:2] == [position * 100 // 99 for position in own]  # of the small one, it is 100 times as many
    assert found[2:] == [round(own[0] * 64_000 / 640), 64_000]
