"""`StreamingDataLoader`: a torch ``DataLoader`` with equal batches on every rank, exact length and exact resume."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Never, NoReturn

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from wdsdist._util.host import cpu_count
from wdsdist._util.validation import check_callable, check_flag, check_integer
from wdsdist.distributed.identity import share_of_cores
from wdsdist.errors import ArgumentError, StateError
from wdsdist.loader.dataset import FRAMEWORKS, EpochSampler, StreamingDataset, check_names
from wdsdist.loader.epoch_iterator import EpochIterator, EpochMeter, LoaderStats
from wdsdist.loader.epoch_planner import EpochPlanner
from wdsdist.loader.frozen import frozen
from wdsdist.loader.progress import Progress
from wdsdist.loader.worker_iterator import Tickets, WorkerDataset, WorkerIterator, init_worker
from wdsdist.samples.collate import BatchT
from wdsdist.sampling.epoch_plan import FixedBatches
from wdsdist.sampling.plan import Batcher, Position

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.cache.prefetch import Prefetch
    from wdsdist.loader.epoch_planner import State

_BATCH_SIZE = 64
_MOST_WORKERS = 8
"""Most workers of a rank, by default."""


class StreamingDataLoader(DataLoader[BatchT]):
    """Load batches of a `StreamingDataset`; every rank gets the same number of batches.

    It is a torch ``DataLoader``. A batch is a dict of columns: ``"__key__"`` and ``"__shard__"`` are lists of str, raw
    bytes are a `Ragged` column, and decoded values are collated like torch's ``default_collate``.

    Args:
        dataset: the data set. Several loaders may share a data set; it then sets the epoch of all of them.
        batch_size: samples per batch on one rank; by default 64.
        batches: how to make batches, in place of ``batch_size``: `batching.TokenBudget`, `batching.LengthGroups`,
            `batching.Buckets` or `batching.PackedRows`.
        num_workers: worker processes; by default this rank's share of the node's cores, at most 8. With 0 this process
            makes the batches.
        pin_memory: page-lock batches for copies to a GPU; by default if CUDA is available.
        persistent_workers: keep the workers between epochs.
        drop_last: drop an incomplete last batch on every rank. The default is ``True``, or ``False`` if the data set
            marks padding, because then each sample counts. The data set's ``drop_last`` decides how the ranks get the
            same number of samples.
        prefetch_factor: batches that each worker makes ahead; by default 2.
        collate_fn: makes the batch from a list of samples.
        timeout, worker_init_fn, multiprocessing_context, generator: as in torch; ``timeout`` is in seconds.

    Raises:
        ArgumentError: an argument has a value that cannot work; ``len`` and iteration raise it if the data set is too
            small for one batch per rank.
        SharedMemoryError: raised by iteration if the batches that workers make ahead do not fit into memory.

    >>> import tempfile, wdsdist
    >>> manifest = wdsdist.pack(({"cls": number} for number in range(6)), tempfile.mkdtemp())
    >>> dataset = wdsdist.StreamingDataset(manifest, decode=True)
    >>> loader = wdsdist.StreamingDataLoader(dataset, batch_size=2, num_workers=0)
    >>> len(loader), sorted(number for batch in loader for number in batch["cls"].tolist())
    (3, [0, 1, 2, 3, 4, 5])
    """

    dataset: StreamingDataset
    use_stateful_dataloader = True
    """Lets Accelerate save and load the loader's state."""
    _is_accelerate_prepared = True
    """Lets `Accelerator.prepare` leave the loader as it is: a second split would give each rank a part of its part.
    It sets this itself on a loader that it has prepared."""
    _iterator: Any = None
    _iterations = 0
    _meter: EpochMeter | None = None
    _prefetch: Prefetch | None = None

    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int | None = None,
        *,
        batches: Batches | None = None,
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        persistent_workers: bool = True,
        drop_last: bool | None = None,
        prefetch_factor: int | None = None,
        collate_fn: Callable[[list[Any]], BatchT] | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        **others: Never,
    ) -> None:
        check_names(StreamingDataLoader, others)
        _check_dataset(dataset)
        if num_workers is None:
            num_workers = min(_MOST_WORKERS, share_of_cores(cpu_count(), dataset.identity().local_world_size))
        workers = check_integer("num_workers", num_workers, 0, 4096)
        # With these torch would fail later, perhaps in a worker.
        check_callable("collate_fn", collate_fn)
        check_callable("worker_init_fn", worker_init_fn)
        if prefetch_factor is not None:
            check_integer("prefetch_factor", prefetch_factor, 1)
        drops = not dataset.mark_padding if drop_last is None else check_flag("drop_last", drop_last)
        if batch_size is not None and batches is not None:
            raise ArgumentError(f"batch_size={batch_size!r} has no meaning beside batches=...", argument="batch_size")
        batch_size = check_integer("batch_size", _BATCH_SIZE if batch_size is None else batch_size, 1, 2**53)
        self._batches = f"batch_size={batch_size}" if batches is None else f"batches={batches!r}"
        batcher = _batcher(dataset, batch_size, batches, collate_fn, drop_last=drops)
        self._planner = EpochPlanner(dataset, batcher)
        persists = check_flag("persistent_workers", persistent_workers) and workers > 0
        self._worker_dataset = WorkerDataset(
            dataset.order_config, dataset.sample_reader, batcher=batcher, collate_fn=collate_fn, is_persistent=persists
        )
        self._tickets = Tickets(workers)
        self._progress = Progress(dataset.chosen_epoch)
        super().__init__(
            dataset,
            batch_size=batch_size,
            drop_last=drops,
            num_workers=workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else check_flag("pin_memory", pin_memory),
            persistent_workers=persists,
            prefetch_factor=prefetch_factor,
            collate_fn=_refuse_copied_collation,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
        )
        # Frameworks call its `set_epoch`. Torch takes no sampler with an iterable data set.
        self.__dict__["sampler"] = EpochSampler(dataset)
        # Lightning warns that the length of an iterable data set may be wrong: a loader's is exact.
        warnings.filterwarnings("ignore", message="Your `IterableDataset` has `__len__` defined", category=UserWarning)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r}, {self._batches}, num_workers={self.num_workers})"

    def __len__(self) -> int:
        """Return the number of batches per rank of the whole current epoch, or of the next one if none is under way.

        For planned batches that takes a pass over the lengths of all samples, once for each epoch and node.
        """
        position = self._progress.position_of_length
        if self.planned_by and not FRAMEWORKS.isdisjoint(sys.modules):
            from wdsdist.loader.foreign_loaders import epoch_that_lightning_sets_up

            epoch = epoch_that_lightning_sets_up()
            position = position if epoch is None else Position(epoch)
        return self._planner.length(position)

    @property
    def remaining(self) -> int:
        """Batches left in the current or next epoch, also after a resume; use it for progress bars.

        >>> import tempfile
        >>> from wdsdist import StreamingDataset, pack
        >>> dataset = StreamingDataset(pack([{"cls": 3}] * 10, tempfile.mkdtemp()))
        >>> loader = StreamingDataLoader(dataset, batch_size=2, num_workers=0)
        >>> batch = next(iter(loader))
        >>> len(loader), loader.remaining
        (5, 4)
        """
        if self._progress.is_playing and self._meter is not None:
            return self._meter.remaining
        _, plan = self._progress.upcoming(self._planner.plan)
        return plan.count_batches()

    def planned_length(self, epoch: int) -> int:
        """Return the number of batches of a whole epoch on each rank; epochs of planned batches differ by a few."""
        return self._planner.length(Position(epoch))

    def __iter__(self) -> Iterator[BatchT]:  # type: ignore[override]
        self._progress.restart()
        self._iterations += 1
        # The loader knows its iterations by number: a reference to one would be a cycle, and workers of a dropped
        # loader would live until the collector finds it, perhaps in a forked child.
        batches = EpochIterator(self)
        if "_is_accelerate_prepared" not in self.__dict__:
            return batches
        from wdsdist.loader.foreign_loaders import AcceleratedBatches

        return AcceleratedBatches(batches, non_blocking=self.pin_memory)

    @property
    def planned_by(self) -> str:
        """The value that plans batches, so that epochs may differ in their number; else empty."""
        return "" if self._planner.batcher.is_plain else self._batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also between ``iter()`` and the first batch."""
        self.dataset.chosen_epoch.choose(epoch)

    def prefetch(self) -> None:
        """Start to fetch the shards that the next iteration needs first, and return at once.

        Call it before you build the model: remote shards arrive in the cache meanwhile. It ends when the iteration
        begins, whose workers continue. The iteration raises errors of shards that could not be fetched.
        """
        planner = self._planner
        position, plan = self._progress.upcoming(planner.plan)
        self._end_prefetch()
        config, start = planner.config_at(position), planner.start(position)
        self._prefetch = WorkerIterator(config, self.dataset.sample_reader, plan, start).prefetching()
        if self._prefetch is not None:
            self._prefetch.reach(0)
            self._prefetch.begin()

    def _end_prefetch(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
            self._prefetch = None

    def state_dict(self) -> State:
        """Return the position of the loader: a small, flat dict for JSON, the same on every rank.

        It counts the batches that the training loop received, not the prefetched ones.
        """
        return {**self._planner.state(self._progress.position), "asked": self._progress.asked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, also with another world size, batch size or number of workers.

        The next iteration yields the rest of that epoch; one that is under way is given up. If the data set has grown
        since, the epoch keeps its samples, and the next epoch has all samples. Raises `StateError`, which lists the
        differences, for the state of another data set, seed or order.
        """
        position, finished = self._planner.load(state)
        if self._progress.is_playing:
            self._iterations += 1  # the iteration that is under way is given up: its batches count for another state
        self._progress.resume(position, asked=state.get("asked"), finished=finished)

    def stats(self) -> LoaderStats:
        """Return throughput and cache use of the current or last epoch on this rank.

        The logger ``wdsdist`` logs the same figures at INFO when an epoch ends, or, if an epoch was abandoned, when the
        next one starts.

        >>> LoaderStats(samples=32_000, seconds=1.6).samples_per_second
        20000.0
        """
        return LoaderStats() if self._meter is None else self._meter.stats()

    def __getstate__(self) -> dict[str, Any]:
        # Workers stay with the loader and the process that started them, and so does what they did.
        own = {"_worker_dataset": replace(self._worker_dataset), "_tickets": Tickets(self.num_workers)}
        own |= {"_planner": copy.copy(self._planner), "_progress": copy.copy(self._progress)}
        return {**self.__dict__, **own, "_iterator": None, "_meter": None, "_prefetch": None}

    def _begin(self) -> tuple[Iterator[Any], EpochMeter]:
        """Start the workers on the next epoch, or resume one; return their messages, and the meter of throughput."""
        if self._meter is not None:
            self._meter.finish()
        self._end_prefetch()
        planner = self._planner
        position, plan = self._progress.upcoming(planner.plan)
        config, start = planner.config_at(position), planner.start(position)
        is_first = self._meter is None
        if is_first:
            planner.check(start)
        # Workers end if the epoch has other samples than theirs, or if one of them was lost.
        dataset, manifest = self._worker_dataset, config.manifest
        is_known = dataset.order_config.manifest is manifest
        if self._iterator is not None and (not is_known or self._iterator.has_lost_workers()):
            self._stop_workers(self._iterator)
        if not is_known:
            reader = dataset.sample_reader.with_manifest(manifest)
            self._worker_dataset = dataset = replace(dataset, order_config=config, sample_reader=reader)
        self._meter = EpochMeter(
            plan,
            sample_bytes=config.mean_sample_bytes,
            num_copied=int(manifest.is_copied.sum()),
            log_prefix=start.log_prefix,
            bad_samples=self.dataset.bad_sample_log(position.epoch, plan.samples_per_rank, start.log_prefix),
        )
        with frozen() if is_first else contextlib.nullcontext():
            if self.num_workers and self._iterator is None:  # new workers need shared memory
                import numpy.random  # noqa: F401 - torch imports it in each worker: forked ones inherit it

                from wdsdist.loader.ipc.channel import Channel, group_size

                batch_bytes, group = config.mean_sample_bytes * min(plan.batch_size, config.num_samples), 1
                if dataset.is_light:
                    batches = plan.num_samples // (start.world.num_replicas * plan.batch_size)  # of a whole epoch
                    group = group_size(batches, batch_bytes, self.num_workers)
                dataset.channel = Channel(self.num_workers, self.prefetch_factor or 2, batch_bytes, group=group)
            self._tickets.start = replace(start, group=1 if dataset.channel is None else dataset.channel.group)
            messages = super().__iter__()
        # Only now: if workers cannot be started, the position stays, in the order that it belongs to.
        planner.begin(start)
        self._progress.begin(position)
        return messages, self._meter

    def _get_iterator(self) -> Any:
        """Return an iterator over the messages of workers, or of this process, with the current settings."""
        if not self.num_workers:  # torch's iterator takes a fifth of the time of a small batch
            messages = map(copy.copy(self._worker_dataset).__getitem__, self._tickets)
            return map(pinned, messages) if self.pin_memory and torch.cuda.is_available() else messages
        from wdsdist.loader.ipc.workers import WorkersIterator

        groups: DataLoader[Any] = DataLoader(
            self._worker_dataset,
            batch_size=None,
            sampler=self._tickets,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            persistent_workers=self.persistent_workers,
            prefetch_factor=self.prefetch_factor,
            collate_fn=_as_it_is,
            timeout=self.timeout,
            worker_init_fn=partial(init_worker, self.worker_init_fn),
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator,
        )
        return WorkersIterator(groups, self.dataset.identity().rank)

    def _stop_workers(self, messages: Any) -> None:
        """End the worker processes behind ``messages`` now; the next iteration starts new ones."""
        if self.num_workers:
            messages.end()
        self._iterator = None


def _batcher(
    dataset: StreamingDataset, batch_size: int, batches: Batches | None, collate_fn: object, *, drop_last: bool
) -> Batcher:
    """Return what makes the plans of a loader. Raises `ArgumentError` for ``batches`` that cannot work."""
    if batches is None:
        return FixedBatches(
            batch_size=batch_size,
            drop_last=dataset.drop_last,
            drop_last_batch=drop_last,
            mark_padding=dataset.mark_padding,
        )
    if not hasattr(batches, "batcher"):
        raise ArgumentError(
            f"batches is {batches!r}: it must be a value of wdsdist.batching, such as "
            f'batching.TokenBudget(65_536, length="input_ids.tokens")',
            argument="batches",
        )
    if collate_fn is not None and not batches.takes_collate_fn:
        raise ArgumentError(
            f"{type(batches).__name__} makes the batches itself: leave out collate_fn", argument="collate_fn"
        )
    return batches.batcher(
        dataset.manifest,
        itemsizes=dataset.sample_reader.itemsizes,
        drop_last=drop_last,
        mark_padding=dataset.mark_padding,
    )


def _check_dataset(dataset: object) -> None:
    """Check the type of the data set: raise `ArgumentError` also for a subclass with its own ``__getitem__``."""
    if not isinstance(dataset, StreamingDataset):
        raise ArgumentError(f"dataset is a {type(dataset).__name__}: it must be a StreamingDataset", argument="dataset")
    for name in ("__getitem__", "__iter__"):
        if getattr(type(dataset), name) is not getattr(StreamingDataset, name):
            raise ArgumentError(
                f"dataset is a {type(dataset).__name__}, whose own {name} no worker calls: pass what it does to a "
                "sample to StreamingDataset as transform="
            )


def _refuse_copied_collation(samples: Any) -> NoReturn:
    """Stand for ``collate_fn`` in a `StreamingDataLoader`, and raise if another loader has copied it from there."""
    raise StateError(
        "a loader that is made of the attributes of a StreamingDataLoader, as Accelerate's skip_first_batches makes "
        "one, cannot make its batches. To skip batches, load a state, which continues where it was saved without "
        "reading what was consumed (Accelerator.load_state does so); for other loaders, pass the StreamingDataset and "
        "a collate_fn of your own"
    )


def _as_it_is(batch: Any) -> Any:
    return batch
