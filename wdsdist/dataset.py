"""`StreamingDataset`: the samples of WebDataset shards, dealt to ranks and workers in an exact, seeded order."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from wdsdist import catalog
from wdsdist.catalog import Shards
from wdsdist.checks import check_integer
from wdsdist.columns import Sample
from wdsdist.decode import Decode, Decoder
from wdsdist.errors import ArgumentTypeError, SampleIndexError
from wdsdist.frameworks import refuse_second_split
from wdsdist.handover import EpochRequest, Loading
from wdsdist.node import Identity, identity
from wdsdist.order import OrderName, OrderSettings, default_window, epoch_order, split_line
from wdsdist.permutation import Int64s
from wdsdist.plan import EpochPlan
from wdsdist.progress import Progress
from wdsdist.samples import Fields, SampleReader
from wdsdist.shards import ShardReader
from wdsdist.transport import grouped


class StreamingDataset(IterableDataset[Any]):
    """Samples of WebDataset shards for distributed training; hand it to a `StreamingDataLoader`.

    Every rank sees different samples, all ranks the same number, in an order that depends on the seed and the epoch
    and on nothing else. A sample is a dict: ``"__key__"``, ``"__shard__"``, and one entry for each member by its
    extension in lower case.

    Args:
        shards: what `wdsdist.open` takes: a folder or URL with an ``index.json``, a brace pattern, a list of tars,
            or a `Manifest`.
        fields: extensions to read, such as ``("jpg;png", "cls")``: of ``"jpg;png"`` whichever a sample has, under the
            name ``"jpg"``. By default all members.
        decode: ``None`` gives bytes; ``True`` decodes by the safe default table (txt, cls, json, npy, ...); an image
            specification such as ``"rgb8"``, ``"torchrgb"`` or ``"pil"`` decodes images as well; a mapping from
            extensions to functions of bytes decodes just those.
        transform: function from sample to sample, called in the workers after decoding.
        num_replicas, rank, shuffle, seed, drop_last: as in ``torch.utils.data.DistributedSampler``. World size and
            rank are looked up when they are first needed: from torch.distributed, then from the launcher's
            environment variables. With ``drop_last=False`` the first samples of the epoch are repeated until ranks
            are even; with ``True`` samples are dropped instead.
        order: ``"shard"`` shuffles shards, then samples within windows, so that each rank reads shards of its own
            almost in sequence; ``"sampler"`` is the sequence of ``DistributedSampler``, bit for bit.
        shuffle_window: samples that are shuffled together when ``order="shard"``; by default 16 shards' worth, at
            least 4,096.
        num_canonical_replicas: lanes that the order is made of when ``order="shard"``; by default the world size of
            the first run. Runs with the same number see the same global batches, whatever their world size.
        batch_size: give it only where a foreign ``DataLoader`` makes batches of this size, so that workers are dealt
            whole batches. A `StreamingDataLoader` brings its own.
        cache_dir: where remote shards, and compressed ones once they are decompressed, are kept; by default in the
            user's cache folder.
        storage_options: passed to fsspec for remote shards.

    Raises:
        IndexNotFoundError: ``shards`` is a folder without ``index.json``.
        ArgumentError: an argument has a value that cannot work, such as ``rank >= num_replicas``.

    >>> import tempfile, wdsdist
    >>> from pathlib import Path
    >>> root = Path(tempfile.mkdtemp())
    >>> (root / "files").mkdir()
    >>> for i in range(6):
    ...     _ = (root / "files" / f"{i}.txt").write_text(f"text {i}")
    >>> manifest = wdsdist.pack(root / "files", root / "shards")
    >>> dataset = wdsdist.StreamingDataset(manifest, decode=True, num_replicas=2, rank=0)
    >>> len(list(dataset)), dataset.num_samples
    (3, 6)
    """

    def __init__(
        self,
        shards: Shards,
        *,
        fields: Sequence[str] | None = None,
        decode: Decode = None,
        transform: Callable[[Sample], Any] | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        order: OrderName = "shard",
        shuffle_window: int | None = None,
        num_canonical_replicas: int | None = None,
        batch_size: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.manifest = catalog.open(shards, storage_options=storage_options)
        self.drop_last = bool(drop_last)
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
        self._settings = OrderSettings(
            name=order,
            shuffle=bool(shuffle),
            seed=seed,
            window=default_window(self.manifest.counts) if shuffle_window is None else shuffle_window,
            # Replaced by the world size where it is not given; checked here all the same.
            num_canonical_replicas=1 if num_canonical_replicas is None else num_canonical_replicas,
        )
        self.num_canonical_replicas = num_canonical_replicas
        if transform is not None and not callable(transform):
            raise ArgumentTypeError(f"transform is {transform!r}: it must be a function of a sample")
        self._samples = SampleReader(
            ShardReader(self.manifest, None if cache_dir is None else Path(cache_dir)),
            Fields(fields),
            Decoder(decode),
            transform,
            seed,
        )
        self._rank, self._num_replicas = rank, num_replicas
        if rank is not None and num_replicas is not None:
            self.identity()  # what is wrong with them is said here, not in the training loop
        self._request = EpochRequest()
        self._progress = Progress()
        self._loading: Loading | None = None

    @property
    def num_samples(self) -> int:
        """Samples in the data set, over all ranks."""
        return self.manifest.num_samples

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the data set's shards, wherever they lie: a state must come from the same one."""
        return self.manifest.fingerprint

    def identity(self) -> Identity:
        """Return the rank and world size that this data set is split for, as they are known now."""
        return identity(rank=self._rank, num_replicas=self._num_replicas)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, also in workers that live on.

        Without it, each iteration plays the next epoch. Only where a foreign ``DataLoader`` has workers that do not
        persist is there need to call it: those start from the same copy, and the same epoch, each time.

        Raises ``ArgumentError`` for a negative epoch, and ``LoaderStateError`` under a framework that would split
        the samples among the ranks a second time.
        """
        self._refuse_second_split()
        self._request.make(check_integer("epoch", epoch, 0, 2**63 - 1))

    def epoch_request(self) -> EpochRequest:
        """Return a watcher of what `set_epoch` asks for."""
        return self._request.watch()

    def order_settings(self, num_replicas: int) -> OrderSettings:
        """Return the settings of the order; a world of ``num_replicas`` decides its lanes where nothing else does."""
        lanes = self.num_canonical_replicas or num_replicas
        return dataclasses.replace(self._settings, num_canonical_replicas=lanes)

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index`` of the data set, in the order of its shards, decoded and transformed.

        Seeded transforms do as in the epoch that was last asked for with `set_epoch`.

        Raises `SampleIndexError`, an ``IndexError``, outside the data set.
        """
        if not isinstance(index, (int, np.integer)):
            raise ArgumentTypeError(f"a data set is indexed by sample numbers, not by {index!r}")
        number = int(index) + (self.num_samples if index < 0 else 0)
        if not 0 <= number < self.num_samples:
            raise SampleIndexError(f"sample {index:,} is outside the data set, which has {self.num_samples:,} samples")
        shards, samples = split_line(self._ends, np.array([number]))
        return self._samples.sample(int(shards[0]), int(samples[0]), self._request.epoch)

    @property
    def mean_sample_bytes(self) -> int:
        """Bytes that a sample takes in its shard, as far as the manifest tells."""
        return self.manifest.num_bytes // max(1, self.num_samples)

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self._samples.is_light

    @functools.cached_property
    def _ends(self) -> Int64s:
        """int64 [shards]: samples up to the end of each shard."""
        return np.cumsum(self.manifest.counts)

    def __iter__(self) -> Iterator[Any]:
        self._refuse_second_split()
        worker = get_worker_info()
        share = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if worker is not None:
            _leave_inherited_objects()
        if self._loading is None:
            return self._single_samples(*share)
        groups = self._groups(self._loading, *share, deferred=worker is not None)
        return groups if worker is None else map(self._loading.channel.sender(worker.id), groups)

    def _single_samples(self, worker: int, num_workers: int) -> Iterator[Any]:
        """Yield single samples: this worker's part of this rank's, for a foreign ``DataLoader`` or none."""
        here = self.identity()
        self._request.pass_to(self._progress)
        epoch = self._progress.start(lambda position: True).epoch
        plan = EpochPlan(
            num_samples=self.num_samples,
            num_replicas=here.world_size,
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            drop_last_batch=False,
        )
        order = epoch_order(self.manifest.counts, self.order_settings(here.world_size), epoch)
        batches = plan.batches(order, rank=here.rank, worker=worker, num_workers=num_workers)
        return (
            self._samples.sample(*pair, epoch)
            for shards, samples in batches
            for pair in zip(shards.tolist(), samples.tolist(), strict=True)
        )

    def _groups(self, loading: Loading, worker: int, num_workers: int, *, deferred: bool) -> Iterator[list[Any]]:
        """Yield this worker's part of this rank's batches, from where the loader wants them, group by group."""
        start = loading.start.read()
        plan = self.plan(loading, start.num_replicas, start.consumed)
        settings = self.order_settings(start.num_canonical_replicas)
        order = epoch_order(self.manifest.counts, settings, start.epoch)
        places = plan.batches(order, rank=start.rank, worker=worker, num_workers=num_workers, group=start.group)
        batches = (
            self._samples.batch(shards, samples, start.epoch, loading.collate_fn, deferred=deferred)
            for shards, samples in places
        )
        return grouped(batches, start.group)

    def plan(self, loading: Loading, num_replicas: int, consumed: int = 0) -> EpochPlan:
        """Return the batches that a loader makes of an epoch from ``consumed`` samples on."""
        return EpochPlan(
            num_samples=self.num_samples,
            num_replicas=num_replicas,
            batch_size=loading.batch_size,
            drop_last=self.drop_last,
            drop_last_batch=loading.drop_last,
            start=consumed,
        )

    @property
    def is_raw(self) -> bool:
        """Whether samples are bytes as they lie in the shards."""
        return self._samples.is_raw

    def raw(self) -> StreamingDataset:
        """Return a data set of the same members, neither decoded nor transformed."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, _samples=self._samples.raw())
        return view

    def bound(self, loading: Loading) -> StreamingDataset:
        """Return this data set as a loader uses it: the same shards and epoch, yielding the loader's batches."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, _loading=loading)
        return view

    def _refuse_second_split(self) -> None:
        refuse_second_split(lambda: self.identity().world_size, has_loader=self._loading is not None)

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_second_split()  # a spawned worker does not see who made it start
        state = {name: value for name, value in self.__dict__.items() if name != "_ends"}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # A spawned worker has no process group to ask for its rank.
            here = self.identity()
            state["_rank"], state["_num_replicas"] = here.rank, here.world_size
        return state


@functools.cache
def _leave_inherited_objects() -> None:
    """Take what a forked worker inherited out of its garbage collection: to look at an object is to copy its page."""
    gc.freeze()
