"""`StreamingDataset`: the samples of WebDataset shards, dealt to ranks and workers in an exact, seeded order."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from wdsdist import catalog
from wdsdist.catalog import Shards
from wdsdist.checks import check_integer
from wdsdist.columns import Sample
from wdsdist.decode import Decode, Decoder
from wdsdist.errors import ArgumentTypeError, LoaderStateError, SampleIndexError
from wdsdist.handover import EpochRequest, Loading
from wdsdist.memory import leave_inherited_objects
from wdsdist.node import Identity
from wdsdist.order import Order, OrderName, OrderSettings, default_window, epoch_order, split_line
from wdsdist.permutation import Int64s
from wdsdist.plan import EpochPlan
from wdsdist.progress import Position
from wdsdist.replica import Replica
from wdsdist.samples import Fields, SampleReader
from wdsdist.shards import ShardReader
from wdsdist.state import State, make_state
from wdsdist.stream import Streams
from wdsdist.transport import grouped

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


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
        mesh: the data-parallel part of a ``DeviceMesh``, such as ``mesh["dp"]``, in place of ``num_replicas`` and
            ``rank``: ranks that differ in other dimensions, as those of a tensor-parallel group, see the same samples.
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
        mesh: DeviceMesh | None = None,
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
        self._replica = Replica.of(rank, num_replicas, mesh)
        self._request = EpochRequest()
        self._streams = Streams(self._request)
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
        return self._replica.identity()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, also in workers that live on.

        Without it, each iteration plays the next epoch.

        Raises ``ArgumentError`` for a negative epoch.
        """
        self._request.make(check_integer("epoch", epoch, 0, 2**63 - 1))

    def epoch_request(self) -> EpochRequest:
        """Return a watcher of what `set_epoch` asks for."""
        return self._request.watch()

    def order_settings(self, num_replicas: int) -> OrderSettings:
        """Return the settings of the order; a world of ``num_replicas`` decides its lanes where nothing else does."""
        lanes = self.num_canonical_replicas or num_replicas
        return dataclasses.replace(self._settings, num_canonical_replicas=lanes)

    def order(self, settings: OrderSettings, epoch: int) -> Order:
        """Return which sample stands at which position of an epoch."""
        return epoch_order(self.manifest.counts, settings, epoch)

    def order_notes(self) -> dict[str, str]:
        """Return what else decides the order, for a loader's state."""
        return {}

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index`` of the data set, in the order of its shards, decoded and transformed.

        Seeded transforms do as in the epoch that was last asked for with `set_epoch`.

        Raises `SampleIndexError`, an ``IndexError``, outside the data set.
        """
        if not isinstance(index, (int, np.integer)):
            raise ArgumentTypeError(f"a data set is indexed by sample numbers, not by {index!r}")
        total = self.manifest.num_samples
        number = int(index) + (total if index < 0 else 0)
        if not 0 <= number < total:
            raise SampleIndexError(f"sample {index:,} is outside the data set, which has {total:,} samples")
        shards, samples = split_line(self._ends, np.array([number]))
        return self._samples.sample(int(shards[0]), int(samples[0]), self._request.epoch)

    @property
    def mean_sample_bytes(self) -> int:
        """Bytes that a sample takes in its shard, as far as the manifest tells."""
        return self.manifest.num_bytes // max(1, self.manifest.num_samples)

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self._samples.is_light

    @functools.cached_property
    def _ends(self) -> Int64s:
        """int64 [shards]: samples up to the end of each shard."""
        return np.cumsum(self.manifest.counts)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None:
            leave_inherited_objects()
        if self._loading is None:
            return self._streams.start(self._single_samples, is_dealt=self.batch_size is not None)
        share = (0, 1) if worker is None else (worker.id, worker.num_workers)
        groups = self._groups(self._loading, *share, deferred=worker is not None)
        return groups if worker is None else map(self._loading.channel.sender(worker.id), groups)

    def _single_samples(self, position: Position, worker: int, num_workers: int) -> Iterator[Any]:
        """Return single samples: this worker's part of this rank's, from where it has taken some on."""
        here = self.identity()
        plan = EpochPlan(
            num_samples=self.num_samples,
            num_replicas=here.world_size,
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            drop_last_batch=False,
        )
        order = self.order(self.order_settings(here.world_size), position.epoch)
        left = plan.places(order, rank=here.rank, worker=worker, num_workers=num_workers, taken=position.consumed)
        return (self._samples.sample(*place) for place in left)

    def state_dict(self) -> State:
        """Return how much this process has taken of its part of an epoch, for a foreign loader that asks its workers.

        ``torchdata.stateful_dataloader.StatefulDataLoader`` does, and keeps one such state for each worker. It is the
        same on every rank. A `StreamingDataLoader` has a state of its own.
        """
        return self._streams.state(self._about())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration of this process go on where a state was taken; at the end, there is nothing left.

        Raises `StateMismatchError` for the state of another data set, order, world size, batch size or number of
        workers, and lists the differences. A `StreamingDataLoader` goes on with other numbers.
        """
        self._streams.load(state, self._about())

    def _about(self) -> State:
        """Return what the state of a stream belongs to."""
        if self._loading is not None:
            raise LoaderStateError("this is the data set of a loader: ask the loader for its state, or load it there")
        world = self.identity().world_size
        about = make_state(
            Position(0, 0),
            num_samples=self.num_samples,
            fingerprint=self.fingerprint,
            settings=self.order_settings(world),
            notes=self.order_notes(),
        )
        return {**about, "num_replicas": world, "drop_last": self.drop_last, "batch_size": self.batch_size or 1}

    def _groups(self, loading: Loading, worker: int, num_workers: int, *, deferred: bool) -> Iterator[list[Any]]:
        """Yield this worker's part of this rank's batches, from where the loader wants them, group by group."""
        start = loading.start.read()
        plan = self.plan(loading, start.num_replicas, start.consumed)
        order = self.order(self.order_settings(start.num_canonical_replicas), start.epoch)
        places = plan.batches(order, rank=start.rank, worker=worker, num_workers=num_workers, group=start.group)
        batches = (self._samples.batch(*batch, loading.collate_fn, deferred=deferred) for batch in places)
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

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_ends"}
