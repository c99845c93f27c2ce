"""Plan the epochs of a loader: the samples and the order of each, and which batches are left of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wdsdist.distributed.identity import process_group
from wdsdist.errors import StateError
from wdsdist.loader.worker_iterator import EpochStart
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.order_config import OrderConfig
from wdsdist.sampling.plan import Batcher, Plan, Position, World
from wdsdist.storage import shown

if TYPE_CHECKING:
    from wdsdist.loader.checkpoint import State
    from wdsdist.loader.dataset import StreamingDataset

_ONE_CHOICE = (
    "give all ranks the same shards and views, which the data set divides among them; a loader that one rank alone "
    "iterates needs num_replicas=1 and rank=0"
)


class EpochPlanner:
    """Plans a loader's epochs: their order, the batches of each rank, and the rest after a resume.

    The settings of the order and the size of blocks stay as in the first run or in a loaded state, on any world.

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

    def config_at(self, position: Position) -> OrderConfig:
        """Return the order at a position: an epoch keeps the samples that it began with; others have all."""
        if self._begun is not None and position.has_begun and position.epoch == self._begun[0]:
            return self._begun[1]
        return self._dataset.order_config

    def start(self, position: Position) -> EpochStart:
        """Return the start of an epoch, or of its rest, as workers need it."""
        dataset, identity = self._dataset, self._dataset.identity()
        settings = self._settings or dataset.order_config.settings(identity.world_size)
        if not self._block:  # the same in all later runs; 0 if any number will do
            is_limited = dataset.cache.limit is not None and dataset.manifest.is_copied.any()
            window = settings.window * settings.num_canonical_replicas if is_limited else None
            self._block = self.batcher.block_samples(identity.world_size, window)
        world = World(identity.world_size, identity.ranks_per_node)
        return EpochStart(position=position, rank=identity.rank, world=world, settings=settings, block=self._block)

    def plan(self, position: Position, config: OrderConfig | None = None) -> Plan:
        """Return the plan of the batches from a position on, by default in the order there.

        Raises `ArgumentError` if a whole epoch would have no batch.
        """
        start, config = self.start(position), config or self.config_at(position)
        if not position.has_begun:
            self.batcher.check(config.num_samples, start.world.num_replicas)
        return start.plan(config, self.batcher)

    def length(self, position: Position) -> int:
        """Return the batches that the whole epoch of a position has on each rank."""
        return self.plan(Position(position.epoch), self.config_at(position)).count_batches()

    def begin(self, start: EpochStart) -> None:
        """Note that an epoch has begun or resumed: it keeps its samples."""
        self._begun = start.position.epoch, self.config_at(start.position)
        self._settings = start.settings

    def check(self, start: EpochStart) -> None:
        """Check that the first epoch of a loader can begin or resume.

        Raises `StateError` if this rank would read other samples than other ranks, and `ArgumentError` if the cache
        has too little room.
        """
        identity, dataset = self._dataset.identity(), self._dataset
        group = process_group()
        if identity.world_size > 1 and group is not None:
            from wdsdist.distributed.job_store import check_same

            for data in dataset.manifest.data_sets:
                if version := data.sources[0].version:
                    check_same(f"index.json of {shown(data.base)}", version)
                if identity.world_size == group.get_world_size():
                    check_same(f"choice of samples of {shown(data.base)}", data.fingerprint, why=_ONE_CHOICE)
            self.batcher.check_ranks_agree(start.world, start.block)
        dataset.check_room(self.config_at(start.position), start.settings)

    def state(self, position: Position) -> State:
        """Return the state of a loader at a position."""
        from wdsdist.loader.checkpoint import make_state

        start, rules = self.start(position), self.batcher.state()
        if start.block:
            rules["block_samples"] = start.block
        return make_state(position, self.config_at(position), start.settings, batches=self.batcher.label, **rules)

    def load(self, state: Mapping[str, Any]) -> tuple[Position, bool]:
        """Take the settings of a state; return its position, and whether nothing is left of its epoch.

        Raises `StateError` for the state of another data set, seed or order, of other batches inside an epoch, or of
        batches that were planned in another way inside a block.
        """
        from wdsdist.loader.checkpoint import check_state, identity_of, read_state

        check_state(state)
        config = self._dataset.order_config.as_in(state)
        settings = config.settings(self._dataset.identity().world_size, state)
        position = read_state(state, identity_of(config, settings), batches=self.batcher.label)
        block = self._block
        if self.start(position).block and state.get("batches") == self.batcher.label:
            block = state.get("block_samples", 0)
            if type(block) is not int or block < 1:
                raise StateError(f"the state is damaged: blocks of {block!r} samples")
            if position.segments:
                self.batcher.check_state(state)
        self._settings, self._block = settings, block
        self._begun = position.epoch, config
        return position, position.consumed >= config.num_samples
