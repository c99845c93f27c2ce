"""What one worker of one rank makes of an epoch, while the shards of what comes later are fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, islice, pairwise
from typing import Any

from wdsdist.cache import ShardCache
from wdsdist.cache.prefetch import Prefetch
from wdsdist.loader.ipc import grouped
from wdsdist.loader.order_config import Ordering
from wdsdist.samples.sample_reader import SampleReader
from wdsdist.sampling.epoch_plan import EpochPlan, Places
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.shard_schedule import upcoming

Collate = Callable[[list[Any]], Any]

_BYTES_AHEAD = 256 << 20
"""Fetched ahead beyond the next window, where the cache has no limit."""


@dataclass(slots=True)
class Share:
    """One worker's part of one rank's part of an epoch, or of what is left of it."""

    ordering: Ordering
    cache: ShardCache
    samples: SampleReader
    _: KW_ONLY
    settings: OrderSettings
    epoch: int
    plan: EpochPlan
    rank: int
    worker: int
    num_workers: int
    group: int = 1
    """Batches that the worker makes one after another."""
    _prefetch: Prefetch | None = field(default=None, init=False)
    _next: int = field(default=0, init=False)

    def single_samples(self, skipped: int = 0) -> Iterator[Any]:
        """Yield the samples one by one, after the first ``skipped``, which are not read."""
        places = (place for batch in self._places() for place in zip(*(part.tolist() for part in batch), strict=True))
        for place in islice(places, skipped, None):
            yield self.samples.sample(*place)

    def groups(self, collate_fn: Collate | None, *, deferred: bool = False) -> Iterator[list[Any]]:
        """Yield the batches in groups; with ``deferred`` as pieces that last until the shards are released."""
        batches = (self.samples.batch(*places, collate_fn, deferred=deferred) for places in self._places())
        return grouped(batches, self.group)

    def parcels(self, collate_fn: Collate | None, send: Callable[[list[Any]], Any]) -> Iterator[Any]:
        """Yield the groups of batches as ``send`` returns them, which copies what they are made of."""
        for group in self.groups(collate_fn, deferred=True):
            parcel = send(group)
            group.clear()  # views keep their shards in the cache
            self.samples.release()
            if self._prefetch is not None:
                self._prefetch.reach(self._next)  # now, for it may be long until the next batch is asked for
            yield parcel

    def _places(self) -> Iterator[Places]:
        """Yield where the samples of each batch lie."""
        plan, rank, first = self.plan, self.rank, self.worker * self.group
        order = self.ordering.order(self.settings, self.epoch)
        manifest = self.ordering.manifest
        batches = plan.batches(order, rank=rank, worker=self.worker, num_workers=self.num_workers, group=self.group)
        if not manifest.is_copied.any():
            yield from batches
            return
        uses = upcoming(order, plan, rank=rank, batch=first)
        prefetch = self._prefetch = Prefetch(self.cache, manifest, uses, room=self._room(), job=self._job())
        numbers = plan.batch_numbers(self.worker, self.num_workers, group=self.group)
        try:
            for number, self._next in pairwise(chain(numbers, (plan.batches_per_rank,))):
                prefetch.reach(number)
                yield next(batches)
        finally:
            prefetch.close()

    def _job(self) -> str:
        """Return what all who go through the same batches have in common."""
        text = f"{self.ordering.manifest!r} {self.ordering.notes} {self.settings} {self.plan} {self.epoch}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _room(self) -> int:
        """Return the bytes of shards to look ahead: what the cache holds, or about the current and the next window."""
        if self.cache.limit is not None:
            return self.cache.limit
        lanes = max(1, self.settings.num_canonical_replicas // self.plan.num_replicas)
        window = lanes * self.settings.window * self.ordering.mean_sample_bytes
        return 2 * window + _BYTES_AHEAD
