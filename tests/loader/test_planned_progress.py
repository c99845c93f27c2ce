"""Progress in an epoch of planned batches: which blocks were reached, and what share of the epoch is behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from wdsdist.loader.planned_progress import BlockSteps, PlannedProgress
from wdsdist.sampling.planned_epoch import Place, Segment


def test_an_epoch_is_complete_only_once_all_its_blocks_were_reached() -> None:
    steps = BlockSteps()
    epoch = cast(Any, SimpleNamespace(start=Place(0), num_blocks=3))
    earlier = steps.start()
    progress = PlannedProgress(epoch, steps)
    steps.tell(steps.iteration, 0, 2)
    steps.tell(earlier, 1, 0)  # by a worker that is still at the iteration before
    assert not progress.is_complete(2)
    steps.tell(steps.iteration, 1, 0)
    assert not progress.is_complete(2)
    steps.tell(steps.iteration, 2, 0)
    assert progress.is_complete(2)


def test_progress_counts_the_steps_inside_of_a_block_and_those_before_a_resume() -> None:
    steps = BlockSteps()
    start = Place(1, (Segment(1, 1, 9, 0, 4),))
    progress = PlannedProgress(cast(Any, SimpleNamespace(start=start, num_blocks=4)), steps)
    assert progress.share(0) == 1 / 4  # no worker has planned the block
    steps.tell(steps.iteration, 1, 4)
    shares = [progress.share(0)]
    for batches in (2, 4):
        shares.append(progress.share(batches))
    assert shares == [1.5 / 4, 1.75 / 4, 2 / 4]
