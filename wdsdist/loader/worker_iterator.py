"""Iterator over one worker's batches, with shard prefetch; and the data set that a loader's workers iterate."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import IterableDataset, get_worker_info

from wdsdist.loader.bad_sample_log import BadSampleLog, EpochBadSamples
from wdsdist.loader.ipc.channel import Channel, NotedBatch
from wdsdist.loader.ipc.failure import WorkerFailure
from wdsdist.loader.order_config import OrderConfig
from wdsdist.loader.planned_batches import Finish, PlannedBatches
from wdsdist.loader.worker_state import EpochStart, SharedValue, WorkerCounters, enter_worker
from wdsdist.samples.sample_reader import SampleReader
from wdsdist.sampling.epoch_plan import BatchPlan
from wdsdist.sampling.order import Order
from wdsdist.sampling.planned_epoch import PlannedEpoch
from wdsdist.sampling.shard_schedule import Use, upcoming
from wdsdist.storage import waits

if TYPE_CHECKING:
    from wdsdist.cache.cached_shards import CachedShards
    from wdsdist.cache.prefetch import Prefetch

Collate = Callable[[list[Any]], Any]

_BYTES_AHEAD = 256 << 20
"""Fetched ahead beyond the next window, where the cache has no limit."""

_LONGEST_TEXT = 1000
"""Characters of what a worker waits for."""


class WorkerDataset(IterableDataset[Any]):
    """The data set that the workers of a `StreamingDataLoader` iterate: groups of batches, from where an epoch starts.

    A worker gets it once, as it is started; what is written to `start` reaches those that live on.

    Args:
        order_config, sample_reader: of the user's `StreamingDataset`.
        collate_fn: makes a batch from a list of samples; ``None`` makes columns.
        num_workers: worker processes.
        planned: makes planned batches, in place of so many samples each.
    """

    def __init__(
        self,
        order_config: OrderConfig,
        sample_reader: SampleReader,
        *,
        collate_fn: Collate | None,
        num_workers: int,
        planned: PlannedBatches | None = None,
    ) -> None:
        self.order_config = order_config
        self._sample_reader = sample_reader
        if planned is not None:
            # Of its own: others may replace bad samples otherwise.
            self._sample_reader = sample_reader.with_specs(sample_reader.specs)
            self._sample_reader.misfits = planned.misfits
        self._collate_fn = collate_fn
        self._has_workers = num_workers > 0
        self.start = SharedValue()
        """The `EpochStart` of the next iteration, in this process and in all workers."""
        self._planned = planned
        self.channel = Channel()
        self.counters = WorkerCounters(num_workers)
        self.waiting_for = [SharedValue("") for _ in range(num_workers)]
        """What each worker waits for, in words."""

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self._collate_fn is None and self._sample_reader.is_light and self._planned is None

    @property
    def functions(self) -> list[tuple[str, object]]:
        """The functions that the user gave, by the names of their arguments."""
        specs = self._sample_reader.specs.values()
        return [("collate_fn", self._collate_fn), *chain.from_iterable(one.functions for one in specs)]

    def __iter__(self) -> Iterator[Any]:
        """Return the groups of this process's batches; in a worker in the form in which they are sent."""
        # A loader without workers may be iterated in one of another loader.
        is_worker = self._has_workers and get_worker_info() is not None
        worker, num_workers = enter_worker() if is_worker else (0, 1)
        if is_worker:
            waits.publish(lambda text: self.waiting_for[worker].write(text[:_LONGEST_TEXT]))
            self._sample_reader.source.on_count(functools.partial(self.counters.add, worker))
        start: EpochStart = self.start.read()
        config, planned = self.order_config, self._planned
        batches = WorkerIterator(config, self._sample_reader, start, worker=worker, num_workers=num_workers)
        if planned is not None and start.planned is not None:
            epoch = planned.epoch(batches.order, seed=start.settings.seed, epoch=start.epoch, **start.planned._asdict())
            batches.planned = planned.shared(epoch, f"{start.settings} {config.notes}")
            batches.finish = planned.finisher()
        if not is_worker:
            return map(_alone, batches.batches(self._collate_fn))
        return batches.messages(self._collate_fn, self.channel.sender(worker))


@dataclass
class WorkerIterator:
    """Iterator over one worker's part of a rank's epoch, in batches or single samples, with shard prefetch."""

    order_config: OrderConfig
    sample_reader: SampleReader
    start: EpochStart
    _: dataclasses.KW_ONLY
    worker: int
    num_workers: int
    planned: PlannedEpoch | None = None
    """The epoch, where batches are planned."""
    finish: Finish | None = None
    """Makes a batch of samples and of the pieces of them that it has, where batches are rows."""
    bad_samples: BadSampleLog | None = None
    """Of single samples; of batches, the main process takes care."""
    _prefetch: Prefetch | None = field(default=None, init=False)
    _latest: int = field(default=0, init=False)
    """The batch that was reached last."""
    """Batches at the start of an epoch whose samples are fetched along with those of one of them; these by shard."""

    @property
    def num_samples(self) -> int:
        """Samples of this worker, where batches are dealt to workers one by one."""
        plan = self.start.plan
        mine = range(self.worker, plan.batches_per_rank, self.num_workers)
        missing = plan.batches_per_rank * plan.batch_size - plan.samples_per_rank
        is_last = bool(mine) and mine[-1] == plan.batches_per_rank - 1
        return len(mine) * plan.batch_size - missing * is_last

    def samples(self, skipped: int = 0) -> Iterator[Any]:
        """Yield the samples one by one, after the first ``skipped``, which are not read."""
        # Only the last batch of an epoch is not full, so that what was skipped are whole batches and a rest.
        whole, rest = divmod(skipped, self.start.plan.batch_size)
        left = dataclasses.replace(self, worker=self.worker + whole * self.num_workers)
        places = chain.from_iterable(map(_one_by_one, left._fetched()))
        log = self.bad_samples
        start, planned = self.start, self.num_samples - skipped
        bad = None if log is None else EpochBadSamples(log, start.epoch, planned, start.log_prefix)
        for taken, place in enumerate(islice(places, rest, None), 1):
            sample = self.sample_reader.sample(*place)
            replaced = self.sample_reader.replaced()
            if bad is not None and replaced is not None:
                bad.add(replaced, taken)
            yield sample

    def batches(self, collate_fn: Collate | None, *, deferred: bool = False) -> Iterator[Any]:
        """Yield the batches; with ``deferred`` as pieces that last until the shards are released."""
        # Not a loop, which would hold each batch, and with it its shards in the cache, until the next one is made.
        return map(functools.partial(self._batch, collate_fn, deferred), self._fetched())

    def _batch(self, collate_fn: Collate | None, deferred: bool, batch: BatchPlan) -> Any:
        if batch.pieces is not None and self.finish is not None:
            collate_fn = functools.partial(self.finish, **batch.pieces._asdict())
        try:
            made = self.sample_reader.batch(*batch[:4], collate_fn, deferred=deferred)
        except StopIteration as error:  # which would end the epoch
            raise RuntimeError("collate_fn= raised StopIteration: has it exhausted an iterator?") from error
        replaced = self.sample_reader.replaced()
        has_notes = replaced is not None or batch.reached is not None
        return NotedBatch(made, replaced, batch.reached) if has_notes else made

    def messages(self, collate_fn: Collate | None, send: Callable[[list[Any]], Any]) -> Iterator[Any]:
        """Yield the batches in groups, as ``send`` returns them, which copies their buffers.

        An error takes the place of the batch that it befell, behind those of its group that were made before: they
        come from their worker in one message, and in order with those of others.
        """
        group: list[Any] = []
        try:
            for batch in self.batches(collate_fn, deferred=True):
                group.append(batch)
                del batch  # whoever is done with a group must not find that one of it is still held here
                if len(group) == self.start.group:
                    yield self._sent(group, send)
            if group:
                yield self._sent(group, send)
        except Exception as error:
            group.append(WorkerFailure(error, self.worker))
        if group:
            yield self._sent(group, send) if len(group) > 1 else group

    def _sent(self, group: list[Any], send: Callable[[list[Any]], Any]) -> Any:
        """Return the message of a group, which is empty then, and prefetch for the batches after it."""
        try:
            message = send(group)
        finally:
            group.clear()  # views keep their shards in the cache
        self.sample_reader.source.release()
        if self._prefetch is not None:
            following = self._latest + 1
            if following % self.start.group == 0:  # the other workers have their groups before this one's next
                following += (self.num_workers - 1) * self.start.group
            self._prefetch.reach(following)  # now, for it may be long until the next batch is asked for
        return message

    def _fetched(self) -> Iterator[BatchPlan]:
        """Yield the plan of each batch of this worker, and prefetch the shards of those that follow."""
        prefetch = self.prefetching() if self.order_config.manifest.is_copied.any() else None
        dealt = {"worker": self.worker, "num_workers": self.num_workers, "group": self.start.group}
        if self.planned is not None:
            batches = self.planned.batches(rank=self.start.rank, **dealt)
        else:
            batches = self.start.plan.batches(self.order, rank=self.start.rank, **dealt)
        try:
            for number, batch in batches:
                self._latest = number
                if prefetch is not None:
                    prefetch.reach(number)
                yield batch
        finally:
            if prefetch is not None:
                prefetch.close()

    @functools.cached_property
    def order(self) -> Order:
        """The order of the epoch."""
        return self.order_config.order(self.start.settings, self.start.epoch)

    def prefetching(self) -> Prefetch:
        """Return the prefetch of the shards that the rank needs from the first batch of this worker on."""
        from wdsdist.cache.prefetch import Prefetch

        start, config, first = self.start, self.order_config, self.worker * self.start.group
        source = cast("CachedShards", self.sample_reader.source)
        uses: Iterator[Use | None]
        if self.planned is not None:
            uses = self.planned.uses(rank=start.rank, batch=first)
        else:
            uses = upcoming(self.order, start.plan, rank=start.rank, batch=first)
        # What all who go through the same batches have in common.
        job = f"{config.manifest!r} {config.notes} {start.settings} {start.plan} {start.epoch}"
        self._prefetch = Prefetch(
            source, uses, room=self._room(source),
            job=hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:16],
            epoch=self.sample_reader.epoch_members, num_workers=self.num_workers,
        )  # fmt: skip
        return self._prefetch

    def _room(self, source: CachedShards) -> int:
        """Return the bytes of shards to look ahead: what the cache holds, or about the current and the next window."""
        if (limit := source.cache.limit) is not None:
            return limit
        settings = self.start.settings
        lanes = max(1, settings.num_canonical_replicas // self.start.plan.num_replicas)
        window = lanes * settings.window * self.order_config.mean_sample_bytes
        return 2 * window + _BYTES_AHEAD


def _alone(batch: Any) -> list[Any]:
    return [batch]


def _one_by_one(batch: BatchPlan) -> Iterator[tuple[int, int, int, bool | None]]:
    """Yield shard, number, epoch and padding of each sample of a batch."""
    padding = repeat(None) if batch.padding is None else batch.padding.tolist()
    return zip(batch.shards.tolist(), batch.samples.tolist(), batch.epochs.tolist(), padding, strict=False)


def fetch_ahead(order_config: OrderConfig, *of: Any, planned: PlannedEpoch | None) -> Prefetch | None:
    """Start to prefetch for the first batches of a rank, before its workers do; ``None`` where all is local.

    Takes what `WorkerIterator` takes, and the planned batches where they are planned.
    """
    if not order_config.manifest.is_copied.any():
        return None
    first = WorkerIterator(order_config, *of, worker=0, num_workers=1, planned=planned)
    prefetch = first.prefetching()
    prefetch.reach(0)
    prefetch.begin()
    return prefetch
