"""The worker side of a loader: one worker's batches of an epoch, with shard prefetch."""

from __future__ import annotations

import dataclasses
import functools
import gc
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch.utils.data import Dataset, Sampler, get_worker_info

from wdsdist._util.shared_memory import is_spawning
from wdsdist.loader.ipc.failure import WorkerFailure
from wdsdist.samples.bad_samples import Replaced
from wdsdist.samples.sample_reader import SampleReader
from wdsdist.sampling.order import OrderConfig, OrderSettings
from wdsdist.sampling.plan import Batcher, BatchPlan, Plan, Position, Reached, WorkerBatches, World
from wdsdist.shards.source import Counters

if TYPE_CHECKING:
    from wdsdist.cache.cached_shards import CachedShards
    from wdsdist.cache.prefetch import Prefetch
    from wdsdist.loader.ipc.channel import Channel

Collate = Callable[[list[Any]], Any]
_Part = tuple["WorkerIterator", Iterator[list[Any]]]

_BYTES_AHEAD = 256 << 20
"""Fetched ahead beyond the next window, if the cache has no limit."""


def enter_worker() -> tuple[int, int]:
    """Return the number of this data loading worker and the number of workers; ``(0, 1)`` outside of workers.

    Prepares a worker: it ends with its parent, and leaves inherited objects out of garbage collection.
    """
    worker = get_worker_info()
    if worker is None:
        return 0, 1
    from wdsdist._util.pools import follow_parent

    if follow_parent():
        gc.freeze()  # a visit of the garbage collector to an inherited object copies its page
    return worker.id, worker.num_workers


def init_worker(init_fn: Callable[[int], None] | None, worker: int) -> None:
    """Prepare a worker before its first ticket, which a rank that is killed may never send, and call ``init_fn``."""
    enter_worker()
    if init_fn is not None:
        init_fn(worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStart:
    """The start of an epoch as workers need it, to make its plan and to send its batches."""

    position: Position
    rank: int
    world: World
    settings: OrderSettings
    block: int = 0
    """Samples that are planned together."""
    group: int = 1
    """Batches that a worker makes and sends together."""

    @property
    def log_prefix(self) -> str:
        """The prefix of log lines about this rank, if there are others."""
        return f"rank {self.rank}: " if self.world.num_replicas > 1 else ""

    def plan(self, config: OrderConfig, batcher: Batcher) -> Plan:
        """Return the plan of the epoch from its position on."""
        order = config.order(self.settings, self.position.epoch)
        return batcher.plan(order, self.position, self.world, block=self.block)


@dataclass(eq=False)
class Tickets(Sampler[EpochStart | None]):
    """What a loader hands its workers in turn: one ticket for each message; the first of each has the epoch's start."""

    num_workers: int
    start: EpochStart | None = None
    """The start of the next iteration."""

    def __iter__(self) -> Iterator[EpochStart | None]:
        return chain(repeat(self.start, max(1, self.num_workers)), repeat(None))


class Message(NamedTuple):
    """What a worker sends for a ticket. A tuple, whose parts torch's pinning thread pins."""

    batches: Any
    """A group of batches, or `Parcel` of one; empty once the worker has no batch left in the epoch."""
    counted: Counters | None = None
    """What the worker's cache has counted since the message before; ``None`` for nothing."""


class NotedBatch(NamedTuple):
    """A batch on its way from a worker, with notes for the main process. A batch without notes is sent bare."""

    batch: Any
    replaced: Replaced | None
    """The bad samples that were replaced in it."""
    reached: Reached | None
    """How far the epoch has come with it, if the plan does not know by its number."""


@dataclass(eq=False)
class WorkerDataset(Dataset[Message]):
    """The data set of a loader's workers, or of a loader without workers: a ticket gives the next group of batches."""

    order_config: OrderConfig
    sample_reader: SampleReader
    _: dataclasses.KW_ONLY
    batcher: Batcher
    """Decides which samples a batch has, and may make the batch itself."""
    collate_fn: Collate | None
    """Makes a batch from a list of samples; ``None`` makes columns."""
    is_persistent: bool
    """Whether there are workers that stay for the next epoch."""
    channel: Channel | None = field(default=None, init=False)
    """Carries batches from workers; made before they start, ``None`` without any."""
    _part: _Part | None = field(default=None, init=False)
    """The part of the epoch that this process makes, and its batches."""
    _ahead: _Part | None = field(default=None, init=False)
    """The same of the next epoch, once the first group of it is made."""
    _is_over: bool = field(default=False, init=False)
    """Whether this worker has sent the empty message that ends its epoch."""
    _counted: Counters | None = field(default=None, init=False)
    """Counted in the messages of this process, since it began."""

    def __post_init__(self) -> None:
        reader = self.sample_reader.with_manifest(self.order_config.manifest)  # loaders may run in several threads
        self.sample_reader = replace(reader, misfits=self.batcher.misfits)
        self.collate_fn = self.batcher.collate if self.collate_fn is None else self.collate_fn
        # What is fetched ahead for one epoch would be in the way of another.
        is_local = not self.order_config.manifest.is_copied.any()
        self._makes_ahead = self.is_persistent and not self.is_light and is_local

    def __getstate__(self) -> dict[str, Any]:
        own = {"_part": None, "_ahead": None, "_is_over": False, "_counted": None}  # of this process
        # The channel is shared with workers that are being spawned.
        return {**self.__dict__, **own} if is_spawning() else {**self.__dict__, **own, "channel": None}

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self.collate_fn is None and self.sample_reader.is_light and self.batcher.is_plain

    def __getitem__(self, ticket: EpochStart | None) -> Message:
        """Return the next group of this process's batches; in a worker in the form in which they are sent.

        A loader needs one empty message of each worker, and has handed out tickets for more: until these are answered,
        a persistent worker makes the first group of the next epoch.
        """
        if ticket is not None:
            ahead, self._ahead, self._part = self._ahead, None, None  # closes an iteration that was given up
            self._part = ahead if ahead is not None and ahead[0].start == ticket else self._begin(ticket)
            self._is_over = False
        assert self._part is not None
        part, groups = self._part
        batches = part.sent(next(groups, []))
        if not batches and self._is_over and self._makes_ahead and self._ahead is None:
            part, groups = self._begin(replace(part.start, position=Position(part.start.position.epoch + 1)))
            self._ahead = part, chain([next(groups, [])], groups)
        self._is_over = not batches
        before, self._counted = self._counted, self.sample_reader.source.counters()
        return Message(batches, None if before is None or self._counted == before else self._counted - before)

    def _begin(self, start: EpochStart) -> _Part:
        """Return this process's part of an epoch, and its batches."""
        plan = start.plan(self.order_config, self.batcher)
        part = WorkerIterator(self.order_config, self.sample_reader, plan, start)
        # A loader without workers may be iterated in one of another loader.
        if self.channel is not None and get_worker_info() is not None:
            part.worker, part.num_workers = enter_worker()
            self.channel.worker, part.send = part.worker, self.channel.send
        if part.send is None or self._counted is None:  # a forked worker has the counters of its parent
            self._counted = self.sample_reader.source.counters()
        return part, part.groups(self.collate_fn)


@dataclass
class WorkerIterator:
    """Iterator over one worker's part of a rank's epoch, with shard prefetch."""

    order_config: OrderConfig
    sample_reader: SampleReader
    plan: Plan
    start: EpochStart
    _: dataclasses.KW_ONLY
    worker: int = 0
    num_workers: int = 1
    send: Callable[[list[Any]], Any] | None = None
    """Returns a group of batches in the form in which it is sent, which copies their buffers; ``None`` in one process
    alone."""
    _prefetch: Prefetch | None = field(default=None, init=False)
    _following: int = field(default=0, init=False)
    """The first batch of the worker's next group."""

    @property
    def _own(self) -> WorkerBatches:
        return WorkerBatches(self.worker, self.num_workers, self.start.group)

    def groups(self, collate_fn: Collate | None) -> Iterator[list[Any]]:
        """Yield the batches in groups; with ``send`` as pieces that last until they are sent.

        An error of a worker takes the place of its batch, behind the batches of its group that were made before: they
        come in one message, and in order with the batches of other workers.
        """
        plans, group = self.plans(), list[Any]()
        try:
            for numbers, following in pairwise(self._own.groups()):
                self._following = following.start
                for plan in islice(plans, len(numbers)):
                    group.append(self._batch(collate_fn, plan))
                if not group:
                    return
                yield group
                group = []
        except Exception as error:
            if self.send is None:
                raise
            group.append(WorkerFailure(error, self.worker))
            yield group

    def _batch(self, collate_fn: Collate | None, batch: BatchPlan) -> Any:
        if batch.pieces is not None and collate_fn is not None:
            collate_fn = functools.partial(collate_fn, **batch.pieces._asdict())
        try:
            made = self.sample_reader.batch(*batch[:4], collate_fn, deferred=self.send is not None)
        except StopIteration as error:  # which would end the epoch
            raise RuntimeError("collate_fn= raised StopIteration: has it exhausted an iterator?") from error
        replaced = self.sample_reader.replaced()
        has_notes = replaced is not None or batch.reached is not None
        return NotedBatch(made, replaced, batch.reached) if has_notes else made

    def sent(self, group: list[Any]) -> Any:
        """Return a group in the form in which it is sent, and prefetch for the batches after it."""
        if self.send is None or not group:
            batches = group.copy()
            group.clear()  # what made them holds them no longer
            return batches
        try:
            message = self.send(group)
        except Exception as error:
            message = [WorkerFailure(error, self.worker)]
        finally:
            group.clear()  # views keep their shards in the cache
        self.sample_reader.source.release()
        if self._prefetch is not None:
            self._prefetch.reach(self._following)  # now, for it may be long until the next batch is asked for
        return message

    def plans(self) -> Iterator[BatchPlan]:
        """Yield the plan of each batch of this worker, and prefetch the shards of the batches that follow."""
        prefetch = self.prefetching()
        try:
            for number, batch in self.plan.batches(rank=self.start.rank, part=self._own):
                if prefetch is not None:
                    prefetch.reach(number)
                yield batch
        finally:
            if prefetch is not None:
                prefetch.close()

    def prefetching(self) -> Prefetch | None:
        """Return the prefetch of the shards that the rank needs from the first batch of this worker on.

        Returns ``None`` if all shards are local.
        """
        start, config = self.start, self.order_config
        if not config.manifest.is_copied.any():
            return None
        from wdsdist.cache.prefetch import Prefetch

        source = cast("CachedShards", self.sample_reader.source)
        room = source.cache.limit
        if room is None:  # about the current and the next window
            lanes = max(1, start.settings.num_canonical_replicas // start.world.num_replicas)
            room = 2 * lanes * start.settings.window * config.mean_sample_bytes + _BYTES_AHEAD
        # The same for all processes that go through the same batches.
        job = f"{config.manifest!r} {config.notes} {start.settings} {start.position} {start.world} {start.block}"
        self._prefetch = Prefetch(
            source,
            self.plan.uses(rank=start.rank, batch=self.worker),
            room=room,
            job=hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:16],
            epoch=self.sample_reader.epoch_members,
            num_workers=self.num_workers,
        )
        return self._prefetch
