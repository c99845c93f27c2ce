"""The configuration of a data set's sampling order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist._util.validation import check_integer
from wdsdist.distributed.identity import Identity
from wdsdist.errors import ArgumentError
from wdsdist.sampling.order import EpochOrder, Order, OrderName, OrderSettings, default_window, epoch_order
from wdsdist.shards.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """The order of one data set: its samples, and the settings that the user gave.

    Raises `ArgumentError` for a setting that cannot work.
    """

    manifest: Manifest
    name: OrderName = "shard"
    shuffle: bool = True
    seed: int = 0
    shuffle_window: int | None = None
    """Samples that a lane shuffles together; ``None`` for the default."""
    num_canonical_replicas: int | None = None
    """Lanes; ``None`` for the world size of the first run."""
    samples_per_epoch: int | None = None
    """Length of the epochs; ``None`` for all samples of the data set."""

    def __post_init__(self) -> None:
        lanes = 1 if self.num_canonical_replicas is None else self.num_canonical_replicas
        window = 1 if self.shuffle_window is None else self.shuffle_window
        OrderSettings(name=self.name, seed=self.seed, window=window, num_canonical_replicas=lanes)  # checks them
        if self.samples_per_epoch is not None:
            length = check_integer("samples_per_epoch", self.samples_per_epoch, 1, 2**53)
            if not self.manifest.num_samples:
                raise ArgumentError(f"samples_per_epoch is {length:,}, but {self.manifest!r} has no samples")
            object.__setattr__(self, "samples_per_epoch", length)

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

    @property
    def default_window(self) -> int:
        """Samples that a lane shuffles together unless the user or a state says otherwise."""
        return default_window(self.manifest.counts)

    def settings(self, world_size: int, state: Mapping[str, Any] | None = None) -> OrderSettings:
        """Return the settings of the order: as the user gave them, else as in a state, else by the world size."""
        lanes, window = ((state or {}).get(name) for name in ("num_canonical_replicas", "shuffle_window"))
        return OrderSettings(
            name=self.name,
            shuffle=self.shuffle,
            seed=self.seed,
            window=self.shuffle_window or window or self.default_window,
            num_canonical_replicas=self.num_canonical_replicas or lanes or world_size,
        )

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

    def bytes_at_once(self, settings: OrderSettings, identity: Identity, ranks: int) -> int:
        """Return the most bytes of copies that any ``ranks`` of this node's ranks need at once."""
        from wdsdist.sampling.shard_schedule import bytes_at_once

        sizes = np.where(self.manifest.is_copied, self.manifest.needed_sizes, 0)
        return bytes_at_once(self.manifest.counts, sizes, settings, num_replicas=identity.world_size, ranks=ranks)
