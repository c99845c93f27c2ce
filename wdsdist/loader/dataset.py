"""`StreamingDataset`: the samples of WebDataset shards, dealt to ranks and workers in an exact, seeded order."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from torch.utils.data import IterableDataset, Sampler

from wdsdist._util.validation import check_bytes, check_flag, check_integer, check_path, hint
from wdsdist.distributed.identity import Identity, Replica
from wdsdist.errors import ArgumentError
from wdsdist.loader.frozen import frozen
from wdsdist.loader.progress import ChosenEpoch
from wdsdist.samples.bad_samples import BadSampleLog, BadSamplePolicy, OnError
from wdsdist.samples.collate import Sample
from wdsdist.samples.fields import Fields
from wdsdist.samples.member_reader import open_source, shard_of
from wdsdist.samples.sample_reader import SampleReader
from wdsdist.samples.sample_spec import Decode, Decoder, SampleSpec
from wdsdist.sampling.epoch_plan import EpochPlan, FixedBatches
from wdsdist.sampling.order import OrderConfig, OrderName, OrderSettings
from wdsdist.sampling.plan import Position, World
from wdsdist.shards import open as catalog
from wdsdist.shards.open import OpenOptions
from wdsdist.shards.source import CacheOptions

if TYPE_CHECKING:
    from wdsdist.loader.epoch_planner import State
    from wdsdist.loader.foreign_loaders import PlainProgress
    from wdsdist.shards.open import Shards
    from wdsdist.shards.quarantine import Quarantine

FRAMEWORKS = {"accelerate", "lightning", "pytorch_lightning", "transformers", "webdataset"}
"""Packages that may wrap a data set in ways that lose samples: see `wdsdist.loader.foreign_loaders`."""


class StreamingDataset(IterableDataset[Any]):
    """Samples of WebDataset shards for distributed training; pass it to a `StreamingDataLoader`.

    Every rank gets different samples, and all ranks get the same number. The order depends only on the seed and the
    epoch. A sample is a dict with ``"__key__"``, ``"__shard__"``, and one entry per member, named by its extension in
    lower case.

    Args:
        shards: a folder or URL with an ``index.json``, a brace pattern, a list of tars, or a `Manifest`: anything that
            `wdsdist.open` takes.
        fields: extensions to read, such as ``("jpg;png", "cls")``; by default all members. ``"jpg;png"`` reads the
            one that a sample has, under the name ``"jpg"``. ``"image"`` is an image of any type. ``"txt?"`` may be
            missing or empty: its column is a list, with ``None`` for such samples.
        decode: ``None`` gives bytes. ``True`` decodes by the safe default table (txt, cls, json, npy, ...). An image
            form such as ``"rgb8"``, ``"torchrgb"`` or ``"pil"`` also decodes images; ``"audio"`` also decodes audio, as
            (float32 [channels, samples], rate in Hz). A mapping from extensions or fields to functions of bytes decodes
            only these; ``"image"`` in it means every type of image, and a name such as ``"json?"`` may be missing from
            all samples.
        transform: a function from sample to sample. Workers call it after decoding. It may raise `wdsdist.BadSample`
            to leave a sample out.
        on_error: how to handle a bad sample (missing or empty field, decode error, transform error). ``"raise"`` raises
            an error that names the sample. ``"replace"`` replaces it with another sample of the same shard, chosen by a
            hash of seed, epoch and sample, so that all ranks and reruns choose the same one. Errors of storage, of the
            machine and of damaged shards are always raised, and ``dataset[i]`` always raises.
        error_budget: with ``"replace"``, the largest share of bad samples, such as 0.01, of at least 1,000 samples, or
            of all if there are fewer. A rank that meets more raises `SampleError`.
        quarantine: with ``"replace"``, the path of a local file that gets a line of JSON for each bad sample and its
            reason. Ranks and runs may share it.
        num_replicas, rank, shuffle, seed, drop_last: as in ``torch.utils.data.DistributedSampler``. The default rank
            and world size come from torch.distributed at first use, otherwise from the launcher's environment
            variables. ``drop_last=False`` repeats samples until every rank has the same number; ``True`` drops samples
            instead. With model parallelism, pass the data-parallel part of the mesh, as in
            ``num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank()``.
        mark_padding: add a boolean ``"__padding__"`` that marks the repeated samples. The transform gets it in the
            sample. Padding comes last, so frameworks that trim gathered results remove exactly the padding.
        samples_per_epoch: number of samples of an epoch over all ranks; by default all samples once. Each epoch
            continues where the last one ended: every sample comes once before any repeats.
        order: ``"shard"`` shuffles shards, then samples within windows, so that each rank reads its own shards almost
            in sequence. ``"sampler"`` is the sequence of ``DistributedSampler``, bit for bit.
        shuffle_window: samples that ``order="shard"`` shuffles together; by default 16 shards' worth, at least 4,096.
        num_canonical_replicas: lanes of ``order="shard"``; by default the world size of the first run. Runs with the
            same number see the same global batches on any world size. The state of a loader keeps window and lanes.
        batch_size: samples per batch, only if another ``DataLoader`` makes the batches, so that its workers make whole
            batches.
        cache_dir: the folder for remote and decompressed shards, which ranks and jobs of a node share; by default in
            the user's cache folder.
        cache_limit: the most bytes of this folder, as a number or a string such as ``"200GB"``. Shards whose next use
            is furthest away are evicted. By default nothing is evicted.
        kwargs: arguments of `wdsdist.open`: ``storage_options``, ``allow_elsewhere``, ``generation``,
            ``download_timeout`` (the most seconds to fetch a shard, retries included; by default 300) and ``stage``
            (copy local shards into ``cache_dir`` too, for a slow mount such as NFS, Lustre or FUSE).

    Raises:
        NotFoundError: ``shards`` is a folder without ``index.json``.
        ArgumentError: an argument is unknown, or has a value that cannot work, such as ``rank >= num_replicas``.

    >>> import tempfile, wdsdist
    >>> manifest = wdsdist.pack(({"txt": f"text {number}"} for number in range(6)), tempfile.mkdtemp())
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
        on_error: OnError = "raise",
        error_budget: float | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        mark_padding: bool = False,
        samples_per_epoch: int | None = None,
        order: OrderName = "shard",
        shuffle_window: int | None = None,
        num_canonical_replicas: int | None = None,
        batch_size: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str | None = None,
        **kwargs: Unpack[OpenOptions],
    ) -> None:
        super().__init__()
        check_names(StreamingDataset, kwargs, OpenOptions.__annotations__)
        with frozen():  # clients of stores are imported here
            self.manifest = catalog.open(shards, **kwargs)
        self.drop_last, self.mark_padding = check_flag("drop_last", drop_last), check_flag("mark_padding", mark_padding)
        if self.mark_padding and self.drop_last:
            raise ArgumentError(
                "mark_padding is True and drop_last too: without repeated samples there is no padding to mark; pass "
                "drop_last=False",
                argument="mark_padding",
            )
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1, 2**53)
        limit = None if cache_limit is None else check_bytes("cache_limit", cache_limit)
        self.order_config = OrderConfig(
            manifest=self.manifest, name=order, shuffle=check_flag("shuffle", shuffle), seed=seed,
            shuffle_window=shuffle_window, num_canonical_replicas=num_canonical_replicas,
            samples_per_epoch=samples_per_epoch,
        )  # fmt: skip
        folder = None if cache_dir is None else check_path("cache_dir", cache_dir)
        timeout = kwargs.get("download_timeout")
        self.cache = CacheOptions(folder, limit, *([timeout] if timeout else []))
        policy = BadSamplePolicy.of(on_error, quarantine, error_budget)
        chosen = Fields(fields, raw_images=self.manifest.has_raw_images)
        by_arrays = dict[str, SampleSpec]()  # data sets may have arrays of different types under one name
        specs, first = dict[int, SampleSpec](), 0
        for part in self.manifest.data_sets:
            arrays = part.extra.get("arrays")
            spec = SampleSpec(chosen, Decoder(decode, arrays), transform, policy)
            specs[first] = by_arrays.setdefault(repr(arrays), spec)
            first += len(part.counts)
        noted = [part.extra.get("fields") for part in self.manifest.data_sets]
        if all(noted):  # every index.json lists the extensions of its samples
            known = {str(name).lower() for names in noted for name in names or ()}
            chosen.check_extensions(known)
            spec.decoder.check_extensions(known, chosen.names)
        self.sample_reader = SampleReader(open_source(self.manifest, self.cache), specs, seed)
        self.error_budget = policy.budget
        self.chosen_epoch = ChosenEpoch()
        self.replica = Replica(rank, num_replicas)
        self._readers: list[SampleReader] = []
        self._quarantines: dict[str, Quarantine] = {}
        self._counts_all_ranks = False

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch, over all ranks."""
        return self.order_config.num_samples

    def __len__(self) -> int:
        """Return the samples that this rank gets in an epoch, which frameworks ask a data set for."""
        if self._counts_all_ranks:
            return self.num_samples
        count = self.plan().samples_per_rank
        if count != self.manifest.num_samples:
            from wdsdist.loader.foreign_loaders import refuse_random_split

            refuse_random_split(count, self.manifest.num_samples)
        return count

    def __repr__(self) -> str:
        order, replica = self.order_config, self.replica
        ranks = "" if replica.rank is None else f", rank={replica.rank}, num_replicas={replica.num_replicas}"
        return (
            f"{type(self).__name__}({self.manifest!r}, order={order.name!r}, shuffle={order.shuffle}, "
            f"seed={order.seed}{ranks}, epoch={self.chosen_epoch.epoch}, samples_per_epoch={self.num_samples:,})"
        )

    def __bool__(self) -> bool:
        return True  # an empty data set is not None, and a test for that needs no rank

    def identity(self) -> Identity:
        """Return the rank and world size that this data set is split for, as they are known now."""
        return self.replica.identity()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also in persistent workers.

        Without it, each iteration of a `StreamingDataLoader` is the next epoch. With a foreign loader each iteration is
        the same epoch, as with ``DistributedSampler``; call this before ``iter()``, which starts its workers.

        Raises ``ArgumentError`` for a negative epoch, and ``StateError`` in a framework that would split the samples
        among the ranks a second time.
        """
        self._refuse_second_split()
        self.chosen_epoch.choose(epoch)

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index`` of the data set, in the order of its shards, decoded and transformed.

        Seeded transforms do as in the epoch that was last asked for with `set_epoch`. A bad sample is an error.

        Raises ``IndexError`` outside the data set.
        """
        if not isinstance(index, (int, np.integer)):
            raise ArgumentError(f"a data set is indexed by sample numbers, not by {index!r}")
        shard, sample = shard_of(self.manifest, int(index) + (self.manifest.num_samples if index < 0 else 0))
        mark = False if self.mark_padding else None
        try:
            reader = self._readers.pop()
        except IndexError:  # other threads use all
            reader = self.sample_reader.with_manifest(self.manifest)
        try:
            return reader.sample(shard, sample, self.chosen_epoch.epoch, mark, strict=True)
        finally:
            self._readers.append(reader)

    def __iter__(self) -> Iterator[Any]:
        """Return the samples of this rank, one by one; in a worker of a foreign loader, this worker's."""
        self._refuse_second_split()
        self.check_room(self.order_config, self.order_config.settings(self.identity().world_size))
        return self._progress.start(self)

    def check_room(self, config: OrderConfig, settings: OrderSettings) -> None:
        """Check that a limited cache has room for all shards that the ranks of this node need at once.

        Raises `ArgumentError` if there is too little for one rank; warns if there is too little for all. A choice of
        fields may need less, so it is not checked.
        """
        if self.cache.limit is None or not all(spec.fields.are_all for spec in self.sample_reader.specs.values()):
            return
        from wdsdist.sampling.shard_schedule import check_limit

        identity = self.identity()
        ranks = min(identity.local_world_size, identity.world_size)
        check_limit(config, settings, num_replicas=identity.world_size, ranks=ranks, limit=self.cache.limit)

    def plan(self, epoch: int = 0, config: OrderConfig | None = None) -> EpochPlan:
        """Return the plan of an epoch that no `StreamingDataLoader` makes batches of."""
        config, size = config or self.order_config, self.identity().world_size
        fixed = FixedBatches(
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            drop_last_batch=False,
            mark_padding=self.mark_padding,
        )
        return fixed.plan(config.order(config.settings(size), epoch), Position(epoch), World(size))

    def state_dict(self) -> State:
        """Return how many samples of its part of an epoch this process has taken, for a loader that asks its workers.

        ``torchdata.stateful_dataloader.StatefulDataLoader`` does, and keeps one such state for each worker. It is the
        same on every rank. A `StreamingDataLoader` has a state of its own.
        """
        return self._progress.state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration of this process continue where a state was taken; at the end nothing is left.

        Raises `StateError`, which lists the differences, for the state of another data set, order, world size, batch
        size or number of workers. A `StreamingDataLoader` resumes with other numbers.
        """
        self._progress.load(self, state)

    @functools.cached_property
    def _progress(self) -> PlainProgress:
        """The position of an iteration without a `StreamingDataLoader`."""
        from wdsdist.loader.foreign_loaders import PlainProgress

        return PlainProgress()

    def _refuse_second_split(self) -> None:
        if not FRAMEWORKS.isdisjoint(sys.modules):
            from wdsdist.loader.foreign_loaders import refuse_second_split

            refuse_second_split(self)

    def bad_sample_log(self, epoch: int, planned: int, log_prefix: str) -> BadSampleLog | None:
        """Return a log of the bad samples of one epoch of a loader; ``None`` if bad samples are errors."""
        if not any(spec.policy.replaces for spec in self.sample_reader.specs.values()):
            return None
        return BadSampleLog(self.error_budget, self._quarantines, epoch, planned, log_prefix)

    def of_all_ranks(self) -> StreamingDataset:
        """Return this data set with the length of all ranks together, which some frameworks ask a data set for."""
        other = copy.copy(self)
        other._counts_all_ranks = True
        return other

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_second_split()  # a spawned worker does not see what started it
        return self.__dict__


class EpochSampler(Sampler[None]):
    """Stands where frameworks look for a ``DistributedSampler``: its ``set_epoch`` is the data set's."""

    def __init__(self, dataset: StreamingDataset) -> None:
        self._dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs, unless Lightning Fabric asks: the loader counts better."""
        if "lightning" in sys.modules:
            from wdsdist.loader.foreign_loaders import is_counted_by_fabric

            if is_counted_by_fabric():
                return
        self._dataset.chosen_epoch.choose(epoch)


def check_names(kind: type, options: Collection[str], known: Collection[str] = ()) -> None:
    """Raise `ArgumentError` for an argument that is neither in the signature of a class nor known."""
    name = next((name for name in options if name not in known), None)
    if name is not None:
        own, of_dataset = ([*inspect.signature(each).parameters][1:-1] for each in (kind, StreamingDataset))
        advice = "StreamingDataset has it" if name in of_dataset else hint(name, [*own, *known], "it has")
        raise ArgumentError(f"{kind.__name__} has no argument {name!r}: {advice}", argument=name)
