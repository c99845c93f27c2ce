"""`StreamingDataLoader`: a torch ``DataLoader`` with equal batches on every rank, exact length and exact resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from wdsdist._util.host import cpu_count
from wdsdist._util.validation import check_integer
from wdsdist.distributed import check_same, identity
from wdsdist.errors import ArgumentTypeError, DatasetTooSmallError
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.loader.epoch_iterator import Epoch, EpochMeter, Iteration
from wdsdist.loader.framework_guards import AcceleratedBatches, KnownToAccelerate, expect_a_length, is_counted_by_fabric
from wdsdist.loader.ipc import Channel, group_size
from wdsdist.loader.ipc.workers import end_workers, guarded, has_lost_workers
from wdsdist.loader.progress import Position, Progress
from wdsdist.loader.state import State, read_state
from wdsdist.loader.stats import LoaderStats
from wdsdist.loader.worker_state import Loading, Start, Tallies
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings

_MOST_WORKERS = 8


class StreamingDataLoader(KnownToAccelerate, DataLoader[Any]):
    """Loads batches of a `StreamingDataset`; every rank gets the same number of them.

    A batch is a dict of columns: ``"__key__"`` and ``"__shard__"`` are lists of str, raw bytes are a `Ragged` column,
    decoded values are collated as torch's ``default_collate`` does.

    Args:
        dataset: the data set; the loader works on a view of it, which shares its shards and its epoch.
        batch_size: samples a batch on this rank.
        num_workers: worker processes; by default this rank's share of the node's cores, at most 8. With 0 batches
            are made in this process.
        pin_memory: page-lock batches for copies to a GPU; by default where CUDA is present.
        persistent_workers: keep the workers between epochs.
        drop_last: drop a last batch that is not full, on all ranks alike. What ranks drop or repeat to be even is
            the data set's ``drop_last``.
        prefetch_factor: batches that each worker makes ahead; torch's default of 2.
        collate_fn: makes the batch from a list of samples.
        timeout, worker_init_fn, multiprocessing_context, generator: as in torch.
        shared_memory: let batches cross from the workers in shared memory, which is used again as soon as the last
            view of a batch is gone; ``False`` sends them through pipes, which is several times slower, where memory
            cannot be shared.

    Raises:
        ArgumentError: ``batch_size`` or ``num_workers`` cannot work.
        SharedMemoryError: on iteration, where the batches that workers make ahead do not fit into memory.
        DatasetTooSmallError: from ``len`` or on iteration, where the data set gives not one batch for each rank.

    >>> import tempfile, wdsdist
    >>> from pathlib import Path
    >>> root = Path(tempfile.mkdtemp())
    >>> (root / "files").mkdir()
    >>> for i in range(6):
    ...     _ = (root / "files" / f"{i}.cls").write_text(str(i))
    >>> dataset = wdsdist.StreamingDataset(wdsdist.pack(root / "files", root / "shards"), decode=True)
    >>> loader = wdsdist.StreamingDataLoader(dataset, batch_size=2, num_workers=0)
    >>> len(loader), sorted(number for batch in loader for number in batch["cls"].tolist())
    (3, [0, 1, 2, 3, 4, 5])
    """

    dataset: StreamingDataset

    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int = 64,
        *,
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        persistent_workers: bool = True,
        drop_last: bool = True,
        prefetch_factor: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        shared_memory: bool = True,
    ) -> None:
        if not isinstance(dataset, StreamingDataset):
            raise ArgumentTypeError(f"dataset is a {type(dataset).__name__}: it must be a wdsdist.StreamingDataset")
        workers = _default_workers() if num_workers is None else check_integer("num_workers", num_workers, 0)
        self._loading = Loading(
            batch_size=check_integer("batch_size", batch_size, 1),
            drop_last=bool(drop_last),
            collate_fn=collate_fn,
            channel=Channel(shared_memory=bool(shared_memory)),
            tallies=Tallies(workers),
        )
        self._progress = Progress()
        self._request = dataset.epoch_request()
        self._settings: OrderSettings | None = None  # of the first run, or what a loaded state brought
        self._checked: OrderSettings | None = None
        self._iterations = 0
        self._group = 1
        self._meter: EpochMeter | None = None
        super().__init__(
            dataset.bound(self._loading),
            batch_size=None,  # the data set makes whole batches
            num_workers=workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            persistent_workers=persistent_workers and workers > 0,
            prefetch_factor=prefetch_factor,
            collate_fn=_as_it_is,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
        )
        # Frameworks read these; torch refuses to have them set once it has been initialised.
        self.__dict__.update(batch_size=self._loading.batch_size, drop_last=self._loading.drop_last)
        self.__dict__["sampler"] = EpochSampler(dataset)
        expect_a_length()

    def __len__(self) -> int:
        """Return the batches that a whole epoch has on each rank."""
        return self._plan(Position(0, 0)).batches_per_rank

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._progress.restart()
        self._iterations += 1
        number = self._iterations
        # The loader knows its iterations by number: a reference to one would be a cycle, and workers of a dropped
        # loader would live until the collector finds it, perhaps in a forked child.
        batches = Iteration(self._begin, self._stop_workers, lambda: self._iterations == number)
        if not self._is_accelerated:
            return batches
        return AcceleratedBatches(batches, self._is_at_end, non_blocking=self.pin_memory)

    def _is_at_end(self) -> bool:
        return self._progress.position.consumed >= self.dataset.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays; also counts between ``iter()`` and the first batch."""
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> State:
        """Return where the loader stands: small, flat, fit for JSON, and the same on every rank.

        It counts the batches that were handed out, whatever workers have prepared beyond them.
        """
        self._request.pass_to(self._progress)
        state = self.dataset.ordering.state(self._progress.position, self._order_settings())
        return {**state, "asked": self._progress.asked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, also with another world size, batch size or number of workers.

        The next iteration gives what was left of that epoch. Raises `StateMismatchError` for the state of another
        data set, seed or order, and lists the differences.
        """
        ordering, settings = self.dataset.ordering, self._order_settings()
        if isinstance(state, Mapping):
            lanes, window = state.get("num_canonical_replicas"), state.get("shuffle_window")
            settings = ordering.settings(self.dataset.identity(), lanes=lanes or None, window=window or None)
        position = read_state(state, ordering.state(Position(0, 0), settings))
        self._request.pass_to(self._progress)  # what was asked for before no longer counts
        finished = position.consumed >= self.dataset.num_samples
        self._progress.resume(position, asked=state.get("asked"), finished=finished)
        self._settings = settings

    def stats(self) -> LoaderStats:
        """Return what the current epoch has come to so far on this rank, or the last one where none is under way.

        Its text is the line that is logged, as INFO of the logger ``wdsdist``, when an epoch ends; for one that was
        given up, when the next one starts.

        >>> LoaderStats(samples=32_000, seconds=1.6).samples_per_second
        20000.0
        """
        return LoaderStats() if self._meter is None else self._meter.stats()

    def __getstate__(self) -> dict[str, Any]:
        # Workers stay with the process that started them, and so does what they did.
        return {**self.__dict__, "_iterator": None, "_meter": None}

    def _order_settings(self) -> OrderSettings:
        return self._settings or self.dataset.ordering.settings(self.dataset.identity())

    def _plan(self, position: Position) -> EpochPlan:
        """Return the plan of what is left at a position; raise where a whole epoch would have no batch."""
        world = self.dataset.identity().world_size
        plan = self._loading.plan(self.dataset.num_samples, world, position.consumed, drop_last=self.dataset.drop_last)
        if not position.consumed and not plan.batches_per_rank:
            if not plan.num_samples:
                raise DatasetTooSmallError(
                    f"the data set {self.dataset.manifest!r} has no samples: nothing can be read"
                )
            raise DatasetTooSmallError(
                f"the data set has {plan.num_samples:,} samples, fewer than one global batch of "
                f"{plan.batch_size * world:,} ({world} ranks x batch_size {plan.batch_size}), and drop_last=True drops "
                f"them all: lower batch_size or pass drop_last=False"
            )
        return plan

    def _begin(self) -> Epoch:
        """Start the workers on the next epoch, or on the rest of one."""
        if self._meter is not None:
            self._meter.finish()
        self._request.pass_to(self._progress)
        position = self._progress.start(lambda place: self._plan(place).batches_per_rank > 0)
        here = self.dataset.identity()
        plan = self._plan(position)
        if self._meter is None and here.world_size > 1:  # once for each loader
            for where, version in self.dataset.manifest.versions.items():
                check_same(f"index.json of {where}", version)
        settings = self._settings = self._order_settings()  # the first run's, whatever the world becomes
        if settings != self._checked:
            self.dataset.ordering.check_room(settings, here)
            self._checked = settings
        self._meter = EpochMeter(
            position.epoch,
            plan=plan,
            sample_bytes=self.dataset.ordering.mean_sample_bytes,
            count=self._loading.tallies.total if self.num_workers else self.dataset.cache.counters,
        )
        if self._iterator is not None and has_lost_workers(self._iterator):
            self._stop_workers(self._iterator)
        if self.num_workers and self._iterator is None:
            self._prepare()
        self._loading.start.write(
            Start(
                epoch=position.epoch,
                consumed=position.consumed,
                rank=here.rank,
                num_replicas=here.world_size,
                num_canonical_replicas=settings.num_canonical_replicas,
                # A larger one means the same.
                shuffle_window=min(settings.window, max(1, self.dataset.manifest.num_samples)),
                group=self._group,
            )
        )
        groups = guarded(super().__iter__())
        return Epoch(groups, plan=plan, progress=self._progress, request=self._request, meter=self._meter)

    def _prepare(self) -> None:
        """Make what new workers need: memory to share, and how many batches they send together.

        A message costs as much as making a batch of small samples.
        """
        batch_bytes = self.dataset.ordering.mean_sample_bytes * self._loading.batch_size
        is_light = self._loading.collate_fn is None and self.dataset.sample_reader.is_light
        group = group_size(len(self), batch_bytes, self.num_workers) if is_light else 1
        if self.dataset.cache.limit is not None:
            # Batches that wait for the rest of their group hold their shards, and workers that wait for room while
            # they hold what others wait for would wait for ever.
            group = 1
        ahead = self.prefetch_factor or 2
        self._group = self._loading.channel.prepare(self.num_workers, ahead, batch_bytes, group=group)

    def _stop_workers(self, batches: Iterator[Any]) -> None:
        """End the worker processes behind ``batches`` now; the next iteration starts new ones."""
        end_workers(batches)
        self._iterator = None


class EpochSampler(Sampler[None]):
    """Stands where frameworks look for a ``DistributedSampler``: its ``set_epoch`` is the data set's."""

    def __init__(self, dataset: StreamingDataset) -> None:
        self._dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, unless Lightning Fabric asks: the loader counts better."""
        if not is_counted_by_fabric():
            self._dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[None]:
        # torch asks for one index a batch; the data set needs none.
        return itertools.repeat(None)


def _as_it_is(batch: Any) -> Any:
    return batch


def _default_workers() -> int:
    """This rank's share of the node's cores."""
    return min(_MOST_WORKERS, cpu_count() // identity().local_world_size)
