"""Plan the epochs of a loader: the samples and the order of each, and which batches are left of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wdsdist.errors import StateError
from wdsdist.loader.checkpoint import State, check_state, make_state, read_state
from wdsdist.loader.order_config import OrderConfig, check_ranks_agree, check_room, plan_of
from wdsdist.loader.worker_state import EpochStart
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.plan import Batcher, Plan, Position, World

if TYPE_CHECKING:
    from wdsdist.loader.dataset import StreamingDataset


class EpochPlanner:
    """Plans a loader's epochs: their order, the batches of each rank, and the rest after a resume.

    The settings of the order, and the size of blocks, stay those of the first run or of a loaded state on any world.

    Args:
        dataset: of the loader.
        batcher: makes its batches.
    """

    def __init__(self, dataset: StreamingDataset, batcher: Batcher) -> None:
        self._dataset = dataset
        self.batcher = batcher
        self._settings: OrderSettings | None = None
        self._block = 0
        self._begun: tuple[int, OrderConfig] | None = None  # the epoch that has begun, perhaps of an older generation

    @property
    def _config(self) -> OrderConfig:
        return self._dataset.order_config

    def config_at(self, position: Position) -> OrderConfig:
        """Return the order at a position: an epoch keeps the samples that it began with; others have all."""
        if self._begun is not None and position.has_begun and position.epoch == self._begun[0]:
            return self._begun[1]
        return self._config

    @property
    def settings(self) -> OrderSettings:
        """The settings of the order."""
        return self._settings or self._config.settings(self._dataset.identity().world_size)

    @property
    def block_samples(self) -> int:
        """Samples that are planned together, the same in all later runs."""
        if not self._block:
            settings = self.settings
            is_bounded = self._dataset.cache.limit is not None and bool(self._dataset.manifest.is_copied.any())
            window = settings.window * settings.num_canonical_replicas if is_bounded else None
            self._block = self.batcher.block_samples(self._world.num_replicas, window)
        return self._block

    @property
    def _world(self) -> World:
        here = self._dataset.identity()
        return World(here.world_size, here.ranks_per_node)

    def plan(self, position: Position) -> Plan:
        """Return the plan of the batches from a position on.

        Raises `ArgumentError` if a whole epoch would have no batch.
        """
        config = self.config_at(position)
        if not position.has_begun:
            self.batcher.check(config.num_samples, self._world.num_replicas)
        return plan_of(config, self.batcher, self._world, position, settings=self.settings, block=self.block_samples)

    def length(self, position: Position) -> int:
        """Return the batches that the whole epoch of a position has on each rank."""
        config = self.config_at(position)
        self.batcher.check(config.num_samples, self._world.num_replicas)
        whole = Position(position.epoch)
        plan = plan_of(config, self.batcher, self._world, whole, settings=self.settings, block=self.block_samples)
        return plan.count_batches()

    def is_at_end(self, position: Position) -> bool:
        """Return whether no batch is left of the epoch of a position."""
        return position.has_begun and position.consumed >= self.config_at(position).num_samples

    def start(self, position: Position) -> EpochStart:
        """Return the start of an epoch as workers need it."""
        return EpochStart(
            position=position,
            rank=self._dataset.identity().rank,
            world=self._world,
            settings=self.settings,
            block=self.block_samples,
        )

    def begin(self, position: Position) -> None:
        """Note that an epoch has begun or resumed: it keeps its samples."""
        self._begun = position.epoch, self.config_at(position)
        self._settings = self.settings

    def check(self, position: Position, *, is_first: bool) -> None:
        """Check that an epoch can begin or resume.

        Raises `StateError` if this rank would read other samples than other ranks, and `ArgumentError` if the cache
        has too little room. Ranks are compared for the first epoch alone.
        """
        here = self._dataset.identity()
        if is_first and here.world_size > 1:
            check_ranks_agree(self._dataset.manifest.data_sets, here)
            self.batcher.check_ranks_agree(self._world, self.block_samples)
        limit = self._dataset.cache.limit
        if is_first and limit is not None and not self._dataset.reads_some_fields:  # which may need less
            check_room(self.config_at(position), self.settings, here, limit)

    def state(self, position: Position) -> State:
        """Return the state of a loader at a position."""
        rules = self.batcher.state()
        if self.block_samples:
            rules["block_samples"] = self.block_samples
        config = self.config_at(position)
        return make_state(position, config, self.settings, batches=self.batcher.label, **rules)

    def load(self, state: Mapping[str, Any]) -> tuple[Position, bool]:
        """Take the settings of a state; return its position, and whether nothing is left of its epoch.

        Raises `StateError` for the state of another data set, seed or order, of other batches inside an epoch, or of
        batches that were planned in another way inside a block.
        """
        check_state(state)
        config = self._config.as_in(state)
        settings = config.settings(self._dataset.identity().world_size, state)
        position = read_state(state, make_state(Position(0), config, settings, batches=self.batcher.label))
        block = self._block
        if self.block_samples and state.get("batches") == self.batcher.label:
            block = state.get("block_samples", 0)
            if type(block) is not int or block < 1:
                raise StateError(f"the state is damaged: blocks of {block!r} samples")
            if position.segments:
                self.batcher.check_state(state)
        self._settings, self._block = settings, block
        self._begun = position.epoch, config
        return position, position.consumed >= config.num_samples
