"""What ranks need at once: never less than what is then read, and windows that make it fit."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.orders import counts_of_shards, order_settings
from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings, default_window, epoch_order
from wdsdist.sampling.shard_schedule import bytes_at_once, check_limit, upcoming

MB = 10**6


class Readers(NamedTuple):
    """Shards, and the ranks of one node that read them."""

    counts: Int64s
    sizes: Int64s
    num_replicas: int
    ranks: int

    def need(self, settings: OrderSettings, ranks: int) -> int:
        return bytes_at_once(self.counts, self.sizes, settings, num_replicas=self.num_replicas, ranks=ranks)


def readers(shards: int, *, ranks: int = 1, last: int = 100) -> Readers:
    """Return the ranks of one node, which read shards of 100 samples and 10 MB, the last one perhaps smaller."""
    counts = np.full(shards, 100)
    counts[-1] = last
    return Readers(counts=counts, sizes=counts * MB // 10, num_replicas=ranks, ranks=ranks)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Readers, OrderSettings]:
    counts = draw(counts_of_shards)
    ranks = draw(st.integers(1, 6))
    sizes = np.array(draw(st.lists(st.integers(0, 9) | st.just(0), min_size=len(counts), max_size=len(counts)))) * MB
    return Readers(counts=counts, sizes=sizes, num_replicas=ranks, ranks=draw(st.integers(1, ranks))), draw(
        order_settings
    )


@given(cases())
def test_the_windows_that_ranks_are_in_never_take_more_than_is_told(case: tuple[Readers, OrderSettings]) -> None:
    who, settings = case
    order = epoch_order(who.counts, settings, 0)
    plan = EpochPlan(
        num_samples=order.num_samples, num_replicas=who.num_replicas, batch_size=1, drop_last=True, drop_last_batch=True
    )
    told = who.need(settings, ranks=who.ranks)
    uses = [list(upcoming(order, plan, rank=rank)) for rank in range(who.ranks)]
    for batch in range(plan.batches_per_rank):
        needed = {use.shard for rank in uses for use in rank if use.first <= batch <= use.last}
        assert sum(int(who.sizes[shard]) for shard in needed) <= told
    assert told >= who.need(settings, ranks=1)


def test_ranks_that_share_a_lane_need_its_shards_once() -> None:
    who = readers(30, ranks=4)
    settings = OrderSettings(window=100, num_canonical_replicas=1)
    assert who.need(settings, ranks=4) == who.need(settings, ranks=1)


def test_shards_without_a_copy_take_nothing_and_those_of_unknown_size_as_much_as_the_largest() -> None:
    counts = np.full(4, 10)
    who = Readers(counts=counts, sizes=np.array([0, -1, 7 * MB, 5 * MB]), num_replicas=1, ranks=1)
    assert who.need(OrderSettings(window=40), ranks=1) // MB == 7 + 7 + 5
    nothing = Readers(counts=counts, sizes=np.full(4, -1), num_replicas=1, ranks=1)
    assert nothing.need(OrderSettings(window=40), ranks=1) == 0


def checked(who: Readers, settings: OrderSettings, limit: int) -> None:
    config: Any = SimpleNamespace(
        manifest=who, bytes_at_once=lambda settings, num_replicas, ranks: who.need(settings, ranks)
    )
    check_limit(config, settings, num_replicas=who.num_replicas, ranks=who.ranks, limit=limit)


@pytest.mark.parametrize("last", [100, 30])
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("shards_of_a_rank", [3.1, 5, 10, 40])
def test_a_limit_that_is_too_small_is_answered_with_the_largest_window_that_fits(
    shards_of_a_rank: float, ranks: int, last: int
) -> None:
    who = readers(30 * ranks, ranks=ranks, last=last)
    limit = int(shards_of_a_rank * ranks * 10 * MB)
    usual = OrderSettings(window=default_window(who.counts), num_canonical_replicas=ranks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            checked(who, usual, limit)
        except ArgumentError as error:
            message = str(error)
        else:
            message = str(caught[0].message) if caught else ""
    if not message:
        assert who.need(usual, ranks=ranks) <= limit
        return
    window = int(message.rpartition("=")[2])
    fitting = OrderSettings(window=window, num_canonical_replicas=ranks)
    twice = OrderSettings(window=min(2 * window, usual.window), num_canonical_replicas=ranks)
    some = 1 if "one rank" in message else ranks
    assert who.need(fitting, ranks=some) <= limit < who.need(twice, ranks=some)


def test_a_limit_below_the_need_of_one_rank_says_how_much_that_is() -> None:
    settings = OrderSettings(window=800)
    needed = readers(30).need(settings, ranks=1)
    checked(readers(30), settings, needed)
    with pytest.raises(
        ArgumentError, match=rf"cache_limit is {needed - 1:,} .* needs {needed:,} at once.*or pass shuffle_window=400"
    ):
        checked(readers(30), settings, needed - 1)
    with pytest.raises(ArgumentError, match="take order='shard'"):
        checked(readers(30), OrderSettings(name="sampler"), needed)
    with pytest.raises(ArgumentError, match="or pack smaller shards"):
        checked(readers(30), settings, MB)


def test_a_limit_below_the_need_of_a_node_is_a_warning() -> None:
    who, settings = readers(60, ranks=2), OrderSettings(window=800, num_canonical_replicas=2)
    needed = who.need(settings, ranks=2)
    said = f"the 2 ranks of this node need {needed:,} at once, .* fetched more than once; .* shuffle_window=400"
    with pytest.warns(UserWarning, match=said):
        checked(who, settings, needed - 1)
