"""The configuration of a data set's sampling order, and the plan that a loader's epoch follows from it."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.validation import check_integer
from wdsdist.distributed import Identity
from wdsdist.distributed.identity import process_group
from wdsdist.sampling.order import EpochOrder, Order, OrderName, OrderSettings, default_window, epoch_order
from wdsdist.sampling.plan import Batcher, Plan, Position, World
from wdsdist.shards.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """The order of one data set: its samples, and the settings as they were given."""

    manifest: Manifest
    given: OrderSettings
    """Lanes and window in it are defaults; values that were given are in the next two fields."""
    lanes: int | None = None
    """Canonical replicas; ``None`` for the world size of the first run."""
    window: int | None = None
    """Samples that a lane shuffles together; ``None`` for the default."""
    samples_per_epoch: int | None = None
    """Length of the epochs; ``None`` for all samples of the data set."""

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        *,
        order: OrderName = "shard",
        shuffle: bool = True,
        seed: int = 0,
        shuffle_window: int | None = None,
        num_canonical_replicas: int | None = None,
        samples_per_epoch: int | None = None,
    ) -> OrderConfig:
        """Return the configuration from the arguments of a `StreamingDataset`, which it checks."""
        given = OrderSettings(
            name=order,
            shuffle=shuffle,
            seed=seed,
            window=default_window(manifest.counts) if shuffle_window is None else shuffle_window,
            num_canonical_replicas=1 if num_canonical_replicas is None else num_canonical_replicas,
        )
        if samples_per_epoch is not None:
            samples_per_epoch = check_integer("samples_per_epoch", samples_per_epoch, 1, 2**53)
        return cls(
            manifest=manifest,
            given=given,
            lanes=num_canonical_replicas,
            window=shuffle_window,
            samples_per_epoch=samples_per_epoch,
        )

    @property
    def num_samples(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self.samples_per_epoch or self.manifest.num_samples

    @property
    def mean_sample_bytes(self) -> int:
        """Bytes that a sample of an epoch takes in its shard, on average."""
        return self.manifest.mean_sample_bytes

    @property
    def fingerprint(self) -> str:
        """A digest of the samples, wherever they lie: a state must come from the same ones."""
        return self.manifest.fingerprint

    @property
    def notes(self) -> dict[str, str]:
        """Further settings that decide the order, for a loader's state."""
        return {}

    def settings(self, world_size: int, state: Mapping[str, Any] | None = None) -> OrderSettings:
        """Return the settings of the order: as they were given, else as in a state, else by the world size."""
        lanes, window = ((state or {}).get(name) for name in ("num_canonical_replicas", "shuffle_window"))
        settings = dataclasses.replace(self.given, num_canonical_replicas=self.lanes or lanes or world_size)
        window = self.window or window
        return dataclasses.replace(settings, window=window) if window else settings

    def order(self, settings: OrderSettings, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return EpochOrder(
            num_samples=self.num_samples,
            seed=settings.seed,
            label=f"{settings} {self.notes} epoch {epoch}",
            make=functools.partial(self._order, settings, epoch),
        )

    def _order(self, settings: OrderSettings, epoch: int) -> Order:
        return epoch_order(self.manifest.counts, settings, epoch, self.samples_per_epoch)

    def as_in(self, state: Mapping[str, Any]) -> OrderConfig:
        """Return the configuration over the generation of the data set that a state was saved with.

        That is over its first shards, if they are the state's; else over all.
        """
        manifest, total, known = self.manifest, state.get("num_samples"), state.get("fingerprint")
        if known == manifest.fingerprint or not isinstance(total, int) or manifest.labels != ("",):
            return self
        parts = (manifest.prefix(int(last) + 1) for last in np.flatnonzero(manifest.ends == total))
        part = next((part for part in parts if part.fingerprint == known), None)
        return self if part is None else dataclasses.replace(self, manifest=part)

    def bytes_at_once(self, settings: OrderSettings, here: Identity, ranks: int) -> int:
        """Return the most bytes of copies that any ``ranks`` of this node's ranks need at once."""
        from wdsdist.sampling.working_set import bytes_at_once, readers_of

        return bytes_at_once(readers_of(self.manifest, here), settings, ranks=ranks)


def plan_of(
    config: OrderConfig,
    batcher: Batcher,
    world: World,
    position: Position,
    *,
    settings: OrderSettings | None = None,
    block: int = 0,
) -> Plan:
    """Return the plan of an epoch from a position on: the batches of every rank, and the shards that they need.

    Args:
        config: the order of the data set.
        batcher: how batches are made.
        world: the ranks.
        position: the epoch, and where it goes on.
        settings: of the order; by default those of a first run in this world.
        block: samples that are planned together, as the first run chose them.
    """
    settings = config.settings(world.num_replicas) if settings is None else settings
    return batcher.plan(config.order(settings, position.epoch), position, world, block=block)


def check_room(config: OrderConfig, settings: OrderSettings, here: Identity, limit: int) -> None:
    """Check that a cache has room for all shards that are needed at once.

    Args:
        config, settings: of the order.
        here: this rank, and how many share its cache.
        limit: bytes of the cache.

    Raises `ArgumentError` if there is too little for one rank; warns if there is too little for those of this node.
    """
    from wdsdist.sampling.working_set import check_limit

    def needed(settings: OrderSettings, ranks: int) -> int:
        return config.bytes_at_once(settings, here, ranks)

    ranks = min(here.local_world_size, here.world_size)
    check_limit(needed, settings, config.manifest.counts, ranks=ranks, limit=limit)


def check_ranks_agree(data_sets: Iterable[Manifest], here: Identity) -> None:
    """Raise `StateError` if this rank would read other samples than the ranks that began before it.

    Args:
        data_sets: data sets of which all ranks must have one version.
        here: this rank. A group of some of the ranks may have other samples than other groups.
    """
    group = process_group()
    if group is None:
        return  # nobody to ask
    from wdsdist.distributed.agreement import check_same

    for data in data_sets:
        for location, version in data.versions.items():
            check_same(f"index.json of {location}", version)
        if here.world_size == group.get_world_size():
            check_same(
                f"choice of samples of {storage.shown(data.base)}",
                data.fingerprint,
                about=json.dumps(_without_numbers(data.made_by)),
                why="give all ranks the same shards and views, which the data set divides among them; a loader that "
                "one rank alone iterates needs num_replicas=1 and rank=0",
            )


def _without_numbers(value: Any) -> Any:
    """Return the provenance of a view without numbers, by which ranks compare it apart from the job's other views."""
    if isinstance(value, Mapping):
        return {name: _without_numbers(item) for name, item in value.items() if not isinstance(item, (int, float))}
    return [_without_numbers(item) for item in value] if isinstance(value, (list, tuple)) else value
