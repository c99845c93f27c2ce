"""An epoch in planned batches: its order cut into blocks, each planned by itself, also after resumes in its middle.

The state inside an epoch is the block and the steps that were taken of it; where the world changed inside a block, a
short list of worlds and steps. What is left of a block is planned anew for each of them; on the same world it goes on
as it was planned.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, StateError
from wdsdist.sampling.block_plan import BatchRule, BlockPlan, BlockSamples, World, plan_block
from wdsdist.sampling.epoch_plan import BatchPlan
from wdsdist.sampling.order import Order
from wdsdist.sampling.permutation import mix_key
from wdsdist.sampling.shard_schedule import Use

Values = Callable[[Int64s, Int64s], npt.NDArray[np.int64]]
"""Returns a value for each sample, of int64 shards and numbers."""

Oversize = Literal["error", "drop", "alone"]
Long = Literal["split", "truncate", "error"]

_STEPS = 4
"""Sets the random order of steps apart from the other hashes of the order."""


class Segment(NamedTuple):
    """Steps that one world took of a block."""

    num_replicas: int
    per_node: int
    budget: int
    most: int
    steps: int


def joined(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return segments with those that follow one another on the same world as one: a resume there changes no plan.

    >>> joined([Segment(2, 1, 512, 0, 5), Segment(2, 1, 512, 0, 3), Segment(4, 1, 512, 0, 1)])[0].steps
    8
    """
    found: list[Segment] = []
    for one in segments:
        if found and found[-1][:-1] == one[:-1]:
            one = one._replace(steps=found.pop().steps + one.steps)
        found.append(one)
    return tuple(found)


class Place(NamedTuple):
    """A place in an epoch of planned batches."""

    block: int
    segments: tuple[Segment, ...] = ()
    """What was taken of that block, in order."""

    @property
    def steps(self) -> int:
        """Steps that were taken of that block."""
        return sum(one.steps for one in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Configuration of planned batches: the rule that makes them, the size of blocks, and the lengths of samples."""

    rule: BatchRule
    lengths: Values
    costs: Callable[[Int64s, Int64s, Int64s, Int64s], npt.NDArray[np.float64]]
    """Returns what pieces of samples cost, of shards, numbers, lengths of the samples and of the pieces."""
    buckets: Values | None = None
    oversize: Oversize = "error"
    """What happens to a sample over the budget of a batch: ``error``, ``drop`` or ``alone``."""
    long: Long = "split"
    """What happens to a document longer than a row: ``split``, ``truncate`` or ``error``."""
    mark_padding: bool = False
    """Whether batches say which of their samples are repeated."""
    block_samples: int = 1
    """Positions of the order in a block."""


class Pieces(NamedTuple):
    """The parts of samples in a batch of rows: int64 [pieces] each."""

    rows: Int64s
    starts: Int64s
    """The first token of each in its sample."""
    stops: Int64s


class Reached(NamedTuple):
    """How far an epoch of planned batches has come with one of its batches."""

    place: Place
    """The place after it, at which a resume goes on."""
    share: float
    """The part of the epoch up to there, between 0 and 1, as if all blocks were alike."""
    samples: int
    """Of the batch."""
    fill: float
    """How full the batches of its block are, between 0 and 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A planned block: its batches, and where its samples lie."""

    plan: BlockPlan
    shards: Int64s
    samples: Int64s
    epochs: Int64s
    numbers: Int64s
    """int64 [n]: of each planned sample (or piece of one), which of the block's it is."""
    starts: Int64s
    stops: Int64s
    """int64 [n]: its tokens."""
    costs: npt.NDArray[np.float64]
    """float64 [n]."""

    def of_ranks(self, ranks: range, *, marks: bool) -> NodeBatches:
        """Return the batches of some ranks; with ``marks``, they say which of their samples are repeated."""
        plan = self.plan
        places = (np.arange(plan.steps)[:, None] * plan.num_ranks + np.array(ranks)).ravel()
        counts = np.diff(plan.bounds)[places]
        bounds = np.concatenate(([0], np.cumsum(counts)))
        at = np.repeat(plan.bounds[places] - bounds[:-1], counts) + np.arange(bounds[-1])
        chosen = plan.samples[at]
        numbers = self.numbers[chosen]
        return NodeBatches(
            ranks=np.array(ranks),
            bounds=bounds,
            shards=self.shards[numbers],
            samples=self.samples[numbers],
            epochs=self.epochs[numbers],
            rows=plan.rows[at],
            starts=self.starts[chosen],
            stops=self.stops[chosen],
            repeated=plan.is_repeated[at] if marks else np.zeros(0, np.bool_),
        )


class NodeBatches(NamedTuple):
    """The batches of a block that the ranks of one node make: arrays alone, which processes can hand to each other."""

    ranks: Int64s
    bounds: Int64s
    """int64 [steps * ranks + 1]: where the samples of each step and rank start."""
    shards: Int64s
    samples: Int64s
    epochs: Int64s
    rows: Int64s
    starts: Int64s
    stops: Int64s
    """int64 [m]: of each sample in a batch where it lies, its row there, and its tokens."""
    repeated: npt.NDArray[np.bool_]
    """bool [m]: which are repeated only because ranks must be even; empty where batches do not say so."""

    @property
    def steps(self) -> int:
        return (len(self.bounds) - 1) // len(self.ranks)

    def fill(self, rule: BatchRule) -> float:
        """Return the useful tokens over those that there is room for, between 0 and 1."""
        tokens, room = tokens_and_room(self.bounds, self.stops - self.starts, rule)
        return int(tokens.sum()) / max(1, int(room.sum()))

    def batch(self, step: int, rank: int, *, in_rows: bool) -> BatchPlan:
        """Return one batch of one rank."""
        place = step * len(self.ranks) + rank - int(self.ranks[0])
        part = slice(int(self.bounds[place]), int(self.bounds[place + 1]))
        padding = self.repeated[part] if len(self.repeated) else None
        pieces = Pieces(self.rows[part], self.starts[part], self.stops[part]) if in_rows else None
        return BatchPlan(self.shards[part], self.samples[part], self.epochs[part], padding, pieces)


Share = Callable[[int, range, Callable[[], NodeBatches]], NodeBatches]
"""Returns what a function plans, of the number of a block and some ranks; or what another process has planned."""


def _alone(number: int, ranks: range, plan: Callable[[], NodeBatches]) -> NodeBatches:
    return plan()


def tokens_and_room(bounds: Int64s, sizes: Int64s, rule: BatchRule) -> tuple[Int64s, Int64s]:
    """Return of each batch its useful tokens, and the tokens that there is room for: int64 [batches] each.

    Where no column tells lengths, samples count in place of tokens.

    Args:
        bounds: int64 [batches + 1]: where the samples of each batch start.
        sizes: int64 [samples]: tokens of each.
        rule: how the batches were made.
    """
    ends = np.concatenate(([0], np.cumsum(sizes)))
    counts = np.diff(bounds)
    tokens = ends[bounds[1:]] - ends[bounds[:-1]]
    if rule.budget:
        # A sample that is alone over its budget takes as much room as it has tokens.
        return tokens, np.maximum(tokens, rule.budget * (rule.most if rule.kind == "rows" else 1))
    if not len(sizes) or sizes.max() <= 1:
        return tokens, np.full_like(tokens, rule.most)
    longest = np.zeros_like(tokens)
    np.maximum.at(longest, np.repeat(np.arange(len(counts)), counts), sizes)
    return tokens, counts * longest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEpoch:
    """The batches of an epoch, or of its rest, on every rank of a world."""

    batching: Batching
    order: Order
    world: World
    key: int
    """Of the seed and the epoch."""
    start: Place
    share: Share = field(default=_alone, repr=False, compare=False)
    _planned: dict[tuple[int, range], Future[NodeBatches]] = field(default_factory=dict, repr=False, compare=False)
    """The block that is read, and the next one, which may be in the making."""
    _planning: Any = field(default_factory=threading.Lock, repr=False, compare=False)
    """Lock around the planning of a block: orders and columns cache their last lookup, and are not thread-safe."""

    @property
    def num_samples(self) -> int:
        """Samples in the epoch, over all ranks."""
        return self.order.num_samples

    @property
    def num_blocks(self) -> int:
        """Blocks of the epoch."""
        return -(-self.num_samples // self.batching.block_samples)

    def segment(self, steps: int) -> Segment:
        """Return some steps of a block, as this world takes them."""
        return Segment(self.world.num_replicas, self.world.per_node, self._rule.budget, self._rule.most, steps)

    def node_batches(self, number: int, rank: int) -> NodeBatches:
        """Return the batches of a block that the node of a rank makes; of the first block, the rest."""
        for before in list(self._planned):
            if before[0] < number:
                self._planned.pop(before, None)
        future, plan = self._future(number, rank)
        if plan is not None:
            plan()
        return future.result()

    def plan_ahead(self, number: int, rank: int) -> None:
        """Plan a block in a thread, for a later call of `node_batches`: it is the same block, only sooner there."""
        plan = self._future(number, rank)[1] if number < self.num_blocks else None
        if plan is not None:
            threading.Thread(target=plan, name="wdsdist-plan", daemon=True).start()

    def _future(self, number: int, rank: int) -> tuple[Future[NodeBatches], Callable[[], None] | None]:
        """Return the future of a block's batches, and for the first thread that asks, the task that plans them."""
        made: Future[NodeBatches] = Future()
        key = number, self.world.node_of(rank)
        future = self._planned.setdefault(key, made)
        return future, functools.partial(self._plan_into, made, *key) if future is made else None

    def _is_to_come(self, number: int, rank: int) -> bool:
        """Whether a block that is not the first one is neither planned nor behind the one that is read."""
        latest = max((one for one, _ in list(self._planned)), default=self.start.block)
        planned = self._planned.get((number, self.world.node_of(rank)))
        return number > latest or (
            number > self.start.block and number == latest and not (planned is not None and planned.done())
        )

    def _plan_into(self, future: Future[NodeBatches], number: int, ranks: range) -> None:
        marks = self.batching.mark_padding
        try:
            with self._planning:
                future.set_result(self.share(number, ranks, lambda: self.block(number).of_ranks(ranks, marks=marks)))
        except BaseException as error:  # it is raised where the block is asked for
            future.set_exception(error)

    def steps(self) -> Iterator[int]:
        """Yield the steps of each block that is left."""
        for number in range(self.start.block, self.num_blocks):
            yield self.block(number).plan.steps

    def batches(
        self,
        *,
        rank: int,
        worker: int = 0,
        num_workers: int = 1,
        group: int = 1,
    ) -> Iterator[tuple[int, BatchPlan]]:
        """Yield the batches that one worker of one rank makes, with their numbers.

        While those of one block are taken, a thread plans the next.
        """
        first = 0
        in_rows = self.batching.rule.kind == "rows"
        for number in range(self.start.block, self.num_blocks):
            block = self.node_batches(number, rank)
            self.plan_ahead(number + 1, rank)
            fill, total = block.fill(self._rule), block.steps + Place(number, self._taken(number)).steps
            for step in range(block.steps):
                if (first + step) // group % num_workers == worker:
                    batch = block.batch(step, rank, in_rows=in_rows)
                    place = self._place_after(number, step + 1, block.steps, rank)
                    share = (place.block + place.steps / total) / self.num_blocks
                    reached = Reached(place, share, len(batch.shards), fill)
                    yield first + step, batch._replace(reached=reached)
            first += block.steps

    def _taken(self, number: int) -> tuple[Segment, ...]:
        """Return the segments of a block that were consumed before the resume."""
        return self.start.segments if number == self.start.block else ()

    def _place_after(self, number: int, steps: int, left: int, rank: int) -> Place:
        """Return the place after some of the steps that are ``left`` of a block."""
        if steps < left:
            return Place(number, joined((*self._taken(number), self.segment(steps))))
        is_followed_by_rest = number + 2 == self.num_blocks and self._rule.drops
        if is_followed_by_rest and not self.node_batches(number + 1, rank).steps:
            return Place(self.num_blocks)  # it has too few samples for a batch on each rank
        return Place(number + 1)

    def uses(self, *, rank: int, batch: int = 0, plans: bool = False) -> Iterator[Use | None]:
        """Yield the shards that a rank needs from a batch on, block by block, in the order of their first use.

        For a block after the first, ``None`` is yielded as long as it is not planned, unless this call ``plans`` it:
        ask again later.
        """
        first = 0
        for number in range(self.start.block, self.num_blocks):
            while not plans and self._is_to_come(number, rank):
                yield None
            block = self.node_batches(number, rank)
            found: dict[int, list[int]] = {}
            for step in range(block.steps):
                if first + step >= batch:
                    for shard in np.unique(block.batch(step, rank, in_rows=False).shards).tolist():
                        found.setdefault(shard, [first + step, first + step])[1] = first + step
            yield from (Use(uses[0], uses[1], shard) for shard, uses in found.items())
            first += block.steps

    def block(self, number: int) -> Block:
        """Plan the batches of a block for all ranks of this world; of the first block, those that are left.

        Raises `StateError` where more steps were taken of it than it has.
        """
        first = number * self.batching.block_samples
        positions = np.arange(first, min(first + self.batching.block_samples, self.num_samples), dtype=np.int64)
        shards, samples = self.order.locate(positions)
        epochs = self.order.epochs(positions)
        lengths = self.batching.lengths(shards, samples).astype(np.int64)
        numbers, starts, stops = self._pieces(lengths)
        sizes = stops - starts
        costs = self.batching.costs(shards[numbers], samples[numbers], lengths[numbers], sizes)
        buckets = None if self.batching.buckets is None else self.batching.buckets(shards, samples)
        left = np.arange(len(numbers))
        is_last = number == self.num_blocks - 1
        segments = joined(self._taken(number))
        # On the world of the last segment the block goes on as it was planned.
        worlds = joined((*segments, self.segment(0)))
        for turn, segment in enumerate(worlds):
            chosen = left
            if self._rule.kind == "tokens" and self.batching.oversize == "drop":
                chosen = left[sizes[left] <= segment.budget]
            of = numbers[chosen]
            known = BlockSamples(
                np.minimum(sizes[chosen], segment.budget) if segment.budget else sizes[chosen],
                costs[chosen],
                positions[of] % segment.num_replicas,
                None if buckets is None else buckets[of],
                shards[of],
            )
            rule = replace(self._rule, budget=segment.budget, most=segment.most, drops=self._rule.drops and is_last)
            world = World(segment.num_replicas, segment.per_node)
            plan = plan_block(known, rule, world, mix_key(self.key, _STEPS, number, turn))
            if segment.steps > plan.steps:
                raise StateError(
                    f"the state is damaged: it names {segment.steps:,} steps of block {number}, "
                    f"which has {plan.steps:,}"
                )
            if turn < len(worlds) - 1:
                left = np.setdiff1d(left, chosen[plan.until(segment.steps)])
        plan = plan.after(worlds[-1].steps)
        return Block(plan, shards, samples, epochs, numbers[chosen], starts[chosen], stops[chosen], costs[chosen])

    @property
    def _rule(self) -> BatchRule:
        return self.batching.rule

    def _pieces(self, lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the samples of a block that are played, in pieces where they are split: number, start and stop."""
        numbers = np.arange(len(lengths))
        budget = self._rule.budget
        if not budget:
            return numbers, np.zeros_like(lengths), lengths
        if self._rule.kind == "rows" and self.batching.long == "split":
            parts = np.maximum(-(-lengths // budget), 1)
            numbers = np.repeat(numbers, parts)
            starts = (np.arange(len(numbers)) - np.repeat(np.cumsum(parts) - parts, parts)) * budget
            return numbers, starts, np.minimum(starts + budget, lengths[numbers])
        over = lengths > budget
        if over.any() and (self.batching.long if self._rule.kind == "rows" else self.batching.oversize) == "error":
            raise ArgumentError(f"a sample has {int(lengths.max()):,} tokens, more than {budget:,}")
        whole = self._rule.kind == "tokens"
        return numbers, np.zeros_like(lengths), lengths if whole else np.minimum(lengths, budget)


class PlannedProgress:
    """How far the training loop has come in an epoch of planned batches, as the batches themselves tell."""

    def __init__(self, epoch: PlannedEpoch) -> None:
        self.epoch = epoch
        self.place = epoch.start
        """After the batches that were handed out."""
        self._samples = 0
        self._share = epoch.start.block / max(1, epoch.num_blocks)
        self.batches_per_rank = 0
        """Batches that are known of by now."""
        self.fill: float | None = None
        """How full the batches of the latest block are, between 0 and 1; ``None`` before the first one."""

    def add(self, reached: Reached) -> None:
        """Note a batch that was handed out."""
        self.place, self._share, self.fill = reached.place, reached.share, reached.fill
        self._samples += reached.samples
        self.batches_per_rank += 1

    def samples_in(self, batches: int) -> int:
        """Return the samples of the batches that were handed out."""
        return self._samples

    def share(self, batches: int) -> float:
        """Return the part of the epoch that is behind these batches, between 0 and 1, as if all blocks were alike."""
        return self._share

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the epoch from its start on: its last block may have too little for a step."""
        start, last = self.epoch.start, self.epoch.num_blocks - 1
        is_in_last = start.block == last and start != Place(0)  # of one block, all is left at its start
        return start.block > last or (is_in_last and not any(self.epoch.steps()))

    def consumed(self, batches: int) -> int:
        """Return the samples of the blocks that are consumed whole."""
        return min(self.place.block * self.epoch.batching.block_samples, self.epoch.num_samples)

    def is_complete(self, batches: int) -> bool:
        """Return whether these batches complete the epoch: only blocks without a step follow."""
        return not any(replace(self.epoch, start=self.place).steps())
