"""An epoch in planned batches: its order cut into blocks, each planned by itself, also after resumes in its middle.

A position inside the epoch is the samples of the blocks that are consumed whole, and the *segments* of the next block:
the steps that worlds took of it, in order. On the same world a block continues as planned; what is left
of it is planned again for another world.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, distinct
from wdsdist._util.validation import MOST_PROCESSES
from wdsdist.batching.block_plan import BlockSamples, Rule, plan_block
from wdsdist.distributed.run_once import kept
from wdsdist.errors import StateError
from wdsdist.sampling.order import EpochOrder
from wdsdist.sampling.permutation import mix_key
from wdsdist.sampling.plan import ALL_BATCHES, BatchPlan, Pieces, Position, Reached, WorkerBatches, World
from wdsdist.sampling.shard_schedule import Use

Values = Callable[[Int64s, Int64s], npt.NDArray[np.int64]]
"""Returns a value for each sample, of int64 shards and numbers."""

_STEPS = 4
"""Sets the random order of steps apart from the other hashes of the order."""

_SHARED = 1 << 18
"""Samples of a block from which on one process plans it for all of a node: they take about a quarter of a second."""


class Segment(NamedTuple):
    """Steps that one world took of a block."""

    num_replicas: int
    per_node: int
    budget: int
    most: int
    steps: int


def joined(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return segments, with those joined that follow one another on one world: a resume changes no plan."""
    result: list[Segment] = []
    for segment in segments:
        if result and result[-1][:-1] == segment[:-1]:
            segment = segment._replace(steps=result.pop().steps + segment.steps)
        result.append(segment)
    return tuple(result)


def written(segments: Iterable[Segment]) -> str:
    """Return segments as a string for a `Position`."""
    return ";".join(",".join(map(str, segment)) for segment in segments)


def parsed(string: str) -> tuple[Segment, ...]:
    """Return the segments that `written` gave. Raises `StateError` for any other string."""
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        segments = tuple(Segment(*map(int, part.split(","))) for part in string.split(";") if part)
        worlds, numbers = [each[:2] for each in segments], [each[2:] for each in segments]
        if all(1 <= min(each) <= max(each) <= MOST_PROCESSES for each in worlds) and all(
            0 <= min(each) <= max(each) < 2**63 for each in numbers
        ):
            return segments
    raise StateError(f"the state is damaged: its segments are {string!r}")


class Block(NamedTuple):
    """The batches of some ranks in a block, which processes hand to each other."""

    ranks: Int64s
    bounds: Int64s
    """int64 [steps * ranks + 1]: where the samples of each step and rank start."""
    shards: Int64s
    samples: Int64s
    epochs: Int64s
    rows: Int64s
    starts: Int64s
    stops: Int64s
    """int64 [m]: the location of each sample, or piece of one, its row in the batch, and its tokens."""
    repeated: npt.NDArray[np.bool_]
    """bool [m]: which are repeated to make the ranks even."""

    @property
    def steps(self) -> int:
        return (len(self.bounds) - 1) // len(self.ranks)

    def batch(self, step: int, rank: int, rule: Rule) -> BatchPlan:
        """Return one batch of one rank."""
        index = step * len(self.ranks) + rank - int(self.ranks[0])
        part = slice(int(self.bounds[index]), int(self.bounds[index + 1]))
        padding = self.repeated[part] if rule.mark_padding else None
        pieces = Pieces(self.rows[part], self.starts[part], self.stops[part]) if rule.has_rows else None
        return BatchPlan(self.shards[part], self.samples[part], self.epochs[part], padding, pieces)


def tokens_and_room(bounds: Int64s, sizes: Int64s, rule: Rule) -> tuple[Int64s, Int64s]:
    """Return the useful tokens of each batch, and the tokens that there is room for: int64 [batches] each.

    Without a column of lengths, samples count in place of tokens.

    Args:
        bounds: int64 [batches + 1]: where the samples of each batch start.
        sizes: int64 [samples]: tokens of each.
        rule: how the batches were made.
    """
    ends = np.concatenate(([0], np.cumsum(sizes)))
    counts = np.diff(bounds)
    tokens = ends[bounds[1:]] - ends[bounds[:-1]]
    if rule.budget:
        # A sample over the budget, alone in its batch, takes as much room as it has tokens.
        return tokens, np.maximum(tokens, rule.room)
    if not len(sizes) or sizes.max() <= 1:
        return tokens, np.full_like(tokens, rule.most)
    return tokens, counts * np.maximum.reduceat(sizes, bounds[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEpoch:
    """The planned batches of an epoch, or of its rest, on every rank of a world: a `Plan`.

    Each process plans for all ranks. The processes of a node share the plans of large blocks.
    """

    rule: Rule
    lengths: Values
    buckets: Values | None = None
    """The category of each sample."""
    batch_size: int = 1
    """Samples of a batch, about."""
    block_samples: int
    """Positions of the order in a block."""
    order: EpochOrder
    world: World
    start: Position
    about: str = ""
    """All that the plan depends on besides these, such as the values of the lengths: for results that a node keeps."""
    _planned: dict[tuple[int, range], Future[Block]] = field(default_factory=dict, repr=False, compare=False)
    """The block that is read, and the next one, which may be under way."""
    _planner: Any = field(default_factory=lambda: ThreadPoolExecutor(1, "wdsdist-plan"), repr=False, compare=False)
    """One thread plans all blocks: orders and columns cache their last lookup, and are not thread-safe."""
    _planning: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def num_samples(self) -> int:
        return self.order.num_samples

    @property
    def samples_per_rank(self) -> int:
        return -(-(self.num_samples - self.start.consumed) // self.world.num_replicas)

    batches_per_rank: None = field(default=None, init=False, repr=False)
    last_global_batch: int = field(default=-1, init=False, repr=False)

    @property
    def num_blocks(self) -> int:
        """Blocks of the epoch."""
        return -(-self.num_samples // self.block_samples)

    @property
    def first_block(self) -> int:
        """The block in which the plan starts."""
        return self._block_of(self.start)

    def _block_of(self, position: Position) -> int:
        return -(-position.consumed // self.block_samples)

    def segment(self, steps: int) -> Segment:
        """Return some steps of a block, as this world takes them."""
        return Segment(self.world.num_replicas, self.world.per_node, self.rule.budget, self.rule.most, steps)

    def count_batches(self) -> int:
        # One process of a node makes the pass over all lengths.
        return kept(self._identity, lambda: sum(self.steps()))

    @property
    def _identity(self) -> str:
        rest = f"{self.block_samples} {self.num_samples} {self.start}"
        return f"{self.about} {self.order.label} {self.rule} {self.world} {rest}"

    # Blocks, planned once in each process, or on each node.

    def node_batches(self, number: int, rank: int) -> Block:
        """Return the batches of a block that the node of a rank makes; of the first block, the rest."""
        for before in list(self._planned):
            if before[0] < number:
                self._planned.pop(before, None)
        return self.plan_ahead(number, rank).result()

    def plan_ahead(self, number: int, rank: int) -> Future[Block]:
        """Begin to plan a block, unless that has begun; return the batches that the node of a rank makes of it."""
        key = number, self.world.node_of(rank)
        with self._planning:
            if key not in self._planned:
                self._planned[key] = self._planner.submit(self._plan, *key)
            return self._planned[key]

    def _plan(self, number: int, ranks: range) -> Block:
        if self.block_samples < _SHARED:
            return self.block(number, ranks)
        return kept(f"{self._identity} {number} {ranks}", lambda: self.block(number, ranks))

    def _is_to_come(self, number: int, rank: int) -> bool:
        """Whether a block is neither planned nor behind the one that is read; the first block never is."""
        latest = max((planned for planned, _ in list(self._planned)), default=self.first_block)
        planned = self._planned.get((number, self.world.node_of(rank)))
        is_done = planned is not None and planned.done()
        return number > latest or (self.first_block < number == latest and not is_done)

    # The plan of the epoch.

    def steps(self) -> Iterator[int]:
        """Yield the steps of each block that is left."""
        for number in range(self.first_block, self.num_blocks):
            yield self.block(number, range(1)).steps

    def batches(self, *, rank: int, part: WorkerBatches = ALL_BATCHES) -> Iterator[tuple[int, BatchPlan]]:
        first, mine = 0, part.numbers()
        wanted = next(mine)
        for number in range(self.first_block, self.num_blocks):
            block = self.node_batches(number, rank)
            if number + 1 < self.num_blocks:  # while the batches of this block are taken
                self.plan_ahead(number + 1, rank)
            tokens, room = tokens_and_room(block.bounds, block.stops - block.starts, self.rule)
            fill = int(tokens.sum()) / max(1, int(room.sum()))
            for step in range(block.steps):
                if first + step == wanted:
                    wanted = next(mine)
                    batch = block.batch(step, rank, self.rule)
                    position = self._position_after(number, step + 1, block.steps, rank)
                    reached = Reached(position, len(batch.shards), fill)
                    yield first + step, batch._replace(reached=reached)
            first += block.steps

    def _taken(self, number: int) -> tuple[Segment, ...]:
        """Return the segments of a block that were consumed before the resume."""
        return parsed(self.start.segments) if number == self.first_block else ()

    def _position_after(self, number: int, steps: int, left: int, rank: int) -> Position:
        """Return the position after some of the steps that are ``left`` of a block."""
        size = self.block_samples
        if steps < left:
            segments = joined((*self._taken(number), self.segment(steps)))
            return Position(self.start.epoch, number * size, written(segments))
        number += 1
        # A block may have too few samples for a batch on each rank.
        while number < self.num_blocks and (
            self.rule.long == "drop" or (self.rule.drops and number == self.num_blocks - 1)
        ):
            if self.node_batches(number, rank).steps:
                break
            number += 1
        return Position(self.start.epoch, min(number * size, self.num_samples))

    def uses(self, *, rank: int, batch: int = 0, waits: bool = False) -> Iterator[Use | None]:
        first = 0
        for number in range(self.first_block, self.num_blocks):
            while not waits and self._is_to_come(number, rank):
                yield None
            block = self.node_batches(number, rank)
            uses: dict[int, list[int]] = {}
            for step in range(block.steps):
                if first + step >= batch:
                    for shard in distinct(block.batch(step, rank, self.rule).shards).tolist():
                        uses.setdefault(shard, [first + step, first + step])[1] = first + step
            yield from (Use(batches[0], batches[1], shard) for shard, batches in uses.items())
            first += block.steps

    def is_over(self, position: Position) -> bool:
        """Return whether no batch is left after a position of the epoch: its last block may have too little."""
        if position.consumed >= self.num_samples:
            return True
        if not position.has_begun or self._block_of(position) < self.num_blocks - 1:
            return False
        return not any(replace(self, start=position).steps())

    def block(self, number: int, ranks: range | None = None) -> Block:
        """Plan a block for all ranks of this world; return the batches that ``ranks`` make, by default all of them.

        The first block has the batches that are left. Raises `StateError` if more steps were taken of it than it has.
        """
        first = number * self.block_samples
        positions = np.arange(first, min(first + self.block_samples, self.num_samples), dtype=np.int64)
        shards, samples, epochs = self.order.make().locate(positions)
        lengths = self.lengths(shards, samples).astype(np.int64)
        numbers, starts, stops = self._pieces(lengths)
        sizes = stops - starts
        buckets = None if self.buckets is None else self.buckets(shards, samples)
        left = np.arange(len(numbers))
        is_last = number == self.num_blocks - 1
        key = mix_key(self.order.seed, self.start.epoch)
        # On the world of the last segment the block continues as planned.
        worlds = joined((*self._taken(number), self.segment(0)))
        for turn, segment in enumerate(worlds):
            chosen = left
            if self.rule.long == "drop":
                chosen = left[sizes[left] <= segment.budget]
            of = numbers[chosen]
            known = BlockSamples(
                sizes[chosen],
                positions[of] % segment.num_replicas,
                None if buckets is None else buckets[of],
                shards[of],
            )
            rule = replace(self.rule, budget=segment.budget, most=segment.most, drops=self.rule.drops and is_last)
            world = World(segment.num_replicas, segment.per_node)
            plan = plan_block(known, rule, world, mix_key(key, _STEPS, number, turn))
            if segment.steps > plan.steps:
                raise StateError(
                    f"the state is damaged: it names {segment.steps:,} steps of block {number}, which has {plan.steps}"
                )
            if turn < len(worlds) - 1:
                left = np.setdiff1d(left, chosen[plan.samples[: plan.bounds[segment.steps * world.num_replicas]]])
        ranks = range(world.num_replicas) if ranks is None else ranks
        batches = (np.arange(segment.steps, plan.steps)[:, None] * world.num_replicas + np.array(ranks)).ravel()
        counts = np.diff(plan.bounds)[batches]
        bounds = np.concatenate(([0], np.cumsum(counts)))
        at = np.repeat(plan.bounds[batches] - bounds[:-1], counts) + np.arange(bounds[-1])
        pieces = chosen[plan.samples[at]]
        of = numbers[pieces]
        return Block(
            ranks=np.array(ranks),
            bounds=bounds,
            shards=shards[of],
            samples=samples[of],
            epochs=epochs[of],
            rows=plan.rows[at],
            starts=starts[pieces],
            stops=stops[pieces],
            repeated=plan.is_repeated[at],
        )

    def _pieces(self, lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the samples of a block in pieces, of which a long document has several: number, start and stop."""
        numbers = np.arange(len(lengths))
        budget = self.rule.budget
        if not budget:
            return numbers, np.zeros_like(lengths), lengths
        if self.rule.has_rows and self.rule.long == "split":
            parts = np.maximum(-(-lengths // budget), 1)
            numbers = np.repeat(numbers, parts)
            starts = (np.arange(len(numbers)) - np.repeat(np.cumsum(parts) - parts, parts)) * budget
            return numbers, starts, np.minimum(starts + budget, lengths[numbers])
        return numbers, np.zeros_like(lengths), np.minimum(lengths, budget) if self.rule.has_rows else lengths
