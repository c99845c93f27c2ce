"""Plan the epochs of a loader: over which samples and in which order each goes, and which batches are left of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from wdsdist._util.validation import check_flag, check_integer, counted
from wdsdist.errors import ArgumentError, StateError
from wdsdist.loader.checkpoint import Left, Position, State, check_state, read_state
from wdsdist.loader.dataset import FRAMEWORKS, StreamingDataset
from wdsdist.loader.order_config import OrderConfig, check_ranks_agree
from wdsdist.loader.planned_batches import BatchOptions, PlannedBatches, check_worlds, planned_position
from wdsdist.loader.worker_state import EpochStart, PlannedStart
from wdsdist.sampling.block_plan import World
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.planned_epoch import Place, PlannedEpoch, PlannedProgress


class EpochPlanner:
    """Plans a loader's epochs: shuffle order, batches of each rank, checkpoint state, and the rest after a resume.

    The settings of the order, and the size of blocks, are those of the first run or of a loaded state, whatever the
    world becomes.

    Args:
        dataset: of the loader; its epochs have the samples that are found when they start.
        collate_fn, batch_size, drop_last, batches: arguments of the loader about its batches.

    Raises `ArgumentError` where these cannot work.
    """

    def __init__(
        self, dataset: StreamingDataset, collate_fn: object, *, batch_size: int, drop_last: bool | None, **batches: Any
    ) -> None:
        self._dataset = dataset
        self.options = BatchOptions(
            batch_size=check_integer("batch_size", batch_size, 1),
            drop_last=not dataset.mark_padding if drop_last is None else check_flag("drop_last", drop_last),
            mark_padding=dataset.mark_padding,
            **batches,
        )
        itemsizes = dataset.sample_reader.itemsizes
        self.planned = PlannedBatches.of(dataset.manifest, self.options, itemsizes, collate_fn)
        """Makes planned batches; ``None`` for batches of so many samples."""
        # Of planned batches: columns may not have values for what is added to a data set.
        self._fixed = None if self.planned is None else dataset.order_config
        self._settings: OrderSettings | None = None
        self._config: OrderConfig | None = None  # of the epoch that has begun, or of a state that was loaded
        self._block = 0
        self._checked: tuple[OrderConfig, OrderSettings] | None = None  # for which the cache was found to have room

    @property
    def latest(self) -> OrderConfig:
        """The order over the samples that were found last."""
        return self._fixed or self._dataset.order_config

    def config_at(self, position: Position) -> OrderConfig:
        """Return the order at a position: that of the epoch that has begun, or else over all samples."""
        begun = self._config if position.has_begun else None
        return begun or self.latest

    @property
    def settings(self) -> OrderSettings:
        """The settings of the order."""
        return self._settings or self.latest.settings(self._dataset.identity())

    @property
    def block_samples(self) -> int:
        """Positions of a block of planned batches, the same in all later runs."""
        if self.planned is not None and not self._block:
            settings = self.settings
            bounded = self._dataset.cache.limit is not None and bool(self._dataset.manifest.is_copied.any())
            window = settings.window * settings.num_canonical_replicas if bounded else None
            self._block = self.planned.usual_block(self._dataset.identity().world_size, window)
        return self._block

    def left(self, position: Position, config: OrderConfig | None = None) -> Left:
        """Return the batches from a position on, of an order where that is known.

        Raises `ArgumentError` where a whole epoch would have no batch.
        """
        if self.planned is not None:
            if not FRAMEWORKS.isdisjoint(sys.modules):
                from wdsdist.loader.framework_guards import refuse_first_length

                refuse_first_length()
            return PlannedProgress(self._planned_epoch(self.planned, position))
        config = config or self.config_at(position)
        plan = self._plan(config, self.options.batch_size, position.consumed)
        if not position.consumed and not plan.batches_per_rank:
            self._check_samples(config)
            size, world = plan.batch_size, plan.num_replicas
            if self._dataset.drop_last and plan.num_samples < world:
                raise ArgumentError(
                    f"the data set has {plan.num_samples:,} samples, fewer than there are ranks ({world:,}), and its "
                    f"drop_last=True drops them all: pass drop_last=False to StreamingDataset, which repeats some"
                )
            raise ArgumentError(
                f"the data set has {counted(plan.num_samples, 'sample')}, fewer than one global batch of "
                f"{size * world:,} ({counted(world, 'rank')} x batch_size {size}), and drop_last=True drops "
                f"them all: lower batch_size or pass drop_last=False"
            )
        return plan

    def _plan(self, config: OrderConfig, batch_size: int, consumed: int = 0) -> EpochPlan:
        return EpochPlan(
            num_samples=config.num_samples,
            num_replicas=self._dataset.identity().world_size,
            batch_size=batch_size,
            drop_last=self._dataset.drop_last,
            drop_last_batch=self.options.drop_last,
            start=consumed,
            mark_padding=self._dataset.mark_padding,
        )

    def _check_samples(self, config: OrderConfig) -> None:
        if not config.num_samples:
            raise ArgumentError(f"the data set {self._dataset.manifest!r} has no samples: nothing can be read")

    def _planned_epoch(self, planned: PlannedBatches, position: Position) -> PlannedEpoch:
        settings, here = self.settings, self._dataset.identity()
        return planned.epoch(
            self.config_at(position).order(settings, position.epoch),
            seed=settings.seed,
            epoch=position.epoch,
            world=World(here.world_size, here.ranks_per_node),
            place=position.place or Place(position.consumed // self.block_samples),
            block=self.block_samples,
        )

    def length(self, position: Position) -> int:
        """Return the batches that the whole epoch of a position has on each rank."""
        if self.planned is not None:
            return self.planned_length(position.epoch)
        return self.left(Position(position.epoch, 0), self.config_at(position)).batches_per_rank

    def planned_length(self, epoch: int) -> int:
        """Return the planned batches that a whole epoch has on each rank, which differs by epoch."""
        if self.planned is None:
            raise StateError("this loader has batches of a fixed number of samples: ask for its len()")
        planned = self._planned_epoch(self.planned, Position(epoch, 0))
        return self.planned.count_steps(planned, f"{self.settings} {self.latest.notes}")

    def is_at_end(self, position: Position) -> bool:
        """Return whether no batch is left of the epoch of a position."""
        return position.has_begun and position.consumed >= self.config_at(position).num_samples

    def check(self, config: OrderConfig, *, is_first: bool) -> None:
        """Check that an epoch of a shuffle order can begin or resume, and for the first one that the ranks agree on it.

        Raises `StateError` where this rank would read other samples than other ranks, and `ArgumentError` where
        the cache has too little room.
        """
        settings, here = self.settings, self._dataset.identity()
        self._settings = settings
        if is_first and here.world_size > 1:
            check_ranks_agree(self._dataset.manifest.data_sets, settings, here)
            if self.planned is not None:
                self.planned.check_ranks_agree(here, self.block_samples)
        if self._checked is None or self._checked[0] is not config or self._checked[1] != settings:
            config.check_room(settings, here)
            self._checked = config, settings

    def begin(self, config: OrderConfig) -> None:
        """Note that an epoch of a shuffle order has begun or resumed: positions in it are of that order."""
        self._config = config

    def start(self, position: Position, left: Left) -> EpochStart:
        """Return the start of an epoch as workers need it: the batches left at a position.

        Raises `StateError` where a block was divided between too many worlds.
        """
        here = self._dataset.identity()
        start = functools.partial(
            EpochStart, epoch=position.epoch, rank=here.rank, settings=self.settings, node=here.node_ranks
        )
        if isinstance(left, EpochPlan):
            return start(plan=left)
        epoch = left.epoch
        check_worlds(epoch)
        return start(plan=self._about(), planned=PlannedStart(epoch.world, epoch.start, epoch.batching.block_samples))

    def _about(self) -> EpochPlan:
        """Return about as many batches as an epoch of planned ones has, by which memory is shared out.

        Raises `ArgumentError` where the epoch has no batch, as all samples would be dropped.
        """
        assert self.planned is not None
        self.planned.check_lengths()
        self._check_samples(self.latest)
        count, world = self.latest.num_samples, self._dataset.identity().world_size
        is_split = self.options.pack_to is not None and self.options.long == "split"
        if self.options.drop_last and not is_split and count < world:
            raise ArgumentError(
                f"the data set has {counted(count, 'sample')}, fewer than there are ranks ({world:,}), and "
                f"drop_last=True drops them all: pass drop_last=False"
            )
        return self._plan(self.latest, self.planned.usual_batch)

    def state(self, position: Position) -> State:
        """Return the state of a loader at a position."""
        if position.place is not None and self.is_at_end(position):
            position = Position(position.epoch, self.config_at(position).num_samples, position.place)
        state = self.config_at(position).state(position, self.settings)
        if self.planned is None:
            return state
        place = position.place if state["epoch"] == position.epoch else None  # else the epoch is over
        return state | self.planned.state(place, self.block_samples)

    def load(self, state: Mapping[str, Any]) -> tuple[Position, bool]:
        """Take the settings of a state; return its position, and whether nothing is left of its epoch.

        Raises `StateError` for the state of another data set, seed or order.
        """
        check_state(state)
        config = self.latest.as_in(state)
        settings = config.settings(self._dataset.identity(), state)
        position = read_state(state, config.expected(state, settings))
        position, self._block = planned_position(self.planned, position, state, self._block)
        self._settings, self._config = settings, config
        self._fixed = self._fixed and self._fixed.after(state)
        self._dataset.order_config = self._dataset.order_config.after(state)
        return position, position.consumed >= config.num_samples
