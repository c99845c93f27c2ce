"""Epochs of planned batches: each sample once over any chain of worlds, budgets and stops, and every token in rows."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.batching.test_plan_contract import COUNTS, FIRSTS, LENGTHS, SETTINGS, TOTAL, lengths
from tests.support.examples import fewer
from tests.support.orders import epoch_order_of
from wdsdist._util.array_types import Int64s
from wdsdist.batching.block_plan import Long, Rule
from wdsdist.batching.planned_epoch import PlannedEpoch, Segment, joined, parsed, written
from wdsdist.errors import StateError
from wdsdist.sampling.order import OrderSettings, epoch_order
from wdsdist.sampling.plan import Position, World

START = Position(0)
ORDER = epoch_order(COUNTS, SETTINGS, epoch=2)


def planned(rule: Rule, world: World, start: Position = START, block: int = 60, **more: Any) -> PlannedEpoch:
    settings: dict[str, Any] = {"lengths": lengths, "order": epoch_order_of(ORDER), **more}
    return PlannedEpoch(rule=rule, block_samples=block, world=world, start=start, **settings)


def after(epoch: PlannedEpoch, steps: int) -> Position:
    """Return the position after some steps, counted as plainly as can be."""
    size, segments = epoch.block_samples, parsed(epoch.start.segments)
    for number in range(epoch.first_block, epoch.num_blocks):
        left = epoch.block(number).steps
        if steps < left:
            taken = (epoch.segment(steps),) if steps else ()
            before = segments if number == epoch.first_block else ()
            return Position(0, number * size, written(joined((*before, *taken))))
        steps -= left
    return Position(0, TOTAL)


@pytest.mark.parametrize("block", [60, TOTAL - 1, TOTAL], ids=["even", "a rest of one sample", "one block"])
@pytest.mark.parametrize("start", [START, Position(0, 0, "2,1,300,0,1")], ids=["begun", "resumed"])
def test_each_batch_says_how_far_the_epoch_has_come(block: int, start: Position) -> None:
    epoch = planned(Rule(budget=300, drops=True), World(2), start, block)
    batches = [batch for _, batch in epoch.batches(rank=1)]
    reached = [batch.reached for batch in batches if batch.reached is not None]
    assert [one.samples for one in reached] == [len(batch.shards) for batch in batches]
    assert all(one.fill is not None and 0 < one.fill <= 1 for one in reached)
    assert [one.position for one in reached] == [after(epoch, steps) for steps in range(1, len(batches) + 1)]


@fewer(2)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(16, 64), st.sampled_from(get_args(Long)[-2:]))
def test_rows_have_every_token_once(ranks: int, rows: int, length: int, long: Long) -> None:
    tokens: Counter[tuple[int, int]] = Counter()
    for rank in range(ranks):
        epoch = planned(Rule(has_rows=True, budget=length, most=rows, long=long), World(ranks))
        for _, batch in epoch.batches(rank=rank):
            pieces = batch.pieces
            assert pieces is not None
            assert np.bincount(pieces.rows, pieces.stops - pieces.starts, rows).max() <= length
            numbers = FIRSTS[batch.shards] + batch.samples
            for number, start, stop in zip(numbers, pieces.starts, pieces.stops, strict=True):
                tokens.update((int(number), token) for token in range(start, stop))
    most = LENGTHS if long == "split" else np.minimum(LENGTHS, length)
    expected = {(number, token) for number in range(TOTAL) for token in range(most[number])}
    assert set(tokens) == expected


def test_the_next_block_is_planned_while_one_is_read() -> None:
    asked: list[int] = []
    both, is_free = threading.Event(), threading.Event()

    def watched(shards: Int64s, samples: Int64s) -> Int64s:
        asked.append(len(shards))
        if len(asked) == 2:
            both.set()
            assert is_free.wait(60)
        return lengths(shards, samples)

    epoch = planned(Rule(budget=300), World(1), START, 60, lengths=watched)
    batches, uses = epoch.batches(rank=0), epoch.uses(rank=0)
    steps = planned(Rule(budget=300), World(1), START, 60).block(0).steps
    for number in range(steps):
        assert next(batches)[0] == number  # the first block is read to its end
        assert both.wait(60)  # though the next one is still in the making
        while (use := next(uses, None)) is not None:
            assert use.last < steps
    is_free.set()
    assert next(batches)[0] == steps
    assert len(asked) in (2, 3)


def test_threads_that_ask_for_a_block_at_once_get_one_plan() -> None:
    rule, threads = Rule(budget=300), 4
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(40):
                epoch, together = planned(rule, World(1), START, 60), threading.Barrier(threads)

                def walk(_: int, epoch: PlannedEpoch = epoch, together: threading.Barrier = together) -> list[int]:
                    found = []
                    for number in range(epoch.num_blocks):
                        together.wait(60)
                        found.append(id(epoch.node_batches(number, 0)))
                        epoch.plan_ahead(number + 1, 0)
                    return found

                assert len({tuple(one) for one in pool.map(walk, range(threads))}) == 1
    finally:
        sys.setswitchinterval(interval)


def test_an_error_of_a_plan_in_the_making_is_raised_where_its_block_is_read() -> None:
    calls = iter(range(9))

    def failing(shards: Int64s, samples: Int64s) -> Int64s:
        if next(calls):
            raise OSError("the columns are gone")
        return lengths(shards, samples)

    epoch = planned(Rule(budget=300), World(1), START, 60, lengths=failing)
    batches = epoch.batches(rank=0)
    for _ in range(epoch.node_batches(0, 0).steps):
        next(batches)
    with pytest.raises(OSError, match="columns are gone"):
        next(batches)


@pytest.fixture
def short() -> PlannedEpoch:
    """An epoch of two blocks, of which the last has too few samples for a batch on each of two ranks."""
    order = epoch_order_of(epoch_order(np.array([9]), OrderSettings(), 0))
    rule = Rule(most=2, drops=True)
    return planned(rule, World(2), block=8, lengths=lambda shards, samples: np.ones_like(shards), order=order)


def test_an_epoch_is_over_with_the_last_batch_that_has_samples(short: PlannedEpoch) -> None:
    positions = [short.start]
    positions += [batch.reached.position for _, batch in short.batches(rank=0) if batch.reached is not None]
    assert [short.is_over(position) for position in positions] == [False, False, True]
    assert positions[-1] == Position(0, 9)
    assert short.is_over(Position(0, 8))  # as on another world, where the last block had a batch


def test_blocks_whose_samples_are_all_dropped_end_an_epoch_too() -> None:
    longest = np.where(np.arange(TOTAL) < 60, 10, 999)  # the order is not shuffled: all but the first block is too long

    def of(shards: Int64s, samples: Int64s) -> Int64s:
        return longest[FIRSTS[shards] + samples]

    order = epoch_order_of(epoch_order(COUNTS, OrderSettings(shuffle=False), 0))
    epoch = planned(Rule(budget=50, long="drop"), World(1), lengths=of, order=order)
    batches = [batch for _, batch in epoch.batches(rank=0)]
    assert len(batches) == 12
    assert batches[-1].reached is not None
    assert epoch.is_over(batches[-1].reached.position)


@pytest.mark.parametrize("string", ["x", "1,1,1,1", "0,1,1,1,1", "1,1,1,1,-1", "1,1,9223372036854775808,1,1", "1,2,3"])
def test_a_damaged_string_of_segments_is_refused(string: str) -> None:
    with pytest.raises(StateError, match="the state is damaged: its segments are"):
        parsed(string)
    segments = (Segment(2, 1, 512, 0, 5), Segment(4, 2, 100, 3, 1))
    assert parsed(written(segments)) == segments
