"""Progress in an epoch of planned batches, as the batches that were handed out tell it."""

from __future__ import annotations

import numpy as np
import pytest

from wdsdist.loader.planned_progress import PlannedProgress
from wdsdist.sampling.block_plan import BatchRule, World
from wdsdist.sampling.order import OrderSettings, epoch_order
from wdsdist.sampling.planned_epoch import Batching, Place, PlannedEpoch, Reached


@pytest.fixture
def epoch() -> PlannedEpoch:
    """An epoch of two blocks, of which the last has too few samples for a batch on each of two ranks."""
    batching = Batching(
        rule=BatchRule(kind="groups", most=2, drops=True),
        lengths=lambda shards, samples: np.ones_like(shards),
        costs=lambda shards, samples, lengths, sizes: sizes.astype(np.float64),
        block_samples=8,
    )
    order = epoch_order(np.array([9]), OrderSettings(), 0)
    return PlannedEpoch(batching=batching, order=order, world=World(2), key=0, start=Place(0))


def test_an_epoch_is_complete_only_with_the_last_batch_that_has_samples(epoch: PlannedEpoch) -> None:
    progress, batches = PlannedProgress(epoch), [batch for _, batch in epoch.batches(rank=0)]
    for number, batch in enumerate(batches):
        assert not progress.is_complete(number)
        assert batch.reached is not None
        progress.add(batch.reached)
    assert progress.is_complete(len(batches))
    assert (progress.consumed(2), progress.batches_per_rank, progress.samples_in(2)) == (Place(2), 2, 4)


def test_nothing_is_missing_where_only_blocks_without_a_step_are_left(epoch: PlannedEpoch) -> None:
    progress = PlannedProgress(epoch)
    progress.add(Reached(Place(1), 0.5, 4, 1.0))  # as an earlier release left its place
    assert progress.is_complete(1)
    assert progress.share(1) == 0.5
