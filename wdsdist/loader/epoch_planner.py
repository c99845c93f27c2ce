"""Plan the epochs of a loader: their samples and order, the batches that are left, and the state to resume from."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsdist.distributed.identity import process_group
from wdsdist.errors import ArgumentError, IndexFormatError, StateError
from wdsdist.loader.worker_iterator import EpochStart
from wdsdist.sampling.order import OrderConfig, OrderSettings
from wdsdist.sampling.plan import Batcher, Plan, Position, World
from wdsdist.storage import shown

if TYPE_CHECKING:
    from wdsdist.loader.dataset import StreamingDataset

State = dict[str, Any]
"""The state of a loader, or of a data set under a foreign loader."""

_VERSION = 3
"""The version of states, of the order and of the plans of batches: each change of any of them takes another number."""

VIEW = "view"
"""Key of a state that names the file of the view that it belongs to, for messages only."""

_ONE_EPOCH = (
    "give all ranks the same samples, which the data set divides among them, the same columns and options, and load a "
    "state on all; a loader that one rank alone iterates needs num_replicas=1 and rank=0"
)


_calls: Counter[str] = Counter()


def _call_site() -> str:
    """Return a name for this call that other ranks of the same program share: its stack, and how often it came by.

    A call that one rank alone makes, as under ``if rank == 0``, has a name of its own.
    """
    stack = traceback.walk_stack(sys._getframe(1))
    site = " ".join(f"{Path(frame.f_code.co_filename).name}:{line}" for frame, line in stack)
    _calls[site] += 1
    return f"{site} {_calls[site]}"


@dataclass(eq=False)
class EpochPlanner:
    """Plans a loader's epochs: their order, the batches of each rank, and the rest after a resume.

    The settings of the order and the size of blocks stay as in the first run or in a loaded state, on any world.
    """

    dataset: StreamingDataset
    batcher: Batcher
    _settings: OrderSettings | None = None
    _block: int = 0
    _begun: tuple[int, OrderConfig] | None = None
    """The epoch that has begun, perhaps of an older generation."""
    _site: str = field(default_factory=_call_site)
    """Where the program made the loader, so that ranks compare the same one."""

    def config_at(self, position: Position) -> OrderConfig:
        """Return the order at a position: an epoch keeps the samples that it began with; others have all."""
        if self._begun is not None and position.has_begun and position.epoch == self._begun[0]:
            return self._begun[1]
        return self.dataset.order_config

    def start(self, position: Position) -> EpochStart:
        """Return the start of an epoch, or of its rest, as workers need it."""
        dataset, identity = self.dataset, self.dataset.identity()
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

        Raises `StateError` if this rank would begin another epoch than other ranks, and `ArgumentError` if the cache
        has too little room.
        """
        identity, dataset = self.dataset.identity(), self.dataset
        group = process_group()
        if identity.world_size > 1 and group is not None:
            from wdsdist.distributed.job_store import check_same

            for data in dataset.manifest.data_sets:
                if version := data.sources[0].version:
                    replaced = "it was replaced while the job started; start it again"
                    check_same(f"index.json of {shown(data.base)}", {"its SHA-256": version}, why=replaced)
            if identity.world_size == group.get_world_size():
                values = {**self.state(start.position), **self.batcher.options(start.world)}
                values.pop(VIEW, None)  # its path may differ
                check_same("epoch", values, why=_ONE_EPOCH, site=self._site)
        dataset.check_room(self.config_at(start.position), start.settings)

    def state(self, position: Position) -> State:
        """Return the state of a loader at a position: flat, of strings and numbers only, so that it survives JSON."""
        start, config = self.start(position), self.config_at(position)
        finished = 0 < config.num_samples <= position.consumed
        return {
            "epoch": position.epoch + finished,
            "consumed": 0 if finished else position.consumed,
            "segments": "" if finished else position.segments,
            "finished": finished,
            **identity_of(config, start.settings),
            "batches": self.batcher.label,
            **self.batcher.state(),
            **({"block_samples": start.block} if start.block else {}),
        }

    def load(self, state: Mapping[str, Any]) -> tuple[Position, bool]:
        """Take the settings of a state; return its position, and whether nothing is left of its epoch.

        Raises `StateError` for the state of another data set, seed or order, of other batches inside an epoch, or of
        batches that were planned in another way inside a block.
        """
        check_state(state)
        config = self.dataset.order_config.as_in(state)
        settings = config.settings(self.dataset.identity().world_size, state)
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


def identity_of(config: OrderConfig, settings: OrderSettings) -> State:
    """Return the fields that a state must have in common with the samples and the order that it is loaded into."""
    by_shard = settings.name == "shard"
    return {
        "version": _VERSION,
        "num_samples": config.num_samples,
        "fingerprint": config.fingerprint,
        "order": settings.name,
        "shuffle": settings.shuffle,
        "seed": settings.seed,
        # The order of DistributedSampler has neither windows nor lanes.
        "shuffle_window": settings.window if by_shard and settings.shuffle else 0,
        "num_canonical_replicas": settings.num_canonical_replicas if by_shard else 0,
        **config.notes,
        **({VIEW: config.manifest.picks.path} if config.manifest.picks else {}),
    }


def check_state(state: object, position: str = "consumed") -> None:
    """Raise `ArgumentError` for anything but a state, and `StateError` for a state of another format.

    ``position`` is the key of its position in the epoch.
    """
    if not isinstance(state, Mapping) or not {"version", "epoch", position} <= state.keys():
        kind = "StreamingDataLoader" if position == "consumed" else "StreamingDataset"
        raise ArgumentError(f"{state!r} is not the state of a {kind}: pass what state_dict() returned")
    if state["version"] != _VERSION:
        raise StateError(
            f"the state has version {state['version']!r}, this wdsdist reads {_VERSION}: use the release that saved it"
        )


def read_state(state: Mapping[str, Any], own: State, *, batches: str = "") -> Position:
    """Return the position in a state, after checking that it has all fields of its loader's ``own`` identity.

    Inside an epoch its batches must be the same, too. Raises `StateError` that lists each difference.

    >>> own = {"num_samples": 8, "seed": 1}
    >>> read_state({**own, "epoch": 0, "consumed": 4}, own)
    Position(epoch=0, consumed=4, segments='')
    >>> read_state({**own, "epoch": 0, "consumed": 4, "seed": 2}, own)
    Traceback (most recent call last):
    wdsdist.errors.StateError: the state belongs to another run: seed is 2 in the state and 1 here
    """
    differences = [
        f"{name} is {state.get(name)!r} in the state and {value!r} here"
        for name, value in own.items()
        if name != VIEW and state.get(name) != value
    ]
    if differences:
        differences += _differing_samples(state, own)
        raise StateError(f"the state belongs to another run: {'; '.join(differences)}")
    epoch, consumed, segments = state["epoch"], state["consumed"], state.get("segments", "")
    is_sound = type(epoch) is int and type(consumed) is int and isinstance(segments, str)
    if not is_sound or epoch < 0 or not 0 <= consumed <= state["num_samples"]:
        raise StateError(
            f"the state is damaged: epoch {epoch!r}, consumed {consumed!r} of {state['num_samples']!r} samples, "
            f"segments {segments!r}"
        )
    position = Position(epoch, consumed, segments)
    if position.has_begun and state.get("batches", "") != batches:
        raise StateError(
            f"the state was taken inside an epoch of batches by other rules ({state.get('batches')}, here {batches}): "
            f"finish that epoch with the same rules, or start a new epoch"
        )
    if state.get("finished") and epoch and not position.has_begun:
        return Position(epoch - 1, state["num_samples"])
    return position


def _differing_samples(state: Mapping[str, Any], own: State) -> list[str]:
    """Return, for a message, how many samples differ between the views of two states, if that is known."""
    if not (VIEW in state or VIEW in own) or state.get("fingerprint") == own["fingerprint"]:
        return []
    from wdsdist.shards import view_file

    try:
        count = view_file.count_differing(str(state[VIEW]), str(own[VIEW]))
    except (KeyError, OSError, IndexFormatError):  # a view was not saved, or has been removed
        least = abs(int(state.get("num_samples", 0)) - int(own["num_samples"]))
        return [f"so the views differ in {least:,} samples at least"]
    return [f"so the views differ in {count:,} samples" if count else "so the views have the same samples otherwise"]
