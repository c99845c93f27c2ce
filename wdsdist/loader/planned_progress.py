"""Progress in an epoch of planned batches: the steps of its blocks, and the place that handed-out batches lead to."""

from __future__ import annotations

import functools

from wdsdist.loader.worker_state import SharedNumbers
from wdsdist.sampling.planned_epoch import Place, PlannedEpoch, joined

_RING = 4096
"""Blocks of which the steps are remembered: no more can lie between the worker that is furthest and the loop."""


class BlockSteps:
    """The steps of the blocks that workers have planned, for the main process, which plans none itself."""

    def __init__(self) -> None:
        self._numbers = SharedNumbers([0] * (2 * _RING + 1))  # the latest iteration; then, of blocks, whose, and steps
        self._fill = SharedNumbers([0, 0])  # of the latest block: whose, and millionths

    def start(self) -> int:
        """Begin an iteration and return its number, which tells its blocks from those of an iteration given up."""
        self._numbers.add(0, [1])
        return self.iteration

    @property
    def iteration(self) -> int:
        """The latest iteration."""
        return int(self._numbers[0])

    def tell(self, iteration: int, block: int, steps: int, fill: float = 1.0) -> None:
        """Note a block's steps and how full these are; all workers of an iteration find the same."""
        self._fill[:] = [_tag(iteration, 0), round(fill * 1e6)]
        place = 1 + block % _RING * 2
        self._numbers[place + 1] = steps
        self._numbers[place] = _tag(iteration, block)

    def of(self, iteration: int, block: int) -> int | None:
        """Return the steps of a block in an iteration, or ``None`` where no worker has reached it."""
        place = 1 + block % _RING * 2
        return self._numbers[place + 1] if self._numbers[place] == _tag(iteration, block) else None

    def fill(self, iteration: int) -> float | None:
        """Return how full the batches of the block are that a worker has reached last, between 0 and 1."""
        whose, millionths = self._fill[:]
        return millionths / 1e6 if whose == _tag(iteration, 0) else None


def _tag(iteration: int, block: int) -> int:
    return iteration % 2**31 << 32 | block


class PlannedProgress:
    """Where the batches that were handed out lead to in an epoch of planned batches."""

    def __init__(self, epoch: PlannedEpoch, steps: BlockSteps) -> None:
        self.epoch = epoch
        iteration = steps.start()
        self._steps_of = functools.partial(steps.of, iteration)
        self._fill_of = functools.partial(steps.fill, iteration)
        self._block = epoch.start.block
        self._samples = 0
        self._first = 0  # batches before that block
        self.batches_per_rank = 0
        """Batches that are known of by now."""

    def add_samples(self, samples: int) -> None:
        """Note the samples of another batch that was handed out."""
        self._samples += samples

    def samples_in(self, batches: int) -> int:
        """Return the samples of the batches that were handed out."""
        return self._samples

    def share(self, batches: int) -> float:
        """Return the part of the epoch that is behind these batches, between 0 and 1, as if all blocks were alike."""
        start, block = self.epoch.start, self._block
        if block >= self.epoch.num_blocks:
            return 1.0
        before = sum(one.steps for one in start.segments) if block == start.block else 0
        done = before + batches - self._first
        steps = self._steps_of(block)
        part = 0.0 if steps is None else min(1.0, done / max(1, before + steps))
        return (block + part) / self.epoch.num_blocks

    @property
    def fill(self) -> float | None:
        """How full the batches of the latest block are, between 0 and 1; ``None`` where no worker has reached one."""
        return self._fill_of()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the epoch from its start on: its last block may have too little for a step."""
        start, last = self.epoch.start, self.epoch.num_blocks - 1
        is_in_last = start.block == last and start != Place(0)  # of one block, all is left at its start
        return start.block > last or (is_in_last and not any(self.epoch.steps()))

    def consumed(self, batches: int) -> Place:
        """Return the place after so many batches; calls never go back."""
        self.batches_per_rank = batches
        while self._block < self.epoch.num_blocks and batches > self._first:
            steps = self._steps_of(self._block)
            if steps is None or batches < self._first + steps:
                break
            self._first += steps
            self._block += 1
        done = batches - self._first
        segments = self.epoch.start.segments if self._block == self.epoch.start.block else ()
        if done:
            segments = joined((*segments, self.epoch.segment(done)))
        return Place(self._block, segments)

    def is_complete(self, batches: int) -> bool:
        """Return whether so many batches complete the epoch: only blocks without a step follow."""
        block = self.consumed(batches).block
        left = range(block, self.epoch.num_blocks)
        return batches == self._first and all(self._steps_of(number) == 0 for number in left)
