"""The seam between a loader and the rules that make its batches: a `Batcher` makes the `Plan` of each epoch.

A loader, its workers, its checkpoints and its statistics know these two alone. `wdsdist.sampling.epoch_plan` has
batches of a fixed number of samples; `wdsdist.batching` has batches by lengths and categories. A mix brings another
`Order`, which every plan takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError
from wdsdist.sampling.order import EpochOrder

if TYPE_CHECKING:
    from wdsdist.sampling.shard_schedule import Use


class World(NamedTuple):
    """The ranks that an epoch is dealt to."""

    num_replicas: int
    per_node: int = 1
    """Ranks that share a cache: ``0`` to ``per_node - 1``, and so on."""

    def node_of(self, rank: int) -> range:
        """Return the ranks that share a cache with a rank."""
        first = rank // self.per_node * self.per_node
        return range(first, min(first + self.per_node, self.num_replicas))


class Position(NamedTuple):
    """A position in training: an epoch, and what all ranks together have consumed of it."""

    epoch: int
    consumed: int = 0
    """Samples; planned batches count the samples of whole blocks."""
    segments: str = ""
    """The steps that were taken of the block after these samples, in the notation of the plan; empty at its start."""

    @property
    def has_begun(self) -> bool:
        """Whether some of the epoch is consumed."""
        return self.consumed > 0 or bool(self.segments)


class WorkerBatches(NamedTuple):
    """The batches of a rank that one of its workers makes, in groups that it sends together, dealt to workers in turn.

    The first group of a worker is one batch, so that the training loop does not wait for a whole group.

    >>> from itertools import islice
    >>> [list(islice(WorkerBatches(worker, 2, group=3).numbers(), 6)) for worker in range(2)]
    [[0, 2, 3, 4, 8, 9], [1, 5, 6, 7, 11, 12]]
    """

    worker: int = 0
    """The worker that makes the batches."""
    num_workers: int = 1
    group: int = 1
    """Batches of a group."""

    def groups(self) -> Iterator[range]:
        """Yield the numbers of the worker's batches, group by group, without end."""
        yield range(self.worker, self.worker + 1)
        for first in count(self.num_workers + self.worker * self.group, self.num_workers * self.group):
            yield range(first, first + self.group)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the worker's batches, without end."""
        return chain.from_iterable(self.groups())


ALL_BATCHES: Final = WorkerBatches()
"""All batches of a rank."""


class Pieces(NamedTuple):
    """The parts of samples in a batch of rows: int64 [pieces] each."""

    rows: Int64s
    starts: Int64s
    """The first token of each in its sample."""
    stops: Int64s


class Reached(NamedTuple):
    """How far an epoch has come with one of its batches."""

    position: Position
    """The position after the batch, from which a resume continues."""
    samples: int
    """Samples of the batch."""
    fill: float | None = None
    """How full the batches around it are, between 0 and 1; ``None`` if they have no limit to fill."""


class BatchPlan(NamedTuple):
    """The samples of one batch of one rank, by shard and number there."""

    shards: Int64s
    samples: Int64s
    epochs: Int64s
    """int64 [batch] each; the epochs seed the transforms."""
    padding: npt.NDArray[np.bool_] | None = None
    """bool [batch]: which samples are repeated to make the ranks even; ``None`` if padding is not marked."""
    pieces: Pieces | None = None
    """Which tokens of each sample go into which row; ``None`` for batches that are not rows."""
    reached: Reached | None = None
    """How far the epoch has come with the batch; ``None`` if `EpochPlan.reached` knows by its number."""


class Plan(Protocol):
    """The batches of one epoch, or of its rest after a resume, on every rank."""

    @property
    def num_samples(self) -> int:
        """``N``: samples of the whole epoch, over all ranks."""

    @property
    def batch_size(self) -> int:
        """Samples of a batch on one rank, about."""

    @property
    def samples_per_rank(self) -> int:
        """Samples that each rank takes, about."""

    @property
    def batches_per_rank(self) -> int | None:
        """Batches that each rank makes; ``None`` if only a pass over the lengths of all samples tells."""

    @property
    def start(self) -> Position:
        """The position where the plan begins: the start of the epoch, or the checkpoint of a resume."""

    @property
    def last_global_batch(self) -> int:
        """Samples, without padding, that the ranks gather of the last batch; -1 if padding does not end it."""

    def count_batches(self) -> int:
        """Return the batches that each rank makes, after a pass over all lengths if it takes one."""

    def batches(self, *, rank: int, part: WorkerBatches = ALL_BATCHES) -> Iterator[tuple[int, BatchPlan]]:
        """Yield the batches of a rank that one of its workers makes, with their numbers; by default all."""

    def uses(self, *, rank: int, batch: int = 0, waits: bool = False) -> Iterator[Use | None]:
        """Yield the shards that a rank needs from a batch on, in the order of their first use.

        ``None`` stands for uses that are not planned yet: ask again later, or call with ``waits``.
        """

    def is_over(self, position: Position) -> bool:
        """Return whether no batch is left after a position of the epoch."""


class Batcher:
    """The rule that makes the batches of a data set's epochs. Its defaults are for batches that need no columns."""

    label: str
    """The name of the rule, which a state must have for a resume inside an epoch."""
    is_plain = False
    """Whether each batch has the next samples of the order, so that making one is little work."""
    collate: Callable[..., Any] | None = None
    """Makes a batch from a list of samples, and from `Pieces` of them by name; ``None`` makes columns."""
    misfits: Callable[[int, Int64s, int], Int64s] | None = None
    """Rates the substitutes for a bad sample: how badly other samples of its shard fit in its place."""

    def plan(self, order: EpochOrder, position: Position, world: World, *, block: int = 0) -> Plan:
        """Return the plan of an epoch from a position on.

        Args:
            order: of the epoch.
            position: the epoch, and where it goes on.
            world: the ranks.
            block: samples that are planned together, as `block_samples` gave them in the first run.
        """
        raise NotImplementedError

    def block_samples(self, num_replicas: int, window: int | None = None) -> int:
        """Return how many samples are planned together in the first run on so many ranks; 0 if any number will do.

        A batch may have samples from all of them, so that a cache with a limit needs room for their shards: ``window``
        is then the number of samples in the shuffle windows of all lanes, for which there is room.
        """
        return 0

    def check(self, num_samples: int, num_replicas: int) -> None:
        """Raise `ArgumentError` if an epoch has no batch, or a sample that fits in none."""
        if not num_samples:
            raise ArgumentError("the data set has no samples: nothing can be read")

    def options(self, world: World) -> dict[str, Any]:
        """Return all that decides the batches beside `state`, as strings and numbers: the same on all ranks."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return further fields of a state, flat: what must be the same to continue inside a block."""
        return {}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise `StateError` if a state inside a block of such batches cannot go on here."""
