"""`StreamingDataset`: the samples of WebDataset shards, dealt to ranks and workers in an exact, seeded order."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from wdsdist import catalog
from wdsdist.cache import ShardCache
from wdsdist.catalog import Shards
from wdsdist.checks import check_integer, check_seconds
from wdsdist.columns import Sample
from wdsdist.decode import Decode, Decoder
from wdsdist.errors import ArgumentTypeError
from wdsdist.handover import EpochRequest, Loading
from wdsdist.memory import leave_inherited_objects
from wdsdist.node import Identity, identity
from wdsdist.order import Order, OrderName, OrderSettings
from wdsdist.ordering import Ordering
from wdsdist.plan import EpochPlan
from wdsdist.progress import Progress
from wdsdist.samples import Fields, SampleReader
from wdsdist.shards import ShardReader
from wdsdist.share import Share
from wdsdist.sizes import check_bytes
from wdsdist.stats import Counters


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
            least 4,096, but no more than fit ``cache_limit`` with all ranks of a node. Kept in a loader's state.
        num_canonical_replicas: lanes that the order is made of when ``order="shard"``; by default the world size of
            the first run. Runs with the same number see the same global batches, whatever their world size.
        batch_size: give it only where a foreign ``DataLoader`` makes batches of this size, so that workers are dealt
            whole batches. A `StreamingDataLoader` brings its own.
        cache_dir: where the ranks and jobs of a node keep remote shards, and compressed ones once they are
            decompressed; by default in the user's cache folder.
        cache_limit: bytes that this folder may take at any time, as a number or a text such as ``"200GB"``: shards
            whose next use is furthest make room for others. By default nothing is ever removed.
        download_timeout: seconds in which a remote shard has to be had, all attempts and waiting included.
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
        cache_limit: int | str | None = None,
        download_timeout: float = 300.0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.manifest = catalog.open(shards, storage_options=storage_options)
        self.drop_last = bool(drop_last)
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
        if transform is not None and not callable(transform):
            raise ArgumentTypeError(f"transform is {transform!r}: it must be a function of a sample")
        self.cache_limit = None if cache_limit is None else check_bytes("cache_limit", cache_limit)
        self._cache = ShardCache(
            None if cache_dir is None else Path(cache_dir),
            limit=self.cache_limit,
            timeout=check_seconds("download_timeout", download_timeout),
        )
        self._ordering = Ordering.of(
            self.manifest,
            name=order,
            shuffle=bool(shuffle),
            seed=seed,
            window=shuffle_window,
            lanes=num_canonical_replicas,
            limit=self.cache_limit,
        )
        self._samples = SampleReader(
            ShardReader(self.manifest, self._cache),
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
        """Samples in an epoch, over all ranks."""
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

        Raises ``ArgumentError`` for a negative epoch.
        """
        self._request.make(check_integer("epoch", epoch, 0, 2**63 - 1))

    def epoch_request(self) -> EpochRequest:
        """Return a watcher of what `set_epoch` asks for."""
        return self._request.watch()

    def order_settings(self, *, lanes: int | None = None, window: int | None = None) -> OrderSettings:
        """Return the settings of the order: ``lanes`` and ``window``, as far as this data set was given none."""
        return self._ordering.chosen(self.identity(), lanes=lanes, window=window)

    def check_cache_limit(self, settings: OrderSettings) -> None:
        """Raise where ``cache_limit`` is too little for one rank in an order, warn where it is for the node's."""
        self._ordering.check_limit(settings, self.identity())

    def order(self, settings: OrderSettings, epoch: int) -> Order:
        """Return which sample stands at which position of an epoch."""
        return self._ordering.order(settings, epoch)

    def order_notes(self) -> dict[str, str]:
        """Return what else decides the order, for a loader's state."""
        return {}

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index`` of the data set, in the order of its shards, decoded and transformed.

        Seeded transforms do as in the epoch that was last asked for with `set_epoch`.

        Raises `SampleIndexError`, an ``IndexError``, outside the data set.
        """
        return self._samples.sample(*self.manifest.find(index), self._request.epoch)

    @property
    def mean_sample_bytes(self) -> int:
        """Bytes that a sample takes in its shard, as far as the manifest tells."""
        return self.manifest.num_bytes // max(1, self.manifest.num_samples)

    def counters(self) -> Counters:
        """Return what this process, not its workers, has had from the cache so far."""
        return self._cache.counters()

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self._samples.is_light

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None:
            leave_inherited_objects()
        share = functools.partial(
            Share,
            manifest=self.manifest,
            cache=self._cache,
            samples=self._samples,
            worker=0 if worker is None else worker.id,
            num_workers=1 if worker is None else worker.num_workers,
        )
        if self._loading is None:
            return self._single_samples(share)
        loading, start = self._loading, self._loading.start.read()
        settings = self.order_settings(lanes=start.num_canonical_replicas, window=start.shuffle_window)
        mine = share(
            order=self.order(settings, start.epoch),
            settings=settings,
            epoch=start.epoch,
            plan=self.plan(loading, start.num_replicas, start.consumed),
            rank=start.rank,
            group=start.group,
        )
        if worker is None:
            return mine.groups(loading.collate_fn)
        parcels = mine.parcels(loading.collate_fn, loading.channel.sender(worker.id))
        return loading.tallies.counted(parcels, worker.id, self.counters)

    def _single_samples(self, share: Callable[..., Share]) -> Iterator[Any]:
        """Yield single samples: this worker's part of this rank's, for a foreign ``DataLoader`` or none."""
        here, settings = self.identity(), self.order_settings()
        self.check_cache_limit(settings)
        self._request.pass_to(self._progress)
        plan = EpochPlan(
            num_samples=self.num_samples,
            num_replicas=here.world_size,
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            drop_last_batch=False,
        )
        epoch = self._progress.start(lambda position: True).epoch
        return share(
            order=self.order(settings, epoch), settings=settings, epoch=epoch, plan=plan, rank=here.rank
        ).single_samples()

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

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # A spawned worker has no process group to ask for its rank.
            here = self.identity()
            state["_rank"], state["_num_replicas"] = here.rank, here.world_size
        return state
